"""How an interrupt ends work: with what was done before it, and at once where it comes again."""

import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT


class Interrupted(KeyboardInterrupt):
    """An interrupt of long work: rows that were done before it, and lines on what was not."""

    def __init__(self, rows: Sequence[Any], missing: Sequence[str]) -> None:
        super().__init__(*missing)
        self.rows = list(rows)
        self.missing = tuple(missing)


def leave_at_the_next() -> None:
    """From now on an interrupt ends the process at once."""
    signal.signal(signal.SIGINT, leave)


def leave(_number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """End the process at once, as interrupted."""
    # No exit handlers: they could be interrupted, too, and there is nothing to finish.
    os.write(2, b"securevfl: interrupted\n")
    os._exit(INTERRUPTED)
