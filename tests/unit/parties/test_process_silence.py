"""A process that says nothing any more is gone; one that is left alone ends, and tidies up."""

import queue
import signal
import sys
import time
from pathlib import Path

import pytest

from securevfl.parties.process import BEAT_SECONDS
from securevfl.parties.processes import ProcessHost
from securevfl.parties.task import Event
from tests.local_tasks import task_of

SILENCE = 4 * BEAT_SECONDS
LONG = 60.0


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_process_is_gone_and_one_that_waits_is_not(frozen: bool, tmp_path: Path) -> None:
    """It fails at once, as its job is none, and then waits for its end."""
    events: queue.Queue[Event] = queue.Queue()
    task = task_of("bank", tmp_path)
    handle = ProcessHost(silence_seconds=SILENCE).start(task, events.put)
    try:
        assert events.get(timeout=LONG).kind == "failed"
        if frozen:
            handle.process.send_signal(signal.SIGSTOP)
            assert events.get(timeout=LONG) == Event("gone", text=f"silent for {SILENCE:g} s")
        else:
            time.sleep(SILENCE + 2 * BEAT_SECONDS)
            assert events.empty()
    finally:
        handle.stop()
    if not frozen:
        assert events.get(timeout=LONG) == Event("gone", text="killed by signal 9")


def test_one_that_is_slow_to_start_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a process says its first word later than it may be silent after it."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep {1.5 * SILENCE}\nexec "{sys.executable}" "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    events: queue.Queue[Event] = queue.Queue()
    handle = ProcessHost(silence_seconds=SILENCE).start(task_of("bank", tmp_path), events.put)
    try:
        assert events.get(timeout=LONG).kind == "failed"
    finally:
        handle.stop()


@pytest.mark.parametrize("another", [False, True])
def test_whom_the_operator_left_removes_what_was_shared(another: bool, tmp_path: Path) -> None:
    """And not the folder of a job that was started since, under the same name."""
    work = tmp_path / "work"
    (work / "bank").mkdir(parents=True)
    (work / "bank.key").touch()
    events: queue.Queue[Event] = queue.Queue()
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    (sockets / "0").touch()
    task = task_of("bank", work, addresses={"bank": f"unix:{sockets}/0"})
    handle = ProcessHost().start(task, events.put)
    try:
        assert events.get(timeout=LONG).kind == "failed"
        if another:
            work.rename(tmp_path / "of before")
            work.mkdir()
        assert handle.process.stdin is not None
        handle.process.stdin.close()
        handle.process.wait(LONG)
    finally:
        handle.stop()
    assert work.exists() == another
    assert not sockets.exists()
