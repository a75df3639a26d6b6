"""What runs now, on one line that is written over: in a terminal and in a notebook alike."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN = 0.2


@contextmanager
def line_of_progress(shown: bool) -> Iterator[Callable[[str], None]]:
    """What to tell of how far a work is; the last word stays.

    Args:
        shown: whether to write anything, to stderr.
    """
    written, last = 0.0, ""

    def tell(text: str) -> None:
        nonlocal written, last
        last = text
        if shown and time.monotonic() - written >= SECONDS_BETWEEN:
            written = time.monotonic()
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    yield tell
    if shown and last:
        sys.stderr.write(f"\r{last}\n")
