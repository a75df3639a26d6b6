"""Starts the actors of a job, introduces them to each other, and restarts all of them if one dies.

Learns: that a job runs, how many rounds are done and how actors end; no message between actors.
"""

import queue
import time
from collections.abc import Callable, Mapping
from functools import partial

from securevfl import errors
from securevfl.actors.task import ActorTask, Event, Handle, Host, Peer
from securevfl.errors import PeerUnreachable, SecureVFLError
from securevfl.workers import Gone

# The peers of an actor that died often report it before the actor's own host does.
AFTERMATH_SECONDS = 5.0


class Attempt:
    """One attempt at a job, from the start of all actors to their end.

    Args:
        host: where actors run.
        progress: called with the number of finished rounds.
    """

    def __init__(self, host: Host, progress: Callable[[int], None]) -> None:
        self._host, self._progress = host, progress
        self._events: queue.Queue[tuple[str, Event]] = queue.Queue()

    def run(self, tasks: Mapping[str, ActorTask]) -> None:
        """Start all actors, wait until all have finished, and stop them in any case.

        Raises:
            Gone: an actor died; the text says which, and how.
            SecureVFLError: an actor failed, with its error and its name.
        """
        handles: dict[str, Handle] = {}
        try:
            for name, task in tasks.items():
                handles[name] = self._host.start(task, partial(self._heard, name))
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
                    self._progress(event.rounds)
                else:
                    running.remove(name)
        finally:
            for handle in handles.values():
                handle.stop()

    def _heard(self, name: str, event: Event) -> None:
        self._events.put((name, event))

    def _next(self) -> tuple[str, Event]:
        name, event = self._events.get()
        if event.kind in ("gone", "failed"):
            raise self._cause(name, event)
        return name, event

    def _cause(self, name: str, event: Event) -> Exception:
        """What ended the job: a death or an actor's own error, rather than its peers' errors."""
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
        host: where actors run.
        tasks: by actor, resuming after a number of rounds, or from the start if that is None.
        resume_rounds: for the first attempt.
        restarts: the most restarts of all actors.
        restart_from: the rounds after which to resume now; it raises if no restart is possible.
        progress: called with the number of finished rounds.
        say: called with one line for the user at each restart.

    Raises:
        SecureVFLError: an actor failed, or died after the last restart.
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
