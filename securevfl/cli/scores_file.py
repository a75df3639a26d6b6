"""Where scores of new rows go: a file, or standard output."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.scoring.outputs import Columns

STANDARD_OUTPUT, LEAST_BYTES = Path("-"), 10_000


def check_out(
    out: Path | None, json: Path | None = None, *, explain: Path | None = None, force: bool
) -> None:
    """Refuse places where scores, reasons and their row cannot go, before any work."""
    from securevfl.files import require_room

    to_files = [path for path in (out, explain, json) if path not in (None, STANDARD_OUTPUT)]
    require_room({path: LEAST_BYTES for path in to_files if path is not None}, "result folder")
    if explain is not None and explain == out:
        raise ConfigError(f"--explain {explain}: scores go there; name another file")
    for option, path in (("--out", out), ("--explain", explain)):
        if path is None or (path == STANDARD_OUTPUT and option == "--out"):
            continue
        if path.suffix.lower() not in (".csv", ".parquet"):
            known = (
                ".csv, .parquet, or - for standard output" if path == out else ".csv or .parquet"
            )
            raise ConfigError(f"{option} {path}: expected {known}")
        if path.exists() and not force:
            raise ConfigError(f"{option} {path} exists: name another file, or give --force")


def write_scores(out: Path, columns: "Columns") -> None:
    """Write a file of scores, or print it."""
    from securevfl.files import replace_file
    from securevfl.reports.predictions import scores_as

    if out == STANDARD_OUTPUT:
        sys.stdout.buffer.write(scores_as(".csv", columns))
        sys.stdout.flush()
    else:
        replace_file(out, scores_as(out.suffix.lower(), columns), "scores file")
