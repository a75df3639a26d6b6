"""Independent pieces of work over processes, each with one thread of linear algebra."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

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
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_one_thread)
    try:
        yield pool.map(work, tasks)
    except BrokenProcessPool as error:
        raise SecureVFLError(
            f"a process of the {what} was killed, for lack of memory perhaps: try --workers 1"
        ) from error
    finally:
        # An interrupt ends with what runs now, not with all that was planned.
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    """Processes are the parallelism: threads of linear algebra beside them only contend.

    An interrupt reaches the whole group, and ends a process of it at once.
    """
    threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
