"""What `securevfl predict` reports of rows that were scored: their file, a row, a table, notes."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securevfl.reports.rows import (
    CalibrationFigures,
    CostFigures,
    calibration_figures,
    cost_figures,
)
from securevfl.reports.tables import COSTS, OF_TARGETS, Column, epsilon_text, interval_notes, share

if TYPE_CHECKING:
    from securevfl.models.ranking import Cutoff, Ranking
    from securevfl.models.storage import SavedModel
    from securevfl.scoring.outputs import Metrics
    from securevfl.scoring.running import Scored
    from securevfl.scoring.sources import RowsToScore


FORMULA = re.compile(r"[=@]|[+-](?![\d. ]*$)")


class PredictRow(CostFigures, CalibrationFigures):
    """Rows that were scored; `shown`: how the label party saw the others' predictions.

    Metrics and cut-offs are of the `labelled` rows, whose label the label party's file has and that
    the model was not trained on; metrics of all with a label if there are no others. AUC, accuracy,
    ranking and calibration are of classes, R², RMSE and MAE of real targets, in their units. The
    job hash is of the job that the model was trained in, `same_job` whether it is this one.
    `importance` is that of columns, where contributions were `explained` in a file.
    """

    exchange: str
    hide: str | None
    shown: str
    parties: int
    rows: int
    classes: int
    origin: str
    trained_on: int
    dropped_rows: Mapping[str, int]
    unused_columns: Mapping[str, Sequence[str]]
    labelled: int
    auc: float | None
    accuracy: float | None
    ranking: "Ranking | None"
    cutoffs: "Sequence[Cutoff]"
    r2: float | None
    rmse: float | None
    mae: float | None
    release: Mapping[str, Any] | None
    job_hash: str
    same_job: bool | None
    model_rounds: int
    out: str
    explained: str | None
    importance: Sequence[Mapping[str, Any]]
    wall_s: float


def _figure(value: float | None, digits: str = ".4g") -> str:
    return "-" if value is None else f"{value:{digits}}"


SCORED: tuple[Column[PredictRow], ...] = (
    ("exchange", lambda row: f"{row['exchange']} both" if row["hide"] else row["exchange"]),
    ("K", lambda row: str(row["parties"])),
    ("rows", lambda row: f"{row['rows']:,}"),
)
CLASSES: tuple[Column[PredictRow], ...] = (
    ("AUC", lambda row: share(row["auc"])),
    ("accuracy", lambda row: share(row["accuracy"])),
    ("Brier", lambda row: share(row["brier"])),
)
TARGETS: tuple[Column[PredictRow], ...] = (
    *OF_TARGETS,
    ("MAE", lambda row: _figure(row["mae"])),
)
IMPORTANCE: tuple[Column[Mapping[str, Any]], ...] = (
    ("column", lambda row: row["column"]),
    ("mean |contribution|", lambda row: _figure(row["mean"])),
    ("95 % interval", lambda row: " to ".join(map(_figure, row["interval"] or (None,)))),
)


def columns_of(row: PredictRow) -> tuple[Column[PredictRow], ...]:
    """The columns of a table of one scoring; metrics only where rows have labels."""
    if not row["labelled"]:
        return (*SCORED, *COSTS)
    return (*SCORED, *(CLASSES if row["classes"] else TARGETS), *COSTS)


def predict_row(
    scored: "Scored",
    found: "RowsToScore",
    parts: "dict[str, SavedModel]",
    quality: "Metrics",
    out: Path,
) -> PredictRow:
    """What a finished scoring reports."""
    from securevfl.scoring.running import trained_in  # noqa: PLC0415  # slow to import

    plan = scored.plan
    header = parts[plan.label_party].header
    exchange = plan.job.exchange
    return {
        "exchange": exchange.scheme,
        "hide": exchange.hide if exchange.hide == "both" else None,
        "shown": plan.shown,
        "parties": len(plan.names),
        "rows": len(found.ids),
        "classes": header.classes,
        "origin": found.origin,
        "trained_on": found.trained_on,
        "dropped_rows": dict(found.dropped),
        "unused_columns": dict(found.unused),
        "labelled": quality.rows,
        "auc": quality.auc,
        "accuracy": quality.accuracy,
        "ranking": quality.ranking,
        "cutoffs": [],
        **calibration_figures(quality.calibration),
        "r2": quality.r2,
        "rmse": quality.rmse,
        "mae": quality.mae,
        **cost_figures(scored.costs),
        "release": None if scored.release is None else asdict(scored.release),
        "job_hash": header.job_hash,
        "same_job": trained_in(plan, parts[plan.label_party]),
        "model_rounds": header.rounds,
        "out": str(out),
        "explained": None,
        "importance": [],
        "wall_s": scored.wall_s,
    }


def scores_as(suffix: str, columns: Mapping[str, Any]) -> bytes:
    """A file of scores, .csv (with every digit that they have) or .parquet."""
    import polars as pl  # noqa: PLC0415  # slow to import

    table, file = pl.DataFrame(dict(columns)), io.BytesIO()
    if suffix == ".csv":
        table.write_csv(file)
    else:
        table.write_parquet(file)
    return file.getvalue()


def warnings(
    dropped: Mapping[str, int], unknown: Mapping[str, Mapping[str, int]], ids: Iterable[str] = ()
) -> Iterator[str]:
    """Notes about rows that are printed even with --quiet, a line each.

    Rows without a partner by party; by party and column, values that training rows did not have, or
    few of them; `ids` of a CSV file that a spreadsheet would execute.
    """
    if (formula := next(filter(FORMULA.match, ids), None)) is not None:
        yield f"ids such as {formula!r} are formulas to a spreadsheet: open the file as text"
    for name, columns in unknown.items():
        counts = ", ".join(f"{count} of {column!r}" for column, count in columns.items())
        if counts:
            yield f"{name}: values that were absent or rare in training: {counts}"
    if counts := ", ".join(f"{count} of {name}" for name, count in dropped.items() if count):
        yield f"rows that not every party has are not scored: {counts}"


def predict_notes(row: PredictRow, class_names: Sequence[str]) -> list[str]:
    """What a reader of scores has to know, a line each."""
    notes = [_calibration_note(row), *_ranking_notes(row)]
    if len(class_names) == 2:  # noqa: PLR2004
        notes.insert(0, f"probability: of class {class_names[1]!r}, not {class_names[0]!r}")
    if row["trained_on"]:
        notes.append(
            f"the model was trained on {row['trained_on']:,} of these rows: its scores on them say "
            "nothing about new rows"
        )
    if 0 < row["labelled"] < row["rows"]:
        new = " and that the model was not trained on" if row["trained_on"] else ""
        notes.append(f"metrics cover the {row['labelled']:,} rows that have a label{new}")
    for party, columns in row["unused_columns"].items():
        if columns:
            notes.append(f"{party}: columns that the model does not use: {', '.join(columns)}")
    release = row["release"]
    if release is not None:
        notes.append(
            f"one release per row: epsilon {epsilon_text(release['epsilon'])} at delta = "
            f"{release['delta']:g} ({release['mechanism']}, z = {release['noise_multiplier']:.4g}, "
            f"clip = {release['clip']:g}); other releases of the same rows add to it"
        )
        notes.append(release["noise"])
    if row["same_job"] is False:
        notes.append(f"the model of --models is of another job: {row['job_hash'][:16]}")
    return notes


def _ranking_notes(row: PredictRow) -> Iterator[str]:
    if (ranking := row["ranking"]) is not None:
        yield f"average precision {ranking['average_precision']:.4f}"
    yield from interval_notes(row)
    for each in row["cutoffs"]:
        cost = "" if each["cost"] is None else f", cost {each['cost']:.4g} a row"
        yield (
            f"cut-off {_figure(each['cutoff'], '')} ({each['rule']}): {each['flagged']:.1%} of "
            f"{each['rows']:,} rows flagged, precision {_figure(each['precision'])}, recall "
            f"{each['recall']:.4g}{cost}"
        )
    if row["cutoffs"]:
        yield (
            "a row is flagged from its cut-off on, none at '-'; the class in the scores is still "
            "the more probable one. These rows chose the cut-off, so it looks better on them than "
            "on others: confirm it on rows that had no part in it"
        )


def _calibration_note(row: PredictRow) -> str:
    """What the label party learned beside the scores."""
    if row["release"] is not None:
        return "the label party saw the others' parts of each score clipped, with noise"
    if row["parties"] == 2:  # noqa: PLR2004
        return (
            "with two parties, each score tells the label party the other party's part of it under "
            "any exchange, so it was sent in clear"
        )
    if row["shown"] == "summed":
        return "the label party saw only the sum of the others' parts of each score"
    return "the label party saw every other party's part of each score"
