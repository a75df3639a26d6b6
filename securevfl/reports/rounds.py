"""`bench rounds` as a page: training loss and AUC against rounds, beside the table."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from securevfl.reports.benchmarks import ROUNDS, RoundsRow
from securevfl.reports.page import rows_page
from securevfl.reports.tables import grouped, target_notes
from securevfl.shown import curve

Figure = Literal["training_loss", "auc"]
LABELS: Mapping[Figure, str] = {"training_loss": "training loss", "auc": "held-out AUC"}


def rounds_curve(rows: Sequence[RoundsRow], figure: Figure) -> dict[str, Any]:
    """One figure of the first run of every row, by rounds."""
    runs = {_name(row, rows): row["runs"][0]["curve"] for row in rows}
    rounds = sorted({point["rounds"] for points in runs.values() for point in points})
    values = {
        name: {point["rounds"]: point[figure] for point in points} for name, points in runs.items()
    }
    first = rows[0]
    return curve(
        f"{first['dataset']}, K = {first['parties']}",
        "rounds",
        LABELS[figure],
        rounds,
        {name: [found.get(each) for each in rounds] for name, found in values.items()},
        lines={"target": first["target_auc"]} if figure == "auc" else None,
    )


def rounds_page(result: Mapping[str, Any]) -> str:
    """The page of a run of `bench rounds`, from what its JSON holds."""
    rows: Sequence[RoundsRow] = result["rows"]
    first = rows[0]
    return rows_page(
        result,
        ROUNDS,
        title=f"Rounds on {first['dataset']}",
        lead=f"Rounds to a held-out AUC of {first['target_auc']:g} in clear, S = "
        f"{first['batch_size']}, medians of {first['repeats']}. Curves are of the run with "
        f"seed {result['seed']}: the loss is the mean over the rounds since the point before, of "
        "each round's batch as it was exchanged.",
        figures=[
            (f"K = {own[0]['parties']}: {LABELS[figure]}", rounds_curve(own, figure))
            for own in grouped(rows, "parties").values()
            for figure in LABELS
        ],
        heading="Every setting",
        notes=target_notes(rows),
    )


def _name(row: RoundsRow, rows: Sequence[RoundsRow]) -> str:
    """What tells it apart from the others."""
    parts = [f"Q = {row['local_steps']}"]
    if len({other["algorithm"] for other in rows}) > 1:
        parts.insert(0, row["algorithm"])
    if len({other["proximal"] for other in rows}) > 1:
        parts.append(f"μ = {row['proximal']:g}")
    return ", ".join(parts)
