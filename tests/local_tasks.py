"""Tasks of parties that do nothing of their own."""

from pathlib import Path
from typing import Any

from securevfl.parties.task import Task


def task_of(party: str, folder: Path | None = None, **changes: Any) -> Task:  # noqa: ANN401
    """A party's, which works in a folder, but for what is given."""
    place = "" if folder is None else str(folder)
    usual = {
        **{"name": party, "job": {}, "job_hash": "00", "identities": {party: 64 * "0"}},
        **{"label_party": party, "by_digest": False, "beside": "", "data_dir": "", "work": place},
        **{"output": "", "addresses": {party: "unix:there"}, "guard_directory": ""},
    }
    return Task(**{**usual, **changes})
