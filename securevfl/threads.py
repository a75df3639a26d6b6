"""Work cut into blocks of fixed sizes, spread over this process's cores.

Results come back in the order of the blocks and depend on the blocks alone, as BLAS has one thread
meanwhile. So sums over them are equal to the byte for any number of threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import cache, lru_cache
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController, threadpool_limits

T = TypeVar("T")


class _Setting:
    """How many threads this process takes, and how many runs rely on it now."""

    def __init__(self) -> None:
        self.lock, self.runs, self.blas = Lock(), 0, ExitStack()
        self.most: int | None = None
        self.wanted: int | None = None

    @property
    def threads(self) -> int:
        if not self.runs:  # BLAS may have several
            return 1
        wanted = self.wanted or cores()
        return wanted if self.most is None else min(wanted, self.most)


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


_SETTING = _Setting()


def limit_threads(most: int) -> None:
    """Take at most so many threads in this process from now on, for networks too."""
    threadpool_limits(most)
    _SETTING.most = most


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # takes longer than a round of a small job


@contextmanager
def spread_over(workers: int | None) -> Iterator[None]:
    """Spread work over at most so many threads, by default one a core; BLAS has one.

    The limits end with the last of several runs in one process.
    """
    with _SETTING.lock:
        if not _SETTING.runs:
            _SETTING.blas.enter_context(_libraries().limit(limits=1, user_api="blas"))
        _SETTING.runs, _SETTING.wanted = _SETTING.runs + 1, workers
    try:
        yield
    finally:
        with _SETTING.lock:
            _SETTING.runs -= 1
            if not _SETTING.runs:
                _SETTING.wanted = None
                _SETTING.blas.close()


def by_block(work: Callable[[slice], T], rows: int, block: int) -> list[T]:
    """What `work` returns for each block of rows, in order."""
    blocks = [slice(at, min(at + block, rows)) for at in range(0, rows, block)]
    most = _SETTING.threads
    threads = min(most, len(blocks))
    if threads <= 1:
        return [work(each) for each in blocks]
    found: dict[int, T] = {}
    left = iter(enumerate(blocks))

    def share() -> None:
        try:
            for place, each in left:
                found[place] = work(each)
        finally:
            deque(left, 0)  # after an error nobody takes another block

    # NumPy's handling of errors is part of the context.
    pool = _pool(os.getpid(), most)  # for few blocks too, or threads would begin anew each time
    others = [pool.submit(copy_context().run, share) for _ in range(threads - 1)]
    try:
        share()
    finally:
        # Threads that have not begun have nothing left to do.
        others = [each for each in others if not each.cancel()]
        wait(others)
    for each in others:
        each.result()
    # A thread that was not needed may still hold `found`.
    return [found.pop(place) for place in range(len(blocks))]


def sum_by_block(
    work: Callable[[slice], NDArray[np.float64]], rows: int, block: int
) -> NDArray[np.float64]:
    """The sum of what `work` returns for each block, in order; one a thread is kept meanwhile."""
    total, together = np.zeros(()), block * _SETTING.threads
    for first in range(0, rows, together):

        def shifted(each: slice, first: int = first) -> NDArray[np.float64]:
            return work(slice(first + each.start, first + each.stop))

        for found in by_block(shifted, min(together, rows - first), block):
            total = np.add(total, found, out=total if total.ndim else found)
    return total


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads beside the calling one; a forked process has none of its parent's."""
    del process
    return ThreadPoolExecutor(threads - 1, "block")
