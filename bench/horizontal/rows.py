"""Result rows of a comparison of horizontal methods, their tables and their page."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from securevfl.reports.page import rows_page
from securevfl.reports.tables import Column, rate, seconds
from securevfl.shown import curve

Over = Literal["uploaded", "rounds"]
LABELS: Mapping[Over, str] = {"uploaded": "models uploaded a client", "rounds": "rounds"}


class HorizontalRun(TypedDict):
    """One run, scored on the test images after some rounds; costs are those until then.

    `counted` and `uploaded` are in models (p numbers) a client that takes part, the former as the
    FedBCGD paper counts, the latter as the bytes of float32 that were sent; `downloaded` as bytes,
    `gradients` in passes over a client's rows. One that diverged has no scorings.
    """

    seed: int
    rounds: list[int]
    accuracies: list[float]
    counted: list[float]
    uploaded: list[float]
    downloaded: list[float]
    gradients: list[float]
    diverged: bool
    wall_s: float
    parameters: int
    shared_parameters: int


class HorizontalRow(TypedDict):
    """One method on one split of one set of images.

    Figures to the target are medians, None where fewer than half of the runs reached it;
    `fewer_counted` and `fewer_uploaded` say how many times less that is than FedAvg's, and
    `paper_fewer` what the paper's tables say of its own runs.
    `final_accuracy` is the median of each run's mean over its last scorings.
    """

    dataset: str
    dirichlet: float
    method: str
    blocks: int
    cut: str
    parameters: int
    shared_share: float
    learning_rate: float
    learning_rate_chosen: str
    target_accuracy: float
    reached: int
    rounds_to_target: float | None
    counted_to_target: float | None
    uploaded_to_target: float | None
    downloaded_to_target: float | None
    gradients_to_target: float | None
    fewer_counted: float | None
    fewer_uploaded: float | None
    paper_fewer: float | None
    final_accuracy: float
    final_spread: float
    rounds: int
    counted: float
    uploaded: float
    wall_s_per_round: float
    repeats: int
    runs: Sequence[HorizontalRun]


def _models(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def _rounds(row: HorizontalRow) -> str:
    reached = row["rounds_to_target"]
    mark = "" if row["reached"] == row["repeats"] else f" ({row['reached']} of {row['repeats']})"
    return f"- {mark}".strip() if reached is None else f"{reached:g}{mark}"


def _final(row: HorizontalRow) -> str:
    spread = f" ±{100 * row['final_spread']:.1f}" if row["repeats"] > 1 else ""
    return f"{100 * row['final_accuracy']:.1f}{spread}"


HORIZONTAL: tuple[Column[HorizontalRow], ...] = (
    ("method", lambda row: row["method"]),
    ("b", lambda row: str(row["blocks"])),
    ("η0", lambda row: rate(row["learning_rate"])),
    ("rounds", _rounds),
    ("counted", lambda row: _models(row["counted_to_target"])),
    ("fewer", lambda row: _times(row["fewer_counted"])),
    ("up", lambda row: _models(row["uploaded_to_target"])),
    ("fewer", lambda row: _times(row["fewer_uploaded"])),
    ("down", lambda row: _models(row["downloaded_to_target"])),
    ("final %", _final),
)

WITH_PAPERS: tuple[Column[HorizontalRow], ...] = (
    ("data", lambda row: f"{row['dataset']}, D = {row['dirichlet']:g}"),
    *HORIZONTAL[:6],
    ("paper's", lambda row: _times(row["paper_fewer"])),
    *HORIZONTAL[6:],
)

COSTS: tuple[Column[HorizontalRow], ...] = (
    ("data", lambda row: f"{row['dataset']}, D = {row['dirichlet']:g}"),
    *HORIZONTAL[:2],
    ("rounds in all", lambda row: str(row["rounds"])),
    ("counted", lambda row: _models(row["counted"])),
    ("up", lambda row: _models(row["uploaded"])),
    ("passes to the target", lambda row: _models(row["gradients_to_target"])),
    ("wall a round", lambda row: seconds(row["wall_s_per_round"])),
    ("seeds", lambda row: str(row["repeats"])),
)

HORIZONTAL_NOTES = (
    "to the target: rounds, and models (p numbers) a client of a round, as the paper",
    "counts and as bytes up and down; fewer: than fedavg, as counted and as bytes up",
)


def accuracy_curve(rows: Sequence[HorizontalRow], over: Over) -> dict[str, Any]:
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
    rows: Sequence[HorizontalRow] = result["rows"]
    cells = dict.fromkeys((row["dataset"], row["dirichlet"]) for row in rows)
    of_cells = {
        cell: [row for row in rows if (row["dataset"], row["dirichlet"]) == cell] for cell in cells
    }
    return rows_page(
        result,
        WITH_PAPERS,
        title="FedBCGD and others",
        lead=f"Medians of {rows[0]['repeats']} seeds. Curves are of the run with seed "
        f"{result['seed']}.",
        figures=[
            (f"{name}, D = {mix:g}: {LABELS[over]}", accuracy_curve(own, over))
            for (name, mix), own in of_cells.items()
            for over in LABELS
        ],
        heading="Every method",
        notes=HORIZONTAL_NOTES,
    )


def _name(row: HorizontalRow, rows: Sequence[HorizontalRow]) -> str:
    """What tells it apart from the others."""
    several = len({other["blocks"] for other in rows if other["method"] == row["method"]}) > 1
    return f"{row['method']}, b = {row['blocks']}" if several else row["method"]
