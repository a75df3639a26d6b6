"""Actors as actors of Ray, on one machine or in a cluster.

Ray places them and says when one is gone. They meet over sockets of their own as processes do: a
message between them never passes through Ray.
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
    """What runs in a process of Ray's; what passes in and out is JSON."""

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
        """What there is to tell, waited for a moment."""
        told = []
        try:
            told.append(self._events.get(timeout=WAIT_SECONDS))
            while True:
                told.append(self._events.get_nowait())
        except queue.Empty:
            return [EVENT.dump_json(each).decode() for each in told]


class RayHost:
    """Starts actors in the cluster that this process is connected with.

    An actor whose party has a place of its own goes there: a machine that was started with
    `--resources '{"party:NAME": 1}'`. Others go anywhere.

    Args:
        address: as it was connected; in one on this machine actors meet over Unix sockets.
        silence_seconds: after which an actor is gone.
    """

    def __init__(self, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._local, self._silence_seconds = address == LOCAL, silence_seconds

    def start(self, task: ActorTask, tell: Tell) -> "RayHandle":
        """Start an actor, see `Host`."""
        if not self._local and task.listen.startswith("unix:"):
            task = replace(task, listen=ANYWHERE)
        return RayHandle(task, tell, self._silence_seconds)


class RayHandle:
    """An actor of Ray's.

    Args:
        task: its part of the job.
        tell: called with what it says, on a thread of this.
        silence_seconds: after which it is gone.

    Attributes:
        remote: where it runs.
    """

    def __init__(self, task: ActorTask, tell: Tell, silence_seconds: float) -> None:
        self.remote = RemoteObject("securevfl.actors.ray_host:RemoteParty", f"party:{task.party}")
        self.remote.begin("open", TASK.dump_json(task).decode())
        self._listening = threading.Thread(
            target=watch, args=(self._events, silence_seconds, tell), daemon=True
        )
        self._listening.start()

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Tell it of all others."""
        self.remote.begin("take_part", PEERS.dump_json(dict(peers)).decode())

    def stop(self) -> None:
        """End it, and wait until it is gone."""
        self.remote.stop()
        self._listening.join()

    def _events(self, seconds: float) -> list[str]:
        told: list[str] = self.remote.call("events", seconds=seconds)
        return told
