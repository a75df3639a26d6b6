import os
import signal
import warnings
import weakref
from concurrent.futures import wait
from contextlib import ExitStack
from threading import Event, current_thread, main_thread
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from securevfl import threads
from securevfl.arrays import FloatArray
from securevfl.threads import by_block, spread_over, sum_by_block


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a party's process may have limited this one."""
    monkeypatch.setattr(threads._SETTING, "most", None)


def blas_threads() -> set[int]:
    found = threads._libraries().info()
    return {each["num_threads"] for each in found if each["user_api"] == "blas"}


def test_results_come_in_the_order_of_the_blocks_whichever_ends_first() -> None:
    second = Event()

    def work(rows: slice) -> int:
        if rows.start == 0:
            assert second.wait(60)
        else:
            second.set()
        return int(rows.start)

    with spread_over(2):
        assert by_block(work, 25, 10) == [0, 10, 20]


@pytest.mark.parametrize(("counted", "cores"), [(3, 3), (None, 1)])
def test_a_system_that_tells_no_affinity_has_cores_all_the_same(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, cores: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert threads.cores() == cores


def test_few_blocks_and_many_are_the_same_threads_work() -> None:
    with spread_over(4):
        by_block(lambda rows: rows.start, 8, 1)
        begun = threads._pool.cache_info().misses
        for rows in (2, 8, 3):
            by_block(lambda rows: rows.start, rows, 1)
        assert threads._pool.cache_info().misses == begun


def test_an_error_in_any_block_is_raised() -> None:
    with spread_over(3), pytest.raises(ZeroDivisionError):
        by_block(lambda rows: 1 // (rows.start - 50), 100, 10)


def test_an_interrupt_in_another_thread_is_raised_and_work_goes_on_after_it() -> None:
    begun = Event()

    def work(rows: slice) -> None:
        if current_thread() is main_thread():
            assert begun.wait(60)
        else:
            begun.set()
            raise KeyboardInterrupt

    with spread_over(2):
        with pytest.raises(KeyboardInterrupt):
            by_block(work, 9, 1)
        assert by_block(lambda rows: rows.start, 9, 1) == list(range(9))


def test_blocks_of_blocks_are_done_by_the_same_threads() -> None:
    with spread_over(3):
        inner = by_block(lambda _: sum(by_block(lambda rows: rows.start, 20, 1)), 20, 1)
    assert inner == [190] * 20


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    with spread_over(2):
        by_block(lambda rows: rows.start, 8, 1)
        second = Event()
        if not (process := os.fork()):  # pragma: no cover
            signal.alarm(60)
            found = by_block(
                lambda rows: second.wait(20) if rows.start == 0 else second.set(), 2, 1
            )
            os._exit(not found[0])
        assert os.waitpid(process, 0)[1] == 0


def test_after_an_error_no_thread_takes_another_block(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, taken = Event(), Event(), list[int]()

    def waits(others: Any) -> None:  # noqa: ANN401
        ended.set()  # this thread's block has failed
        wait(others)

    def work(rows: slice) -> None:
        taken.append(rows.start)
        if current_thread() is main_thread():
            assert begun.wait(60)
            raise ZeroDivisionError
        begun.set()
        assert ended.wait(60)

    monkeypatch.setattr(threads, "wait", waits)
    with spread_over(2), pytest.raises(ZeroDivisionError):
        by_block(work, 100, 10)
    assert sorted(taken) == [0, 10]


def test_numpy_handles_errors_in_threads_as_where_it_is_called() -> None:
    started = Event()

    def work(rows: slice) -> float:
        if rows.start == 0:  # the other block is another thread's
            assert started.wait(60)
        started.set()
        return float(np.exp(np.array([1000.0]))[0])

    with warnings.catch_warnings(), np.errstate(over="ignore"), spread_over(2):
        warnings.simplefilter("error")
        assert by_block(work, 2, 1) == [np.inf, np.inf]


def test_blas_has_one_thread_until_the_last_of_several_runs_ends() -> None:
    first, second = ExitStack(), ExitStack()
    with threadpool_limits(2, "blas"):
        first.enter_context(spread_over(1))
        assert blas_threads() == {1}
        second.enter_context(spread_over(1))
        first.close()
        assert blas_threads() == {1}
        second.close()
        assert blas_threads() == {2}


def test_a_process_takes_no_more_threads_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads._SETTING, "most", 1)
    started: list[int] = []

    def work(rows: slice) -> None:
        started.append(rows.start)

    monkeypatch.setattr(threads, "_pool", None)  # which would be called
    with spread_over(4):
        by_block(work, 3, 1)
    assert started == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sum_by_block_is_added_in_order_and_keeps_one_result_a_thread(workers: int) -> None:
    drawn = np.random.default_rng(2).standard_normal((50, 2, 2))
    living: set[int] = set()
    most = 0

    def work(rows: slice) -> FloatArray:
        nonlocal most
        most = max(most, len(living))
        found: FloatArray = drawn[rows].sum(axis=0)
        living.add(found_id := id(found))
        weakref.finalize(found, living.discard, found_id)
        return found

    expected = np.zeros((2, 2))
    for first in range(0, 50, 4):
        expected += drawn[first : first + 4].sum(axis=0)
    with spread_over(workers):
        assert np.array_equal(sum_by_block(work, 50, 4), expected)
    assert most <= workers + 1  # and the sum
