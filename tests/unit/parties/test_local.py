"""What an actor opens, and what it leaves: nothing is gone on the way, and nothing else opened."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from securevfl.actors.leftover import leave_ledger, leave_outcome, ledger_at, outcome_at
from securevfl.actors.own_data import own_data, read_facts, require_own_data, write_facts
from securevfl.actors.party import PartyActor
from securevfl.actors.task import ActorTask, Event, Peer, Tell
from securevfl.actors.training import Places, Supervision, train_by_actors
from securevfl.data.sources import load
from securevfl.errors import ConfigError, DataError, SecureVFLError
from securevfl.job import Job, read_job
from securevfl.protocols.session.checkpoints import SessionState, last_session
from securevfl.training import Environment, TrainingResult, plan_for, train
from tests.actor_tasks import task_of
from tests.end_to_end.commands import two_organizations

BREAST_CANCER: dict[str, object] = {"dataset": "breast_cancer", "rounds": 4, "learning_rate": 0.1}
DBCD: dict[str, object] = {**BREAST_CANCER, "rounds": 60, "algorithm": "dbcd", "batch_size": "full"}
DBCD.pop("learning_rate")


def job_of(**settings: object) -> Job:
    return Job.of(job={**BREAST_CANCER, **settings})


@pytest.mark.parametrize(("name", "labels"), [("party1", True), ("party2", False)])
def test_of_a_set_by_name_an_actor_keeps_its_own_columns(
    name: str, labels: bool, tmp_path: Path
) -> None:
    dataset = load("breast_cancer")
    plan = plan_for(job_of(), dataset)
    data = own_data(plan, name, tmp_path, tmp_path, None)
    table = next(each for each in dataset.parties if each.name == name)
    assert np.array_equal(data.table.train, table.train)
    assert isinstance(data.table.train, np.ndarray)
    assert data.table.train.base is None  # or all columns would stay
    assert (data.train_labels is not None) == (data.test_labels is not None) == labels


def test_other_data_than_were_planned_for_are_refused(tmp_path: Path) -> None:
    plan = plan_for(job_of(), load("breast_cancer"))
    other = replace(plan, facts=replace(plan.facts, rows=plan.facts.rows - 1))
    with pytest.raises(DataError, match="party 'party1': its data are not those that"):
        own_data(other, "party1", tmp_path, tmp_path, None)


class Stillborn:
    """A host of which every actor is gone at once, once it has looked at what is there."""

    def __init__(self, looks: Callable[[ActorTask], object]) -> None:
        self._looks = looks

    def start(self, task: ActorTask, tell: Tell) -> "Stillborn":
        self._looks(task)
        tell(Event("gone", text="at once"))
        return self

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Nobody is left to hear of them."""

    def stop(self) -> None:
        """Nobody is left to stop."""


def started(
    folder: Path,
    looks: Callable[[ActorTask], object],
    *,
    job: Job | None = None,
    restarts: int = 0,
    resume: Mapping[str, SessionState] | None = None,
) -> str:
    """What a job ends with whose actors are gone at once."""
    places = Places(folder / "models", folder, folder)
    with pytest.raises(SecureVFLError, match=r"party1 is gone \(at once\)") as ended:
        train_by_actors(
            job or job_of(),
            load("breast_cancer"),
            Stillborn(looks),
            places,
            resume=resume,
            supervision=Supervision(restarts=restarts),
        )
    return str(ended.value)


