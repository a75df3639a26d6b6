"""Actors as processes of this machine."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from pydantic import ValidationError

from securevfl.actors.task import EVENT, PEERS, TASK, ActorTask, Event, Peer, Tell


class ProcessHost:
    """Starts an actor as a process in a group of its own, so that Ctrl-C is the supervisor's."""

    def start(self, task: ActorTask, tell: Tell) -> "ProcessHandle":
        """Start an actor, see `Host`."""
        return ProcessHandle(task, tell)


class ProcessHandle:
    """An actor's process.

    Args:
        task: its part of the job.
        tell: called with what it says, on a thread of this.

    Attributes:
        process: the actor's.
    """

    def __init__(self, task: ActorTask, tell: Tell) -> None:
        self._tell = tell
        self.process = subprocess.Popen(  # this interpreter, our own module
            [sys.executable, "-P", "-m", "securevfl.actors.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._say(TASK.dump_json(task).decode())

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Tell it of all others."""
        self._say(PEERS.dump_json(dict(peers)).decode())

    def stop(self) -> None:
        """End it and what it has started, and wait until it is gone."""
        process = self.process
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        # A group stays after its leader: those that a killed actor had started.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._reading.join()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # that it is gone is told
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            try:
                self._tell(EVENT.validate_json(line))
            except ValidationError:
                break  # killed in the middle of a line
        status = self.process.wait()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        self._tell(Event("lost", text=how))
