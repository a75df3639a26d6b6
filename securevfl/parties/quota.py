"""How many scores a day a party gives away, over all its jobs.

A score counts once a day, however often an interruption repeats it. The quota bounds how many
people a day a label party learns something of; what several scores tell together of one person is
the feature guard's affair.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from securevfl.errors import FeatureLeakRefused
from securevfl.files import only_one, read_arrays, reading, replace_file
from securevfl.protocols.guards.people import Digests, united

NAME, _RECORD = "scored.safetensors", "record of scored rows"
_DAY, _MARKS = "day", "marks"


def count_scores(state: Path, most: int, marks: Digests) -> None:
    """Count scores of today (UTC), before they are given away.

    Args:
        state: this party's folder.
        most: as its policy says.
        marks: by which a score is known again, shape (scores,).

    Raises:
        FeatureLeakRefused: there would be too many; none of these is counted.
        DataError: the record cannot be read or written.
    """
    path, today = state / NAME, f"{datetime.now(UTC):%Y-%m-%d}"
    with only_one(path, _RECORD):
        before = _counted(path, today)
        after = united(before, marks)
        if len(after) > most:
            raise FeatureLeakRefused(
                f"{len(before)} rows were scored today (UTC) and {len(after) - len(before)} more "
                f"would be, at most {most} a day (policy.scores_per_day)"
            )
        replace_file(path, save({_MARKS: after}, {_DAY: today}), _RECORD)


def _counted(path: Path, today: str) -> Digests:
    if not path.exists():
        return np.zeros(0, np.uint64)
    with reading(f"{_RECORD} {path}"):
        header, arrays = read_arrays(path)
        return arrays[_MARKS] if header[_DAY] == today else np.zeros(0, np.uint64)
