"""Actors as Ray actors, on one machine or in a cluster.

Ray places them and reports their deaths. Like processes, they communicate over their own sockets:
no message between them passes through Ray.
"""

import queue
import threading
from collections.abc import Mapping
from dataclasses import replace

from securevfl.actors.party import PartyActor
from securevfl.actors.task import EVENT, PEERS, TASK, ActorTask, Event, Peer, Tell, watch
from securevfl.ray_cluster import LOCAL, RemoteObject, own_address
from securevfl.workers import SILENCE_SECONDS

ANYWHERE = "tcp:*:0"
WAIT_SECONDS = 0.5


class RemoteParty:
    """What runs in a process of Ray; arguments and results are JSON."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue()
        self._actor: PartyActor | None = None

    def open(self, task: str) -> None:
        """Open data and listen."""
        described = TASK.validate_json(task)
        if described.listen == ANYWHERE:
            described = replace(described, listen=f"tcp:{own_address()}:0")
        self._actor = PartyActor(described, self._events.put)
        self._actor.open()

    def take_part(self, peers: str) -> None:
        """Take part until the end."""
        assert self._actor is not None  # noqa: S101
        self._actor.take_part(PEERS.validate_json(peers))

    def events(self) -> list[str]:
        """The actor's new events, after waiting for them for a moment."""
        found = []
        try:
            found.append(self._events.get(timeout=WAIT_SECONDS))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return [EVENT.dump_json(each).decode() for each in found]


class RayHost:
    """Starts actors in the cluster that this process is connected to.

    A machine that was started with `--resources '{"party:NAME": 1}'` runs the actors of that party.
    Other actors run anywhere.

    Args:
        address: of the cluster; in one on this machine actors use Unix sockets.
        silence_seconds: after which an actor counts as dead.
    """

    def __init__(self, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._local, self._silence_seconds = address == LOCAL, silence_seconds

    def start(self, task: ActorTask, tell: Tell) -> "RayHandle":
        """Start an actor, see `Host`."""
        if not self._local and task.listen.startswith("unix:"):
            task = replace(task, listen=ANYWHERE)
        return RayHandle(task, tell, self._silence_seconds)


class RayHandle:
    """A Ray actor.

    Args:
        task: its part of the job.
        tell: called with its events, on another thread.
        silence_seconds: after which it counts as dead.
    """

    def __init__(self, task: ActorTask, tell: Tell, silence_seconds: float) -> None:
        self.remote = RemoteObject("securevfl.actors.ray_host:RemoteParty", f"party:{task.name}")
        self.remote.begin("open", TASK.dump_json(task).decode())
        self._listening = threading.Thread(
            target=watch, args=(self._events, silence_seconds, tell), daemon=True
        )
        self._listening.start()

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Send it the addresses of all actors."""
        self.remote.begin("take_part", PEERS.dump_json(dict(peers)).decode())

    def stop(self) -> None:
        """End the actor, and wait for its end."""
        self.remote.stop()
        self._listening.join()

    def _events(self, seconds: float) -> list[str]:
        found: list[str] = self.remote.call("events", seconds=seconds)
        return found
