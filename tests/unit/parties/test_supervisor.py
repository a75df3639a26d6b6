from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from securevfl.actors.supervisor import supervise
from securevfl.actors.task import EVENT, TASK, ActorTask, Event, Peer, Tell
from securevfl.errors import ConfigError, DataError, SecureVFLError
from tests.actor_tasks import task_of

NAMES = ("bank", "shop")
INTRODUCED, FINISHED = Event("introduced", Peer("unix:there")), Event("finished")
GONE = Event("gone", text="killed by signal 9")
UNREACHABLE = Event("failed", error="PeerUnreachable", text="shop closed the connection")


@dataclass
class Scripted:
    """A host whose actors say what stands in a script, one attempt after another."""

    script: list[dict[str, list[Event]]]
    tasks: list[ActorTask] = field(default_factory=list)
    stopped: int = 0

    def start(self, task: ActorTask, tell: Tell) -> "ScriptedHandle":
        self.tasks.append(task)
        said = self.script[(len(self.tasks) - 1) // len(NAMES)][task.name]
        return ScriptedHandle(self, said, tell)


class ScriptedHandle:
    def __init__(self, host: Scripted, said: list[Event], tell: Tell) -> None:
        self._host, self._said, self._tell = host, said, tell
        # One that is gone at once is never introduced.
        self._tell(GONE if said[:1] == [GONE] else INTRODUCED)

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        assert set(peers) == set(NAMES)
        for event in self._said:
            self._tell(event)

    def stop(self) -> None:
        self._host.stopped += 1


@dataclass
class Run:
    host: Scripted
    progress: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    resume_rounds: int | None = None

    def go(self, restarts: int, restart_from: int | Exception | None = None) -> None:
        def where() -> int | None:
            if isinstance(restart_from, Exception):
                raise restart_from
            return restart_from

        supervise(
            self.host,
            lambda rounds: {name: task_of(name, resume_rounds=rounds) for name in NAMES},
            resume_rounds=self.resume_rounds,
            restarts=restarts,
            restart_from=where,
            progress=self.progress.append,
            say=self.said.append,
        )


def both(bank: list[Event], shop: list[Event]) -> dict[str, list[Event]]:
    return {"bank": list(bank), "shop": list(shop)}


def test_all_finish_and_all_are_stopped() -> None:
    progress = [Event("progress", rounds=n) for n in (1, 4)]
    run = Run(Scripted([both([*progress, FINISHED], [FINISHED])]))
    run.go(restarts=0)
    assert run.progress == [1, 4]
    assert run.host.stopped == 2
    assert not run.said


def test_all_go_on_where_one_is_gone() -> None:
    dies = [Event("progress", rounds=37), GONE]
    run = Run(Scripted([both([UNREACHABLE], dies), both([FINISHED], [FINISHED])]))
    run.go(restarts=1, restart_from=30)
    assert [task.resume_rounds for task in run.host.tasks] == [None, None, 30, 30]
    assert run.said == [
        "shop is gone (killed by signal 9): all go on after 30 rounds, restart 1 of 1"
    ]
    assert run.host.stopped == 4


def test_one_that_dies_again_and_again_ends_the_job() -> None:
    run = Run(Scripted([both([], [GONE]) for _ in range(3)]))
    with pytest.raises(SecureVFLError, match=r"gone \(killed by signal 9\), after 2 restarts"):
        run.go(restarts=2)
    assert run.host.stopped == 6


def test_a_job_that_may_not_start_again_says_who_is_gone() -> None:
    run = Run(Scripted([both([], [GONE])]))
    with pytest.raises(ConfigError, match=r"shop is gone \(killed by signal 9\): not again"):
        run.go(restarts=2, restart_from=ConfigError("not again"))


def test_an_error_of_an_actor_is_the_jobs_and_is_not_tried_again() -> None:
    """The one that has it is named, and not the peer that lost it."""
    failed = Event("failed", error="DataError", text="rows.csv: cannot be read")
    run = Run(Scripted([both([UNREACHABLE], [failed])]))
    with pytest.raises(DataError, match=r"^shop: rows.csv: cannot be read$"):
        run.go(restarts=2)
    assert run.host.stopped == 2


def test_what_travels_is_json() -> None:
    task = task_of("bank", names=NAMES, resume_rounds=3)
    assert TASK.validate_json(TASK.dump_json(task)) == task
    assert EVENT.validate_json(EVENT.dump_json(INTRODUCED)) == INTRODUCED
