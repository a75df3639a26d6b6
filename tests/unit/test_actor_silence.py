"""A process that says nothing any more is lost; one that waits, or computes, is not."""

import queue
import signal
import time

import pytest

from securevfl.actors.process import BEAT_SECONDS
from securevfl.actors.processes import ProcessHost
from securevfl.actors.task import ActorTask, Event

SILENCE = 4 * BEAT_SECONDS
LONG = 60.0


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_process_is_lost_and_one_that_waits_is_not(frozen: bool) -> None:
    """It fails at once, as its job is none, and then waits for its end."""
    told: queue.Queue[Event] = queue.Queue()
    task = ActorTask("bank", "bank", {}, "00", ("bank",), "", "", "", "", None, "unix:there", "")
    handle = ProcessHost(silence_seconds=SILENCE).start(task, told.put)
    try:
        assert told.get(timeout=LONG).kind == "failed"
        if frozen:
            handle.process.send_signal(signal.SIGSTOP)
            assert told.get(timeout=LONG) == Event("lost", text=f"silent for {SILENCE:g} s")
        else:
            time.sleep(SILENCE + 2 * BEAT_SECONDS)
            assert told.empty()
    finally:
        handle.stop()
    if not frozen:
        assert told.get(timeout=LONG) == Event("lost", text="killed by signal 9")
