"""Parties as Ray actors, on one machine or in a cluster.

Ray places them and reports their deaths. Like processes, they communicate over links of their own:
no message between them passes through Ray.
"""

import queue
import threading
from collections.abc import Mapping
from dataclasses import replace

from securevfl.parties.local_party import LocalParty
from securevfl.parties.task import ADDRESSES, EVENT, TASK, Event, Task, Tell, watch
from securevfl.ray_cluster import LOCAL, RemoteObject, own_address
from securevfl.workers import SILENCE_SECONDS

ANYWHERE = "ws://*:0"
WAIT_SECONDS = 0.5


class RemoteParty:
    """What runs in a process of Ray; arguments and results are JSON."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue()

    def run(self, task: str) -> None:
        """Take part to the end."""
        described = TASK.validate_json(task)
        if described.addresses[described.name] == ANYWHERE:
            own = {described.name: f"ws://{own_address()}:0"}
            described = replace(described, addresses={**described.addresses, **own})
        self._party = LocalParty(described, self._events.put)
        self._party.run()

    def introduce(self, addresses: str) -> None:
        """Hear where all parties are, once it is introduced."""
        self._party.introduce(ADDRESSES.validate_json(addresses))

    def events(self) -> list[str]:
        """The party's new events, after waiting for them for a moment."""
        found = []
        try:
            found.append(self._events.get(timeout=WAIT_SECONDS))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return [EVENT.dump_json(each).decode() for each in found]


class RayHost:
    """Starts parties in the cluster that this process is connected to.

    A machine that was started with `--resources '{"party:NAME": 1}'` runs that party. Other parties
    run anywhere.

    Args:
        address: of the cluster; in one on this machine parties use Unix sockets.
        silence_seconds: after which a party counts as dead.
    """

    def __init__(self, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._local, self._silence_seconds = address == LOCAL, silence_seconds

    def start(self, task: Task, tell: Tell) -> "RayHandle":
        """Start a party, see `Host`."""
        if not self._local:
            task = replace(task, addresses=dict.fromkeys(task.addresses, ANYWHERE))
        return RayHandle(task, tell, self._silence_seconds)


class RayHandle:
    """A Ray actor.

    Args:
        task: its part of the job.
        tell: called with its events, on another thread.
        silence_seconds: after which it counts as dead.
    """

    def __init__(self, task: Task, tell: Tell, silence_seconds: float) -> None:
        self.remote = RemoteObject("securevfl.parties.ray_host:RemoteParty", f"party:{task.name}")
        self.remote.begin("run", TASK.dump_json(task).decode())
        self._listening = threading.Thread(
            target=watch, args=(self._events, silence_seconds, tell), daemon=True
        )
        self._listening.start()

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Tell it where all parties are now."""
        self.remote.begin("introduce", ADDRESSES.dump_json(dict(addresses)).decode())

    def stop(self) -> None:
        """End the actor, and wait for its end."""
        self.remote.stop()
        self._listening.join()

    def _events(self, seconds: float) -> list[str]:
        found: list[str] = self.remote.call("events", seconds=seconds)
        return found
