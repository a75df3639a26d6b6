"""Scores as a file, and what is to be told of them."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError
from securevfl.files import replace_file
from securevfl.reports.privacy import epsilon_text
from securevfl.reports.rows import PredictRow

SUFFIXES = (".csv", ".parquet")


def require_suffix(path: Path) -> None:
    """Check that a scores file is of a kind that can be written.

    Raises:
        ConfigError: another suffix.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out {path}: expected .csv, .parquet, or - for standard output")


def scores_as_csv(columns: Mapping[str, Any]) -> bytes:
    """Scores as CSV, with every digit that they have."""
    import polars as pl  # noqa: PLC0415  # slow to import

    text = io.BytesIO()
    pl.DataFrame(dict(columns)).write_csv(text)
    return text.getvalue()


def write_scores(path: Path, columns: Mapping[str, Any]) -> None:
    """Write scores in one step, as the suffix says.

    Raises:
        DataError: the file cannot be written.
    """
    if path.suffix.lower() == ".csv":
        data = scores_as_csv(columns)
    else:
        import polars as pl  # noqa: PLC0415  # slow to import

        file = io.BytesIO()
        pl.DataFrame(dict(columns)).write_parquet(file)
        data = file.getvalue()
    replace_file(path, data, "scores file")


def left_out(dropped: Mapping[str, int]) -> str | None:
    """Rows without a partner, in a line; None where every row has one."""
    told = [f"{count} of {name}" for name, count in dropped.items() if count]
    return f"rows without a partner are not scored: {', '.join(told)}" if told else None


def predict_notes(row: PredictRow, class_names: Sequence[str]) -> list[str]:
    """What a reader of scores has to know, a line each."""
    notes = [_told(row)]
    if len(class_names) == 2:  # noqa: PLR2004
        notes.insert(0, f"probability: of class {class_names[1]!r}, not {class_names[0]!r}")
    if row["trained_on"]:
        notes.append(
            f"{row['trained_on']:,} of these rows are those that the model was trained on: how "
            "well it scores them says nothing of new ones"
        )
    for party, columns in row["unused_columns"].items():
        if columns:
            notes.append(f"{party}: columns that the model does not take: {', '.join(columns)}")
    release = row["release"]
    if release is not None:
        notes.append(
            f"one release of each row: epsilon {epsilon_text(release['epsilon'])} at delta = "
            f"{release['delta']:g} ({release['mechanism']}, z = {release['noise_multiplier']:.4g}, "
            f"clip = {release['clip']:g}), to which other releases of the same rows add"
        )
        notes.append(release["noise"])
    if row["same_job"] is False:
        notes.append(f"trained in another job than this file describes: {row['job_hash'][:16]}")
    return notes


def _told(row: PredictRow) -> str:
    """What the label party learned beside the scores."""
    if row["release"] is not None:
        return "the label party saw the others' parts of each score clipped, with noise"
    if row["parties"] == 2:  # noqa: PLR2004
        return (
            "between two parties a score tells the label party the other's part of it, whatever "
            "the exchange: it was sent in clear"
        )
    if row["shown"] == "summed":
        return "the label party saw the sum of the others' parts of each score, and no single one"
    return "the label party saw every other party's part of each score"
