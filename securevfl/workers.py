"""One notion of a dead worker, for parties, processes of a pool and processes of Ray.

A worker is a process that somebody waits for. It may die silently: by a signal, for lack of memory,
with its machine, or by hanging. The waiting side then gets a `Gone` and stops the other workers.
"""

from collections.abc import Callable, Iterable, Iterator

SILENCE_SECONDS = 60.0
"""A worker that is silent for this long counts as dead, like one that a signal has stopped.

A thread of its process reports that it is alive, whatever the program computes. Only a call that
holds Python's interpreter lock for this long would be mistaken for a death.
"""
START_SECONDS = 60.0
"""The least time until a worker's first word, as a busy machine starts processes slowly."""


class Gone(Exception):
    """A worker died silently; the text says how."""


def reports_of(listen: Callable[[float], Iterable[str]], silence_seconds: float) -> Iterator[str]:
    """What a worker reports, as long as it lives.

    Args:
        listen: waits for the next reports, at most so many seconds, and then raises TimeoutError.
        silence_seconds: after which the worker counts as dead.

    Raises:
        Gone: the worker died.
    """
    seconds = max(silence_seconds, START_SECONDS)
    while True:
        try:
            yield from listen(seconds)
        except TimeoutError:
            raise Gone(f"silent for {seconds:g} s") from None
        seconds = silence_seconds
