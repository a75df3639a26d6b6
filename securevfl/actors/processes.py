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

from securevfl.actors.task import (
    EVENT,
    PEERS,
    SILENCE_SECONDS,
    START_SECONDS,
    TASK,
    ActorTask,
    Event,
    Peer,
    Tell,
    silent,
)

_CHUNK = 1 << 16


@dataclass(kw_only=True)
class ProcessHost:
    """Starts an actor as a process in a group of its own, so that Ctrl-C is the supervisor's.

    Attributes:
        silence_seconds: after which an actor is lost.
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
        silence_seconds: after which it is lost.

    Attributes:
        process: the actor's.
    """

    def __init__(self, task: ActorTask, tell: Tell, silence_seconds: float) -> None:
        self._tell, self._silence_seconds = tell, silence_seconds
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
        told, left = self.process.stdout.fileno(), b""
        speaks = select.poll()
        speaks.register(told, select.POLLIN)
        seconds = max(self._silence_seconds, START_SECONDS)
        how = None
        while speaks.poll(round(1000 * seconds)):
            seconds = self._silence_seconds
            said = os.read(told, _CHUNK)
            if not said:
                status = self.process.wait()
                how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
                break
            *lines, left = (left + said).split(b"\n")
            for event in map(EVENT.validate_json, lines):
                if event.kind != "alive":
                    self._tell(event)
        self._tell(Event("lost", text=how or silent(seconds)))
