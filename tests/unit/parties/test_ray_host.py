"""Where Ray is asked to place parties; Ray itself is not needed."""

import pytest
from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.parties import ray_host
from securevfl.parties.local_party import LocalParty
from securevfl.parties.ray_host import ANYWHERE, RayHost, RemoteParty
from securevfl.parties.task import TASK, Event
from securevfl.ray_cluster import LOCAL
from securevfl.workers import START_SECONDS, Gone
from tests.local_tasks import task_of


class Remote:
    """What Ray would start: it is gone at once."""

    def __init__(self, factory: str, resource: str) -> None:
        self.resource = resource

    def begin(self, method: str, *words: str) -> None:
        self.began = method, *words

    def call(self, method: str, *words: str, seconds: float) -> list[str]:
        raise Gone("gone")

    def stop(self) -> None:
        """Nothing."""


def test_a_party_asks_for_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_host, "RemoteObject", Remote)
    said: list[Event] = []
    handle = RayHost(LOCAL).start(task_of("bank"), said.append)
    handle.stop()
    assert isinstance(handle.remote, Remote)
    assert handle.remote.resource == "party:bank"
    assert said == [Event("gone", text="gone")]


@pytest.mark.parametrize(("address", "where"), [(LOCAL, "unix:there"), ("head:6379", ANYWHERE)])
def test_in_a_cluster_of_machines_parties_listen_where_they_are(
    address: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is they find out there, and tell."""
    monkeypatch.setattr(ray_host, "RemoteObject", Remote)
    handle = RayHost(address).start(task_of("bank"), lambda event: None)
    handle.stop()
    assert isinstance(handle.remote, Remote)
    method, word = handle.remote.began
    assert method == "run"
    assert TASK.validate_json(word).addresses == {"bank": where}
    monkeypatch.setattr(ray_host, "own_address", lambda: "10.0.0.7")
    started: list[str] = []
    monkeypatch.setattr(LocalParty, "run", lambda party: started.extend(party._addresses.values()))
    RemoteParty().run(word)
    assert started == [where if address == LOCAL else "ws://10.0.0.7:0"]


def test_one_that_cannot_be_made_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unmade(Remote):
        @override
        def call(self, method: str, *words: str, seconds: float) -> list[str]:
            raise ConfigError("no module")

    monkeypatch.setattr(ray_host, "RemoteObject", Unmade)
    said: list[Event] = []
    RayHost(LOCAL).start(task_of("bank"), said.append).stop()
    assert said == [Event("failed", error="ConfigError", text="no module")]


def test_one_that_does_not_answer_in_time_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has longer until its first answer."""
    asked: list[float] = []

    class Frozen(Remote):
        @override
        def call(self, method: str, *words: str, seconds: float) -> list[str]:
            asked.append(seconds)
            if len(asked) == 1:
                return []
            raise TimeoutError

    monkeypatch.setattr(ray_host, "RemoteObject", Frozen)
    said: list[Event] = []
    RayHost(LOCAL, silence_seconds=5).start(task_of("bank"), said.append).stop()
    assert asked == [START_SECONDS, 5]
    assert said == [Event("gone", text="silent for 5 s")]
