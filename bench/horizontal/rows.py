"""Result rows of a comparison of horizontal methods, their tables and their page."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from bench.horizontal.comparison import LAST_SCORINGS
from bench.tables import RATE, or_dash
from securevfl.reports.page import rows_page
from securevfl.reports.tables import Column, Row, grouped
from securevfl.shown import curve

Over = Literal["uploaded", "rounds"]
LABELS: Mapping[Over, str] = {"uploaded": "models uploaded a client", "rounds": "rounds"}


def _times(value: float) -> str:
    return f"{value:.1f}x"


def _models(value: float) -> str:
    return f"{value:.3g}"


def _rounds(row: Row) -> str:
    reached = row["rounds_to_target"]
    mark = "" if row["reached"] == row["repeats"] else f" ({row['reached']} of {row['repeats']})"
    return f"- {mark}".strip() if reached is None else f"{reached:g}{mark}"


def _final(row: Row) -> str:
    spread = f" ±{100 * row['final_spread']:.1f}" if row["repeats"] > 1 else ""
    return f"{100 * row['final_accuracy']:.1f}{spread}"


def _at_round(row: Row, at: int) -> str:
    """The accuracy by then, over as many scorings as the final one; the median of runs."""
    means = [
        statistics.fmean(run["accuracies"][: run["rounds"].index(at) + 1][-LAST_SCORINGS:])
        for run in row["runs"]
        if at in run["rounds"]
    ]
    return f"{100 * statistics.median(means):.1f}" if means else "-"


def _gap(row: Row, of: str, at: float) -> str:
    """What is left of the way to the optimum by then, the median of runs that got so far."""
    left = [
        1 - run["accuracies"][max(place for place, cost in enumerate(run[of]) if cost <= at)]
        for run in row["runs"]
        if max(run[of], default=0.0) > 0.99 * at
    ]
    return f"{statistics.median(left):.1e}" if left else "-"


DATA: Column[Row] = ("data", lambda row: f"{row['dataset']}, D = {row['dirichlet']:g}")
HORIZONTAL: tuple[Column[Row], ...] = (
    ("method", lambda row: row["method"]),
    ("b", lambda row: str(row["blocks"])),
    RATE,
    ("rounds", _rounds),
    ("counted", lambda row: or_dash(row["counted_to_target"], _models)),
    ("fewer", lambda row: or_dash(row["fewer_counted"], _times)),
    ("up", lambda row: or_dash(row["uploaded_to_target"], _models)),
    ("fewer", lambda row: or_dash(row["fewer_uploaded"], _times)),
    ("down", lambda row: or_dash(row["downloaded_to_target"], _models)),
    ("final %", _final),
)

WITH_PAPERS: tuple[Column[Row], ...] = (
    DATA,
    *HORIZONTAL[:6],
    ("paper's", lambda row: or_dash(row["paper_fewer"], _times)),
    *HORIZONTAL[6:],
)

COSTS: tuple[Column[Row], ...] = (
    DATA,
    *HORIZONTAL[:2],
    ("rounds in all", lambda row: str(row["rounds"])),
    ("counted", lambda row: _models(row["counted"])),
    ("up", lambda row: _models(row["uploaded"])),
    ("passes to the target", lambda row: or_dash(row["gradients_to_target"], _models)),
    ("seeds", lambda row: str(row["repeats"])),
    ("% at 100 rounds", partial(_at_round, at=100)),
)

CHANGES: tuple[Column[Row], ...] = (
    *HORIZONTAL[:5],
    HORIZONTAL[6],
    HORIZONTAL[8],
    ("% at 100 rounds", partial(_at_round, at=100)),
    HORIZONTAL[9],
)

MODELS = 50, 100, 200

CONVEX: tuple[Column[Row], ...] = (
    *HORIZONTAL[:5],
    *((f"gap at {each} models", partial(_gap, of="counted", at=each)) for each in MODELS),
    ("at 100 rounds", partial(_gap, of="rounds", at=100)),
    ("rounds in all", lambda row: str(row["rounds"])),
)

MOMENTUM: tuple[Column[Row], ...] = (
    *HORIZONTAL[:5],
    ("gap at the end", lambda row: f"{1 - row['final_accuracy']:.1e}"),
)

HORIZONTAL_NOTES = (
    "to the target: rounds, and models (p numbers) a client of a round, as the paper",
    "counts and as bytes up and down; fewer: than fedavg, as counted and as bytes up",
)


def accuracy_curve(rows: Sequence[Row], over: Over) -> dict[str, Any]:
    """Test accuracy of every row's first run, over rounds or over models uploaded."""
    runs = {_name(row, rows): row["runs"][0] for row in rows}
    at = {name: dict(zip(run[over], run["accuracies"], strict=True)) for name, run in runs.items()}
    places = sorted({place for found in at.values() for place in found})
    return curve(
        f"{rows[0]['dataset']}, D = {rows[0]['dirichlet']:g}",
        LABELS[over],
        "test accuracy",
        places,
        {name: [found.get(each) for each in places] for name, found in at.items()},
        lines={"target": rows[0]["target_accuracy"]},
    )


def horizontal_page(result: Mapping[str, Any]) -> str:
    """The page of a run, from what its result file holds."""
    rows: Sequence[Row] = result["rows"]
    return rows_page(
        result,
        WITH_PAPERS,
        title="FedBCGD and others",
        lead=f"Medians of {rows[0]['repeats']} seeds. Curves are of the run with seed "
        f"{result['seed']}.",
        figures=[
            (f"{name}, D = {mix:g}: {LABELS[over]}", accuracy_curve(own, over))
            for (name, mix), own in grouped(rows, "dataset", "dirichlet").items()
            for over in LABELS
        ],
        heading="Every method",
        notes=HORIZONTAL_NOTES,
    )


def _name(row: Row, rows: Sequence[Row]) -> str:
    """What tells it apart from the others."""
    several = len({other["blocks"] for other in rows if other["method"] == row["method"]}) > 1
    return f"{row['method']}, b = {row['blocks']}" if several else row["method"]
