"""Independent pieces of work over processes, each with one thread of linear algebra."""

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from securevfl.errors import DataError, SecureVFLError

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
        DataError: no room for what they work on.
    """
    if workers == 1:
        yield map(work, tasks)
        return
    # A fresh interpreter each: a fork would share the threads' state of the libraries.
    spawn = get_context("spawn")
    others = set(active_children())
    with tempfile.TemporaryDirectory() as directory:
        # By way of a file: a pipe full of data blocks for ever when its reader is killed.
        path = Path(directory) / "work"
        try:
            path.write_bytes(ForkingPickler.dumps(work))
        except OSError as error:
            raise DataError(f"work for processes: {path}: {error}") from error
        pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(path,))
        try:
            with _ignoring_interrupts():
                results = pool.map(_do, tasks)
            yield results
        except BrokenProcessPool as error:
            raise SecureVFLError(
                f"a process of the {what} was killed, for lack of memory perhaps: try --workers 1"
            ) from error
        except BaseException:
            # An interrupt ends what runs now, and not only what was planned.
            for process in set(active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that start here never hear of one: who started them ends them.

    An interrupt within their imports would be a traceback, or be swallowed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_given: list[Callable[[Any], Any]] = []


def _begin(path: Path) -> None:
    """What a process does once, before its tasks.

    Processes are the parallelism: threads of linear algebra beside them only contend.
    """
    threadpool_limits(1)
    _given.append(ForkingPickler.loads(path.read_bytes()))


def _do(task: object) -> Any:  # noqa: ANN401
    return _given[0](task)
