"""Parties as processes of this machine."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from securevfl.parties.task import ADDRESSES, TASK, Task, Tell, watch
from securevfl.workers import SILENCE_SECONDS, Gone

_CHUNK = 1 << 16


@dataclass(kw_only=True)
class ProcessHost:
    """Starts parties as processes in groups of their own, which Ctrl-C does not reach."""

    silence_seconds: float = SILENCE_SECONDS  # after which a party counts as dead

    def start(self, task: Task, tell: Tell) -> "ProcessHandle":
        """Start a party, see `Host`."""
        return ProcessHandle(task, tell, self.silence_seconds)


class ProcessHandle:
    """A party's process.

    Args:
        task: its part of the job.
        tell: called with its events, on another thread.
        silence_seconds: after which it counts as dead.
    """

    def __init__(self, task: Task, tell: Tell, silence_seconds: float) -> None:
        self._left = b""
        self.process = subprocess.Popen(  # this interpreter, our own module
            [sys.executable, "-P", "-m", "securevfl.parties.process"],
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

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Tell it where all parties are now."""
        self._say(ADDRESSES.dump_json(dict(addresses)).decode())

    def stop(self) -> None:
        """Kill the party and all processes that it has started, and wait for its end."""
        process = self.process
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        # A group outlives its leader: it may hold processes that a killed party had started.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._reading.join()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # the reading thread reports its death
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def _lines(self, seconds: float) -> list[str]:
        assert self.process.stdout is not None  # noqa: S101
        output = self.process.stdout.fileno()
        readable = select.poll()
        readable.register(output, select.POLLIN)
        if not readable.poll(round(1000 * seconds)):
            raise TimeoutError
        data = os.read(output, _CHUNK)
        if not data:
            status = self.process.wait()
            raise Gone(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        *lines, self._left = (self._left + data).split(b"\n")
        return [line.decode() for line in lines]
