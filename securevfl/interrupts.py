"""Interrupts: the first ends work and keeps what is done, the second ends the process at once."""

import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT


class Interrupted(KeyboardInterrupt):
    """An interrupt of long work, with the rows done so far and lines about the missing ones."""

    def __init__(self, rows: Sequence[Any], missing: Sequence[str]) -> None:
        super().__init__(*missing)
        self.rows = list(rows)
        self.missing = tuple(missing)


def leave_at_the_next() -> None:
    """From now on an interrupt ends the process at once."""
    signal.signal(signal.SIGINT, leave)


def leave(_number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """End the process at once with the status of an interrupt."""
    # Exit handlers could be interrupted too, and there is nothing left to finish.
    os.write(2, b"securevfl: interrupted\n")
    os._exit(INTERRUPTED)
