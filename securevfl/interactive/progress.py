"""Rounds done, on one line that is written over: in a terminal and in a notebook alike."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN = 0.2


@contextmanager
def rounds_done(shown: bool, rounds: int) -> Iterator[Callable[[int], None] | None]:
    """What to tell of rounds done, or None if nothing is to be shown.

    Args:
        shown: whether to write anything, to stderr.
        rounds: R, at most.
    """
    if not shown:
        yield None
        return
    last, told = 0.0, ""

    def tell(done: int) -> None:
        nonlocal last, told
        told = f"round {done} of at most {rounds}"
        if time.monotonic() - last >= SECONDS_BETWEEN:
            last = time.monotonic()
            sys.stderr.write(f"\r{told}")
            sys.stderr.flush()

    yield tell
    sys.stderr.write(f"\r{told}\n")
