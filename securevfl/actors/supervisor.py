"""Starts the actors of a job, introduces them to each other, and starts all again where one dies.

Learns: of a job that runs, rounds done and how actors end; never a message between them.
"""

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from securevfl import errors
from securevfl.actors.task import ActorTask, Event, Handle, Host, Peer
from securevfl.errors import PeerUnreachable, SecureVFLError
from securevfl.workers import Gone

# A peer's death is often told before the death itself.
AFTERMATH_SECONDS = 5.0


@dataclass
class Attempt:
    """One go at a job: all actors from their start to their end.

    Attributes:
        host: where they live.
        progress: called with rounds done.
    """

    host: Host
    progress: Callable[[int], None]
    _events: "queue.Queue[tuple[str, Event]]" = field(default_factory=queue.Queue)

    def run(self, tasks: Mapping[str, ActorTask]) -> None:
        """Start all, wait until all have finished, and stop them in any case.

        Raises:
            Gone: one is; the text says which, and how.
            SecureVFLError: one has failed; as it says, with its name.
        """
        handles: dict[str, Handle] = {}
        try:
            for name, task in tasks.items():
                handles[name] = self.host.start(task, partial(self._told, name))
            peers: dict[str, Peer] = {}
            while len(peers) < len(tasks):
                name, event = self._next()
                assert event.peer is not None  # noqa: S101
                peers[name] = event.peer
            for handle in handles.values():
                handle.introduce(peers)
            running = set(tasks)
            while running:
                name, event = self._next()
                if event.kind == "progress":
                    self.progress(event.rounds)
                else:
                    running.remove(name)
        finally:
            for handle in handles.values():
                handle.stop()

    def _told(self, name: str, event: Event) -> None:
        self._events.put((name, event))

    def _next(self) -> tuple[str, Event]:
        name, event = self._events.get()
        if event.kind in ("gone", "failed"):
            raise self._blamed(name, event)
        return name, event

    def _blamed(self, name: str, event: Event) -> Exception:
        """What ended the job: an actor that is gone, or an error of its own, before its peers'."""
        deadline = time.monotonic() + AFTERMATH_SECONDS
        while event.error == PeerUnreachable.__name__:
            try:
                other, later = self._events.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                break
            if later.kind == "gone" or (later.kind == "failed" and later.error != event.error):
                name, event = other, later
        if event.kind == "gone":
            return Gone(f"{name} is gone ({event.text})")
        kind = getattr(errors, event.error, SecureVFLError)
        return kind(f"{name}: {event.text}")


def supervise(
    host: Host,
    tasks: Callable[[int | None], Mapping[str, ActorTask]],
    *,
    resume_rounds: int | None,
    restarts: int,
    restart_from: Callable[[], int | None],
    progress: Callable[[int], None],
    say: Callable[[str], None],
) -> None:
    """Run a job's actors until all have finished.

    Args:
        host: where they live.
        tasks: by name, to go on after so many rounds, or to start.
        resume_rounds: to begin with.
        restarts: how often at most all are started again.
        restart_from: after how many rounds to go on now; None starts. It raises where neither can
            be.
        progress: called with rounds done.
        say: called with what whoever waits should know.

    Raises:
        SecureVFLError: an actor failed, or died once more than is allowed.
    """
    left = restarts
    while True:
        try:
            Attempt(host, progress).run(tasks(resume_rounds))
        except Gone as gone:
            if not left:
                raise SecureVFLError(f"{gone}, after {restarts} restarts") from None
            left -= 1
            try:
                resume_rounds = restart_from()
            except SecureVFLError as error:
                raise type(error)(f"{gone}: {error}") from None
            where = (
                "start again" if resume_rounds is None else f"go on after {resume_rounds} rounds"
            )
            say(f"{gone}: all {where}, restart {restarts - left} of {restarts}")
        else:
            return
