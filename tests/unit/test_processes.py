import os
import signal
import time
from functools import partial
from multiprocessing import active_children, get_context

import numpy as np
import pytest

from securevfl.errors import DataError, SecureVFLError
from securevfl.processes import in_processes


def scaled(weights: np.ndarray, task: int) -> float:
    return float(weights[0]) * task


def odd_ones_fail(task: int) -> int:
    if task % 2:
        raise DataError(f"task {task}")
    return task


def die(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_tasks(workers: int) -> None:
    # More than a pipe holds.
    work = partial(scaled, np.full(1_000_000, 3.0))
    with in_processes(work, range(5), workers, "test") as results:
        assert list(results) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_that_fails_is_the_error_of_all(workers: int) -> None:
    others = set(active_children())  # pools of other tests may live on, or end meanwhile
    with (
        pytest.raises(DataError, match="task 1"),
        in_processes(odd_ones_fail, range(4), workers, "test") as results,
    ):
        list(results)
    assert set(active_children()) <= others


def test_a_killed_process_is_told() -> None:
    with (
        pytest.raises(SecureVFLError, match="a process of the test was killed"),
        in_processes(die, range(4), 2, "test") as results,
    ):
        list(results)


def test_an_interrupt_ends_own_processes_at_once_and_no_others() -> None:
    others = set(active_children())
    neighbour = get_context("spawn").Process(target=time.sleep, args=(60,))
    neighbour.start()
    with (
        pytest.raises(KeyboardInterrupt),
        in_processes(time.sleep, [60, 60], 2, "test"),
    ):
        raise KeyboardInterrupt
    assert set(active_children()) - others == {neighbour}
    neighbour.terminate()
    neighbour.join()
