"""Independent pieces of work over processes, each with one thread of linear algebra."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from securevfl.errors import SecureVFLError

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def in_processes(
    work: Callable[[T], R], tasks: Sequence[T], workers: int, what: str
) -> Iterator[Iterator[R]]:
    """What every task gives, in order, as it is there.

    Args:
        work: what to do, a function that other processes can import.
        tasks: its arguments.
        workers: processes; 1 works in this one.
        what: the whole of it in a word, for messages.

    Raises:
        SecureVFLError: a process was killed.
    """
    if workers == 1:
        yield map(work, tasks)
        return
    # A fresh interpreter each: a fork would share the threads' state of the libraries.
    spawn = get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(work,))
    try:
        yield pool.map(_do, tasks)
    except BrokenProcessPool as error:
        raise SecureVFLError(
            f"a process of the {what} was killed, for lack of memory perhaps: try --workers 1"
        ) from error
    finally:
        # An interrupt ends with what runs now, not with all that was planned.
        pool.shutdown(cancel_futures=True)


_given: list[Callable[[Any], Any]] = []


def _begin(work: Callable[[Any], Any]) -> None:
    """What a process does, once: data that come with the work are not sent again with each task.

    A queue full of data would also block for ever when a process that reads it is killed.
    Processes are the parallelism: threads of linear algebra beside them only contend. An interrupt
    reaches the whole group, and ends a process of it at once.
    """
    _given.append(work)
    threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _do(task: object) -> Any:  # noqa: ANN401
    return _given[0](task)
