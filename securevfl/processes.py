"""Independent tasks in several processes, each with one thread of linear algebra."""

import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import gethostname
from typing import Any, TypeVar

from securevfl.errors import DataError, SecureVFLError
from securevfl.threads import limit_threads
from securevfl.workers import Gone

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[str, float, float], None]
"""Called with what a task is doing, how much of it is done, and of how much."""
TellOf = Callable[[int, str, float, float], None]
OFTEN_SECONDS = 0.1
MOST_CHARACTERS = 200


@contextmanager
def in_processes(
    work: Callable[[T, Tell], R],
    tasks: Sequence[T],
    workers: int,
    what: str,
    *,
    progress: Callable[[int, str, float], None] = lambda task, what, done: None,
    costs: Sequence[float] | None = None,
    ray: str | None = None,
) -> Iterator[Iterator[tuple[int, R]]]:
    """Iterate over the tasks' results, each with its task's place, in the order in which they end.

    Args:
        work: a function of a task that other processes can import; it may report its progress.
        tasks: the function's arguments.
        workers: number of processes; 1 stays in this one.
        what: one word for all tasks together, for error messages.
        progress: called, while results are awaited, with a task's place, its report, and the share
            of all work that is done.
        costs: the tasks' relative costs; equal by default.
        ray: address of a Ray cluster to use instead. Its machines must see this machine's folder of
            temporary files; they report no progress within a task.

    Raises:
        SecureVFLError: the cluster is missing, a process was killed, or the disk is full.
    """
    costs = costs or [1.0] * len(tasks)
    done_of = [0.0] * len(tasks)

    def tell(place: int, what: str, done: float, total: float) -> None:
        done_of[place] = costs[place] * done / total
        progress(place, what, sum(done_of) / sum(costs))

    def ended(results: Iterator[tuple[int, R]]) -> Iterator[tuple[int, R]]:
        for place, result in results:
            yield place, result
            tell(place, "done", 1, 1)

    if workers == 1 and ray is None:
        yield ended((place, work(task, partial(tell, place))) for place, task in enumerate(tasks))
        return
    with _in_a_file(work) as path:
        pool = _pool(path, tasks, workers, what, tell) if ray is None else _on_ray(path, tasks, ray)
        try:
            with pool as results:
                yield ended(results)
        except Gone as gone:
            raise SecureVFLError(str(gone)) from gone


@contextmanager
def _in_a_file(work: Callable[[T, Tell], R]) -> Iterator[str]:
    """Work and its data in a file: a full pipe would block forever if its reader is killed."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "work"
        try:
            path.write_bytes(ForkingPickler.dumps(work))
        except OSError as error:
            raise DataError(f"work for processes: {path}: {error}") from error
        yield str(path)


@contextmanager
def _on_ray(path: str, tasks: Sequence[T], address: str) -> Iterator[Iterator[tuple[int, Any]]]:
    """Run in a Ray cluster, through which only tasks and results pass, not the work's data."""
    from securevfl.ray_cluster import as_they_end, cluster  # noqa: PLC0415  # an extra

    with cluster(address):
        yield as_they_end(_do_one, [(path, each) for each in tasks])


@contextmanager
def _pool(
    path: str, tasks: Sequence[T], workers: int, what: str, tell: TellOf
) -> Iterator[Iterator[tuple[int, Any]]]:
    """Run in processes of this machine, all of which are stopped if one dies or anything fails."""
    # Fresh interpreters: a fork would inherit the state of the libraries' threads.
    spawn = get_context("spawn")
    others = set(active_children())
    ours, theirs = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(theirs,))
    try:
        ended: SimpleQueue[Future[Any]] = SimpleQueue()
        with _ignoring_interrupts():
            places = {pool.submit(_do, path, task, n): n for n, task in enumerate(tasks)}
            for future in places:
                future.add_done_callback(ended.put)
        yield _as_they_end(places, ended, ours, tell)
    except BrokenProcessPool as error:
        raise Gone(
            f"a process of the {what} was killed, perhaps for lack of memory: try --workers 1"
        ) from error
    except BaseException:
        # An interrupt ends running tasks, too, and not only waiting ones.
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()
        theirs.close()


def _as_they_end(
    places: Mapping["Future[R]", int],
    ended: "SimpleQueue[Future[R]]",
    line: Connection,
    tell: TellOf,
) -> Iterator[tuple[int, R]]:
    """Yield results with their places, and pass on reports in between.

    `concurrent.futures.wait` would take the locks of all futures; an interrupt in between leaves
    one locked, and the pool never ends.
    """
    left = len(places)
    while left:
        future = None
        with suppress(Empty):
            future = ended.get(timeout=OFTEN_SECONDS)
        while line.poll():
            tell(*json.loads(line.recv_bytes()))
        if future is not None:
            left -= 1
            yield places[future], future.result()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that start within ignore interrupts: their parent ends them.

    An interrupt within their imports would print a traceback, or be swallowed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_lines: list[Connection] = []
"""In a process of a pool: the connection for progress reports."""


def _begin(line: Connection) -> None:
    _lines.append(line)


@lru_cache(maxsize=1)
def _work_at(path: str) -> Callable[[Any, Tell], Any]:
    """The work in a file, read once per process."""
    limit_threads(1)  # the processes use all cores already
    try:
        work: Callable[[Any, Tell], Any] = ForkingPickler.loads(Path(path).read_bytes())
    except OSError as error:
        raise DataError(
            f"work in the cluster: {path} on {gethostname()}: {error.strerror}; set TMPDIR to "
            "a folder that all machines see"
        ) from error
    return work


def _do_one(given: tuple[str, Any]) -> Any:  # noqa: ANN401
    path, task = given
    return _work_at(path)(task, lambda what, done, total: None)


def _do(path: str, task: object, place: int) -> Any:  # noqa: ANN401
    last = -OFTEN_SECONDS

    def tell(what: str, done: float, total: float) -> None:
        nonlocal last
        if time.monotonic() < last + OFTEN_SECONDS:
            return
        last = time.monotonic()
        # Short, as writes of several processes to a pipe are atomic up to 4096 bytes.
        _lines[0].send_bytes(json.dumps([place, what[:MOST_CHARACTERS], done, total]).encode())

    return _work_at(path)(task, tell)
