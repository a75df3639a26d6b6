from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from securevfl.errors import ConfigError, DataError, SecureVFLError
from securevfl.parties.supervisor import Supervisor
from securevfl.parties.task import EVENT, TASK, Event, Task, Tell
from tests.local_tasks import task_of

NAMES = ("bank", "shop")
FINISHED, GONE = Event("finished"), Event("gone", text="killed by signal 9")
ENDED = Event("failed", error="JobEnded", text="shop ended the job (DataError)")


@dataclass
class Scripted:
    """A host whose parties say what stands in a script, from one introduction to the next."""

    script: dict[str, list[list[Event]]]
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    told: list[dict[str, str]] = field(default_factory=list)

    def start(self, task: Task, tell: Tell) -> "ScriptedHandle":
        self.started.append(task.name)
        return ScriptedHandle(self, task.name, tell)


class ScriptedHandle:
    def __init__(self, host: Scripted, name: str, tell: Tell) -> None:
        self._host, self._name, self._tell = host, name, tell
        # One that is gone at once is never introduced.
        if host.script[name][:1] == [[GONE]]:
            tell(host.script[name].pop(0)[0])
        else:
            tell(Event("introduced", address=f"unix:{name} {len(host.started)}"))

    def introduce(self, addresses: Mapping[str, str]) -> None:
        self._host.told.append(dict(addresses))
        if said := self._host.script[self._name]:
            for event in said.pop(0):
                self._tell(event)

    def stop(self) -> None:
        self._host.stopped.append(self._name)


@dataclass
class Run:
    host: Scripted
    progress: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def go(self, restarts: int, never: Exception | None = None) -> None:
        def require_again() -> None:
            if never is not None:
                raise never

        Supervisor(
            host=self.host,
            restarts=restarts,
            require_again=require_again,
            progress=self.progress.append,
            say=self.said.append,
        ).run({name: task_of(name) for name in NAMES})


def lives(bank: list[list[Event]], shop: list[list[Event]]) -> Run:
    return Run(Scripted({"bank": bank, "shop": shop}))


def test_all_finish_and_all_are_stopped() -> None:
    progress = [Event("progress", rounds=n) for n in (1, 4)]
    run = lives([[Event("begins"), *progress, FINISHED]], [[FINISHED]])
    run.go(restarts=0)
    assert run.progress == [1, 4]
    assert sorted(run.host.stopped) == ["bank", "shop"]
    assert run.host.told == 2 * [{"bank": "unix:bank 1", "shop": "unix:shop 2"}]
    assert not run.said


def test_only_the_one_that_is_gone_starts_again_and_the_others_hear_where_it_is() -> None:
    met_again = [Event("begins", rounds=30), FINISHED]
    run = lives([[Event("begins")], met_again], [[Event("progress", rounds=37), GONE], [FINISHED]])
    run.go(restarts=1)
    assert run.host.started == ["bank", "shop", "shop"]
    assert run.host.stopped == ["shop", "bank", "shop"]
    assert run.host.told[-1] == {"bank": "unix:bank 1", "shop": "unix:shop 3"}
    assert run.said == [
        "shop is gone (killed by signal 9): it starts again, restart 1 of 1",
        "all go on after 30 rounds",
    ]


@pytest.mark.parametrize("shop", [FINISHED, GONE])
def test_one_may_be_gone_once_any_has_finished(shop: Event) -> None:
    """That one would not have before all others had their results."""
    run = lives([[FINISHED, GONE]], [[Event("progress"), shop]])
    run.go(restarts=0)
    assert run.host.started == list(NAMES)


def test_one_that_dies_again_and_again_ends_the_job() -> None:
    run = lives([[]], [[GONE] for _ in range(3)])
    with pytest.raises(SecureVFLError, match=r"gone \(killed by signal 9\), after 2 restarts"):
        run.go(restarts=2)
    assert sorted(run.host.stopped) == ["bank", "shop", "shop", "shop"]


def test_a_job_that_may_not_start_again_says_who_is_gone() -> None:
    run = lives([[]], [[GONE]])
    with pytest.raises(ConfigError, match=r"shop is gone \(killed by signal 9\): not again"):
        run.go(restarts=2, never=ConfigError("not again"))


def test_an_error_of_a_party_is_the_jobs_and_is_not_tried_again() -> None:
    """The one that has it is named, and not the peer that heard of it."""
    failed = Event("failed", error="DataError", text="rows.csv: cannot be read")
    run = lives([[ENDED]], [[failed]])
    with pytest.raises(DataError, match=r"^shop: rows.csv: cannot be read$"):
        run.go(restarts=2)
    assert sorted(run.host.stopped) == ["bank", "shop"]


def test_what_travels_is_json() -> None:
    task = task_of("bank", addresses={"bank": "unix:there", "shop": "unix:here"})
    assert TASK.validate_json(TASK.dump_json(task)) == task
    event = Event("introduced", address="unix:there")
    assert EVENT.validate_json(EVENT.dump_json(event)) == event
