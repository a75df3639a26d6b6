"""How a worker dies: an actor, a process on Ray or one of a pool, all in the same way.

A worker is a process that somebody waits for. It may end without a word: by a signal, for lack of
memory, with its machine, or by silence. Whoever waits then gets one error, `Gone`, and stops the
other workers. `stop` ends a worker, whatever it does, and returns when it is gone.
"""

from collections.abc import Callable, Iterable, Iterator

SILENCE_SECONDS = 60.0
"""A worker that has said nothing for so long is gone, as one that was stopped by a signal is.

A thread of its process says that it is alive, whatever the program computes; only a call that keeps
Python's interpreter to itself for so long would be taken for a death.
"""
START_SECONDS = 60.0
"""At least so long it has until its first word, as a busy machine starts processes slowly."""


class Gone(Exception):
    """A worker is gone without a word; the text says how."""


def heard(listen: Callable[[float], Iterable[str]], silence_seconds: float) -> Iterator[str]:
    """What a worker says, as long as it lives.

    Args:
        listen: waits so many seconds at most for what it says next; a TimeoutError where that is
            nothing.
        silence_seconds: after which it is gone.

    Raises:
        Gone: it is.
    """
    seconds = max(silence_seconds, START_SECONDS)
    while True:
        try:
            yield from listen(seconds)
        except TimeoutError:
            raise Gone(f"silent for {seconds:g} s") from None
        seconds = silence_seconds