def test_nobody_else_gets_at_what_actors_share(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def looks(task: ActorTask) -> None:
        for name, path in {
            "facts": Path(task.work),
            "socket": Path(task.listen.removeprefix("unix:")).parent,
        }.items():
            seen[name] = path.stat().st_mode & 0o777

    started(tmp_path, looks)
    assert seen == {"facts": 0o700, "socket": 0o700}
    assert not (tmp_path / "models" / ".actors").exists()


def test_no_socket_gets_the_name_of_an_earlier_one(tmp_path: Path) -> None:
    """Of an actor that was killed before all were connected one may be left."""
    listened: list[str] = []
    message = started(tmp_path, lambda task: listened.append(task.listen), restarts=1000)
    assert message.endswith("after 1000 restarts")
    assert len(set(listened)) == len(listened) == 2 * 1001


def test_what_a_killed_actor_was_about_to_write_is_removed(tmp_path: Path) -> None:
    output = tmp_path / "models"
    wrote = {".party1.safetensors-abcd1234", ".party2.state-abcd1234", ".other.state-abcd1234"}

    def writes(_: ActorTask) -> None:
        for name in wrote:
            (output / name).touch()

    started(tmp_path, writes)
    assert {path.name for path in output.iterdir()} == {".other.state-abcd1234"}


def kept(folder: Path, **settings: object) -> Mapping[str, SessionState]:
    """The states that a job leaves there, by party."""
    job = Job.of(job={**BREAST_CANCER, **settings}, output={"checkpoint_every": 1})
    train(job, load("breast_cancer"), Environment(checkpoints=folder))
    return last_session(folder, ("party1", "party2"))


@pytest.mark.parametrize("goes_on", [False, True])
def test_states_of_an_earlier_session_are_gone_unless_it_goes_on(
    goes_on: bool, tmp_path: Path
) -> None:
    output = tmp_path / "models"
    before, found = kept(output), list[Mapping[str, SessionState]]()
    started(
        tmp_path,
        lambda task: found.append(last_session(output, task.names)),
        resume=before if goes_on else None,
    )
    assert [set(each) for each in found] == [{"party1", "party2"} if goes_on else set()] * 2


@pytest.mark.parametrize(("seed", "goes_on_after"), [(0, 3), (1, None)])
def test_only_states_of_its_own_job_are_gone_on_from_after_a_death(
    seed: int, goes_on_after: int | None, tmp_path: Path
) -> None:
    """Another job's, which were put there since, are none of its own."""
    after: list[int | None] = []

    def looks(task: ActorTask) -> None:
        after.append(task.resume_rounds)
        kept(tmp_path / "models", seed=seed)

    started(tmp_path, looks, job=Job.of(job={**BREAST_CANCER, "seed": 0}), restarts=1)
    assert after == [None, None, goes_on_after, goes_on_after]


def test_noise_is_not_released_again_after_a_death(tmp_path: Path) -> None:
    names: list[str] = []
    job = Job.of(job=BREAST_CANCER, exchange={"scheme": "dp"}, privacy={"noise_multiplier": 1.0})
    message = started(tmp_path, lambda task: names.append(task.name), job=job, restarts=3)
    assert "it is not started again: " in message
    assert names == ["party1", "party2"]


def test_facts_come_back(tmp_path: Path) -> None:
    plan = plan_for(job_of(), load("breast_cancer"))
    write_facts(tmp_path, plan, tmp_path)
    facts = read_facts(tmp_path)
    assert facts == plan.facts
    assert np.array_equal(facts.row_digests, plan.facts.row_digests)
    (tmp_path / "facts").write_bytes(b"{}")
    with pytest.raises(DataError, match="damaged"):
        read_facts(tmp_path)
    (tmp_path / "facts").unlink()
    with pytest.raises(DataError, match="facts"):
        read_facts(tmp_path)


@pytest.mark.usefixtures("clean_place")
def test_an_overlap_of_own_files_is_nobodys_own(tmp_path: Path) -> None:
    text = Path(two_organizations()).read_text(encoding="utf-8")
    Path("job.toml").write_text(text.replace("[job]", "[job]\nalgorithm = 'ftl'"))
    with pytest.raises(ConfigError, match="algorithm = 'ftl' on own files"):
        require_own_data(read_job(tmp_path / "job.toml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_hash": 64 * "0"}, r"the job's hash is [0-9a-f]{16}, not 0{16}$"),
        ({"resume_rounds": 3}, "no state after 3 rounds in "),
    ],
)
def test_an_actor_of_another_job_or_state_takes_no_part(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    job = job_of()
    plan, said = plan_for(job, load("breast_cancer")), list[Event]()
    write_facts(tmp_path, plan, tmp_path)
    task = replace(
        task_of("party1", tmp_path),
        job=job.model_dump(mode="json", exclude_unset=True),
        job_hash=plan.hash.hex(),
        names=plan.facts.names,
        listen=f"unix:{tmp_path / 'socket'}",
    )
    with threadpool_limits(task.threads):  # an actor sets its process's, and this one is ours
        for each in (task, replace(task, **changes)):
            actor = PartyActor(each, said.append)
            actor.open()
            actor.close()
    introduced, failed = said
    assert introduced.kind == "introduced"
    assert (failed.kind, failed.error) == ("failed", "DataError")
    assert re.search(message, failed.text)


def left_by(party: str, folder: Path) -> ActorTask:
    return task_of(party, folder, output=str(folder / "models"))


@pytest.fixture(scope="module")
def trained() -> dict[str, TrainingResult]:
    """A job of rounds, and an L1 path with a model for each of its points."""
    dataset = load("breast_cancer")
    path = Job.of(job=DBCD, dbcd={"path": [0.1, 0.01]})
    return {"rounds": train(job_of(), dataset), "path": train(path, dataset)}


@pytest.mark.parametrize("name", ["rounds", "path"])
def test_what_is_left_comes_back(
    name: str, trained: dict[str, TrainingResult], tmp_path: Path
) -> None:
    result = trained[name]
    for party, outcome in result.outcomes.items():
        leave_outcome(left_by(party, tmp_path), outcome)
        leave_ledger(tmp_path / "ledger", result.ledgers[party])
        back = outcome_at(tmp_path, tmp_path / "models", party, result.plan)
        assert np.array_equal(back.held_out, outcome.held_out)
        assert np.array_equal(back.model.weights, outcome.model.weights)
        for field in ("rounds", "scores", "leakage", "ended", "learned", "selected", "losses"):
            assert getattr(back, field) == getattr(outcome, field)
        assert [each.l1 for each in back.path] == [each.l1 for each in outcome.path]
        for one, other in zip(back.path, outcome.path, strict=True):
            assert np.array_equal(one.model.weights, other.model.weights)
        ledger, given = ledger_at(tmp_path / "ledger"), result.ledgers[party]
        assert ledger.snapshots == given.snapshots
        assert (ledger.path, ledger.messages) == (given.path, given.messages)
    assert (len(result.outcomes["party1"].path) == 2) == (name == "path")


def test_what_is_damaged_is_refused(trained: dict[str, TrainingResult], tmp_path: Path) -> None:
    result = trained["rounds"]
    leave_outcome(left_by("party1", tmp_path), result.outcomes["party1"])
    (tmp_path / "party1.rest").write_bytes(b"none")
    with pytest.raises(DataError, match="damaged"):
        outcome_at(tmp_path, tmp_path / "models", "party1", result.plan)
    (tmp_path / "ledger").write_text(json.dumps({"hops": 1}), encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        ledger_at(tmp_path / "ledger")
