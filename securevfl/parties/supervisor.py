"""Starts the parties of a local job, introduces them to each other, and restarts one that dies.

The others meet it again by themselves. Learns: that a job runs, how many rounds are done and how
parties end; no message between them.
"""

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from securevfl import errors
from securevfl.errors import PeerUnreachable, SecureVFLError
from securevfl.parties.meeting import JobEnded
from securevfl.parties.task import Event, Handle, Host, Task

# The peers of a party that fails may tell of it before it does itself.
AFTERMATH_SECONDS = 5.0
_OF_PEERS = (JobEnded.__name__, PeerUnreachable.__name__)


@dataclass(kw_only=True)
class Supervisor:
    """Runs the parties of one job.

    Attributes:
        host: where parties run.
        restarts: the most, of all parties together.
        require_again: raises if no party may be started again.
        progress: called with the number of rounds done.
        say: called with one line for the user at each restart.
    """

    host: Host
    restarts: int
    require_again: Callable[[], None]
    progress: Callable[[int], None]
    say: Callable[[str], None]
    _events: queue.Queue[tuple[str, Event]] = field(default_factory=queue.Queue)
    _handles: dict[str, Handle] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)
    _restarted: int = 0

    def run(self, tasks: Mapping[str, Task]) -> None:
        """Start all parties, wait until all have finished, and stop them in any case.

        Raises:
            SecureVFLError: a party failed, or died after the last restart.
        """
        self._running.update(tasks)
        try:
            for task in tasks.values():
                self._start(task)
            while self._running:
                self._hear(tasks, *self._events.get())
        finally:
            for handle in self._handles.values():
                handle.stop()

    def _start(self, task: Task) -> None:
        self._addresses.pop(task.name, None)
        self._handles[task.name] = self.host.start(
            task, lambda event: self._events.put((task.name, event))
        )

    def _hear(self, tasks: Mapping[str, Task], name: str, event: Event) -> None:
        match event.kind:
            case "introduced":
                self._addresses[name] = event.address
                if self._addresses.keys() == tasks.keys():
                    self._introduce()
            case "begins":
                self._begun(event.rounds)
            case "progress":
                self.progress(event.rounds)
            case "finished":
                self._running.discard(name)
            case "failed":
                raise self._cause(name, event)
            case "gone":
                self._gone(tasks, name, event.text)

    def _introduce(self) -> None:
        for handle in self._handles.values():
            handle.introduce(self._addresses)

    def _begun(self, rounds: int) -> None:
        if self._restarted:
            self.say(f"all go on after {rounds} rounds" if rounds else "all begin again")

    def _gone(self, tasks: Mapping[str, Task], name: str, how: str) -> None:
        if self._running != tasks.keys():  # who has finished knows that all hold their results
            self._running.discard(name)
            return
        gone = f"{name} is gone ({how})"
        self._restarted += 1
        if self._restarted > self.restarts:
            raise SecureVFLError(f"{gone}, after {self.restarts} restarts")
        try:
            self.require_again()
        except SecureVFLError as error:
            raise type(error)(f"{gone}: {error}") from None
        self.say(f"{gone}: it starts again, restart {self._restarted} of {self.restarts}")
        self._handles[name].stop()
        self._start(tasks[name])

    def _cause(self, name: str, event: Event) -> Exception:
        """What ended the job: a party's own error or death, not what its peers say of it."""
        deadline = time.monotonic() + AFTERMATH_SECONDS
        while event.error in _OF_PEERS:
            try:
                other, later = self._events.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                break
            if later.kind == "gone" or (later.kind == "failed" and later.error not in _OF_PEERS):
                name, event = other, later
        if event.kind == "gone":
            return SecureVFLError(f"{name} is gone ({event.text})")
        kind = getattr(errors, event.error, SecureVFLError)
        return kind(f"{name}: {event.text}")
