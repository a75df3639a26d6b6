"""Tasks of actors that do nothing of their own."""

from pathlib import Path
from typing import Any

from securevfl.actors.task import ActorTask


def task_of(party: str, folder: Path | None = None, **changes: Any) -> ActorTask:  # noqa: ANN401
    """A party's, which works in a folder, but for what is given."""
    place = "" if folder is None else str(folder)
    usual = {
        **{"name": party, "job": {}, "job_hash": "00", "names": (party,)},
        **{"work": place, "output": "", "beside": "", "data_dir": "", "guard_directory": ""},
        **{"resume_rounds": None, "listen": "unix:there"},
    }
    return ActorTask(**{**usual, **changes})
