"""What a local party opens and leaves: nothing is gone on the way, and nothing else opened."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.join import load_files
from securevfl.data.sources import load
from securevfl.errors import ConfigError, DataError, SecureVFLError
from securevfl.job import Job, read_job
from securevfl.parties.alignment import Common
from securevfl.parties.door import UNIX
from securevfl.parties.identity import Identity
from securevfl.parties.leftover import leave_ledger, leave_outcome, ledger_at, outcome_at
from securevfl.parties.local import Places, Supervision, train_locally
from securevfl.parties.local_party import LocalParty, folder_of, key_file, own_file
from securevfl.parties.own_data import ALIGNED, NamedRows, OwnRows, join, kept_common
from securevfl.parties.task import Event, Task, Tell
from securevfl.protocols.session.checkpoints import SessionState, last_session
from securevfl.training import Environment, TrainingResult, train
from securevfl.training.job_data import file_sources
from tests.end_to_end.commands import two_organizations
from tests.local_tasks import task_of

BREAST_CANCER: dict[str, object] = {"dataset": "breast_cancer", "rounds": 4, "learning_rate": 0.1}
DBCD: dict[str, object] = {**BREAST_CANCER, "rounds": 60, "algorithm": "dbcd", "batch_size": "full"}
DBCD.pop("learning_rate")


def job_of(**settings: object) -> Job:
    return Job.of(job={**BREAST_CANCER, **settings})


@pytest.mark.parametrize(("name", "labels"), [("party1", True), ("party2", False)])
def test_of_a_set_by_name_a_party_keeps_its_own_columns(name: str, labels: bool) -> None:
    dataset, rows = load("breast_cancer"), NamedRows.read(job_of(), name, None)
    every = np.arange(len(dataset.train_labels))
    own = rows.taken(Common(every, every[:0])).load(job_of())
    table = next(each for each in dataset.parties if each.name == name)
    assert np.array_equal(own.table.train, table.train)
    assert isinstance(own.table.train, np.ndarray)
    assert own.table.train.base is None  # or all columns would stay
    assert (own.train_labels is not None) == (own.test_labels is not None) == labels
    assert rows.digest == dataset.fingerprint
    for others in (every[::-1], every[1:]):
        with pytest.raises(DataError, match=f"party '{name}': its data set has other rows"):
            rows.taken(Common(others, every[:0]))


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize("by_digest", [False, True])
def test_an_operator_finds_the_rows_that_its_own_join_finds(by_digest: bool) -> None:
    sources = file_sources(read_job(Path(two_organizations())), Path())
    expected = load_files(sources)
    rows = {each.name: OwnRows.read(each, by_digest=by_digest) for each in sources}
    found = join(rows, "bank")
    taken = {name: each.taken(found[name]) for name, each in rows.items()}
    digests = {name: each.row_digests for name, each in taken.items()}
    assert np.array_equal(digests["bank"], digests["shop"])
    assert len(taken["bank"].test) == len(taken["shop"].test) == len(expected.test_labels)
    # Rows matched by digest keep the label party's order, which is not that of the ids.
    order = np.sort if by_digest else np.asarray
    assert np.array_equal(order(digests["bank"]), order(expected.row_digests))


@pytest.mark.usefixtures("clean_place")
def test_categories_may_be_columns_of_another_party() -> None:
    job = read_job(Path(two_organizations(preprocess={"categories": ["income"]})))
    given = job.model_dump(mode="json", exclude_unset=True)
    rows = {party: own_file(task_of(party, job=given)) for party in ("bank", "shop")}
    assert {party: len(each) for party, each in rows.items()} == {"bank": 400, "shop": 380}


class Stillborn:
    """A host of which every party is gone at once, once it has looked at what is there."""

    def __init__(self, looks: Callable[[Task], object]) -> None:
        self._looks = looks

    def start(self, task: Task, tell: Tell) -> "Stillborn":
        self._looks(task)
        tell(Event("gone", text="at once"))
        return self

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Nobody is left to hear of them."""

    def stop(self) -> None:
        """Nobody is left to stop."""


def started(
    folder: Path,
    looks: Callable[[Task], object],
    *,
    job: Job | None = None,
    restarts: int = 0,
    resume: Mapping[str, SessionState] | None = None,
) -> str:
    """What a job ends with whose parties are gone at once."""
    places = Places(folder / "models", folder, folder)
    with pytest.raises(SecureVFLError, match=r"party1 is gone \(at once\)") as ended:
        train_locally(
            job or job_of(),
            load("breast_cancer"),
            Stillborn(looks),
            places,
            resume=resume,
            supervision=Supervision(restarts=restarts),
        )
    return str(ended.value)


