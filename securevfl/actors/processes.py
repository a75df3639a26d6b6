"""Actors as processes of this machine."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from securevfl.actors.task import PEERS, TASK, ActorTask, Peer, Tell, watch
from securevfl.workers import SILENCE_SECONDS, Gone

_CHUNK = 1 << 16


@dataclass(kw_only=True)
class ProcessHost:
    """Starts an actor as a process in a group of its own, so that Ctrl-C is the supervisor's.

    Attributes:
        silence_seconds: after which an actor is gone.
    """

    silence_seconds: float = SILENCE_SECONDS

    def start(self, task: ActorTask, tell: Tell) -> "ProcessHandle":
        """Start an actor, see `Host`."""
        return ProcessHandle(task, tell, self.silence_seconds)


class ProcessHandle:
    """An actor's process.

    Args:
        task: its part of the job.
        tell: called with what it says, on a thread of this.
        silence_seconds: after which it is gone.

    Attributes:
        process: the actor's.
    """

    def __init__(self, task: ActorTask, tell: Tell, silence_seconds: float) -> None:
        self._left = b""
        self.process = subprocess.Popen(  # this interpreter, our own module
            [sys.executable, "-P", "-m", "securevfl.actors.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reading = threading.Thread(
            target=watch, args=(self._lines, silence_seconds, tell), daemon=True
        )
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

    def _lines(self, seconds: float) -> list[str]:
        assert self.process.stdout is not None  # noqa: S101
        said = self.process.stdout.fileno()
        speaks = select.poll()
        speaks.register(said, select.POLLIN)
        if not speaks.poll(round(1000 * seconds)):
            raise TimeoutError
        data = os.read(said, _CHUNK)
        if not data:
            status = self.process.wait()
            raise Gone(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        *lines, self._left = (self._left + data).split(b"\n")
        return [line.decode() for line in lines]
