"""What an unfinished benchmark has done, so that the same command goes on from there."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from securevfl.errors import DataError


class Journal:
    """One line a finished piece of work, kept until all are done.

    Args:
        directory: where journals are.
        work: what is to be done, as JSON takes it; another work has another journal.
    """

    def __init__(self, directory: Path, work: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()
        self._path = directory / f"{digest[:32]}.jsonl"

    def done(self) -> dict[str, Any]:
        """What was done before, by task; a line that was cut off counts for nothing.

        Raises:
            DataError: there is a journal that cannot be read.
        """
        found: dict[str, Any] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return found
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"journal {self._path}: {error}") from error
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found[entry["task"]] = entry["result"]
        return found

    def add(self, task: str, result: Any) -> None:  # noqa: ANN401
        """Note what a task gave, at once.

        Raises:
            DataError: it cannot be written.
        """
        line = json.dumps({"task": task, "result": result}, allow_nan=False)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # A line that an interrupt cut off must not swallow this one.
                file.write(f"\n{line}\n")
        except OSError as error:
            raise DataError(f"journal {self._path}: {error}") from error

    def forget(self) -> None:
        """All is done."""
        self._path.unlink(missing_ok=True)