def test_nobody_else_gets_at_what_parties_share(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def looks(task: Task) -> None:
        socket = Path(task.addresses[task.name].removeprefix(UNIX))
        for path in (Path(task.work), socket.parent, key_file(task)):
            seen[path.name.replace(socket.parent.name, "sockets")] = path.stat().st_mode & 0o777
        own = Identity.load(key_file(task)).public.hex()
        assert own == task.identities[task.name]
        assert len(set(task.identities.values())) == 2

    started(tmp_path, looks)
    assert seen == {".parties": 0o700, "sockets": 0o700, "party1.key": 0o600, "party2.key": 0o600}
    assert not (tmp_path / "models" / ".parties").exists()


def test_identities_are_of_one_job(tmp_path: Path) -> None:
    seen: set[str] = set()
    for _ in range(2):
        started(tmp_path, lambda task: seen.update(task.identities.values()))
    assert len(seen) == 4


def test_what_alignment_would_find_is_there(tmp_path: Path) -> None:
    found: list[int] = []

    def looks(task: Task) -> None:
        rows = NamedRows.read(job_of(), task.name, None)
        kept = kept_common(folder_of(task) / ALIGNED, rows)
        assert kept is not None
        found.append(len(rows.taken(kept[0])))

    started(tmp_path, looks)
    assert found == 2 * [len(load("breast_cancer").train_labels)]


def test_what_a_killed_party_was_about_to_write_is_removed(tmp_path: Path) -> None:
    output = tmp_path / "models"
    wrote = {".party1.safetensors-abcd1234", ".party2.state-abcd1234", ".other.state-abcd1234"}

    def writes(_: Task) -> None:
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
        lambda task: found.append(last_session(output, tuple(task.identities))),
        resume=before if goes_on else None,
    )
    assert [set(each) for each in found] == [{"party1", "party2"} if goes_on else set()] * 2


def test_noise_is_not_released_again_after_a_death(tmp_path: Path) -> None:
    names: list[str] = []
    job = Job.of(job=BREAST_CANCER, exchange={"scheme": "dp"}, privacy={"noise_multiplier": 1.0})
    message = started(tmp_path, lambda task: names.append(task.name), job=job, restarts=3)
    assert "it is not started again: " in message
    assert names == ["party1", "party2"]


@pytest.mark.usefixtures("clean_place")
def test_an_overlap_of_own_files_is_nobodys_own(tmp_path: Path) -> None:
    text = Path(two_organizations()).read_text(encoding="utf-8")
    Path("job.toml").write_text(text.replace("[job]", "[job]\nalgorithm = 'ftl'"))
    job = read_job(tmp_path / "job.toml")
    dataset = load_files(file_sources(job, tmp_path))
    with pytest.raises(ConfigError, match="algorithm = 'ftl' on own files"):
        train_locally(job, dataset, Stillborn(print), Places(tmp_path, tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("7000", "expected HOST:PORT, port 0 for free ones"),
        ("localhost:some", "expected HOST:PORT, port 0 for free ones"),
        ("localhost:65535", "a process would have port 65536, at most 65535"),
    ],
)
def test_an_address_that_is_none_is_refused(listen: str, problem: str, tmp_path: Path) -> None:
    places = Places(tmp_path / "models", tmp_path, tmp_path, listen=listen)
    with pytest.raises(ConfigError, match=problem):
        train_locally(job_of(), load("breast_cancer"), Stillborn(print), places)


def left_by(party: str, folder: Path) -> Task:
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


@pytest.mark.parametrize(
    ("name", "settings", "apart"),
    [
        ("party1", {"algorithm": "fdml"}, False),
        ("party1", {"algorithm": "fdml", "model": "mlp"}, True),
        ("party2", {"algorithm": "fdml", "model": "mlp"}, False),
        ("party1", {"model": "mlp"}, False),
    ],
)
def test_a_server_has_a_thread_where_its_party_computes_long(
    name: str, settings: dict[str, object], apart: bool, tmp_path: Path
) -> None:
    job = Job.of(job={"dataset": "breast_cancer", **settings})
    task = task_of(
        name, tmp_path, job=job.model_dump(mode="json", exclude_unset=True), label_party="party1"
    )
    assert LocalParty(task, print)._keeps_others_waiting(job) == apart
