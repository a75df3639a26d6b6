import os
import signal
import time
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import DataError, SecureVFLError
from securevfl.processes import Tell, _do_one, in_processes


def scaled(weights: np.ndarray, task: int, tell: Tell) -> float:
    tell("scaling", 1, 2)
    return float(weights[0]) * task


def odd_ones_fail(task: int, _: Tell) -> int:
    if task % 2:
        raise DataError(f"task {task}")
    return task


def die(task: int, _: Tell) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def rest(seconds: float, _: Tell) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_with_their_places_and_what_tasks_tell_on_the_way(workers: int) -> None:
    # More than a pipe holds.
    work = partial(scaled, np.full(1_000_000, 3.0))
    reported: list[tuple[int, str, float]] = []

    def note(place: int, what: str, done: float) -> None:
        reported.append((place, what, done))

    costs = [1.0, 1.0, 1.0, 1.0, 4.0]
    with in_processes(work, range(5), workers, "test", progress=note, costs=costs) as results:
        assert sorted(results) == [(0, 0), (1, 3), (2, 6), (3, 9), (4, 12)]
    by_place = {place: [what for at, what, _ in reported if at == place] for place in range(5)}
    assert by_place == {place: ["scaling", "done"] for place in range(5)}
    parts = [done for _, _, done in reported]
    assert parts == sorted(parts)
    # The first is half done, and then all are.
    assert (parts[0], parts[-1]) in {(1 / 16, 1.0), (4 / 16, 1.0)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_that_fails_is_the_error_of_all(workers: int) -> None:
    others = set(active_children())  # pools of other tests may live on, or end meanwhile
    with (
        # Which of the two is first depends on how soon processes start.
        pytest.raises(DataError, match=r"task [13]"),
        in_processes(odd_ones_fail, range(4), workers, "test") as results,
    ):
        list(results)
    assert set(active_children()) <= others


def test_a_killed_process_is_reported() -> None:
    with (
        pytest.raises(SecureVFLError, match="a process of the test was killed"),
        in_processes(die, range(4), 2, "test") as results,
    ):
        list(results)


def test_an_interrupt_ends_own_processes_at_once_and_no_others() -> None:
    others = set(active_children())
    neighbour = get_context("spawn").Process(target=time.sleep, args=(60,))
    neighbour.start()
    with pytest.raises(KeyboardInterrupt), in_processes(rest, [60, 60], 2, "test"):
        raise KeyboardInterrupt
    assert set(active_children()) - others == {neighbour}
    neighbour.terminate()
    neighbour.join()


def test_work_that_a_machine_of_the_cluster_does_not_see_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file.*set TMPDIR to"):
        _do_one((str(tmp_path / "work"), 0))


def test_work_that_no_file_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with (
        pytest.raises(DataError, match=r"work for processes: .*No space left"),
        in_processes(rest, [0], 2, "test"),
    ):
        pass
