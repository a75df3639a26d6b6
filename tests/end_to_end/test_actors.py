"""Parties as processes learn what the simulation learns, also where one of them is killed."""

import contextlib
import signal
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from securevfl.actors.own_data import job_data
from securevfl.actors.processes import ProcessHandle, ProcessHost
from securevfl.actors.task import ActorTask, Tell
from securevfl.actors.training import Places, Supervision, train_by_actors
from securevfl.errors import ConfigError, DataError, SecureVFLError
from securevfl.job import Job, read_job
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.training import Environment, TrainingResult, save_models, train
from tests.end_to_end.commands import run, two_organizations
from tests.jobs import breast_cancer

Capture = pytest.CaptureFixture[str]
LONG = 60.0  # seconds after which a test that waits has failed
SETTINGS: dict[str, object] = {"rounds": 300, "batch_size": 64, "learning_rate": 0.1, "seed": 3}


@dataclass
class KillingHost(ProcessHost):
    """Kills an actor, so many times, as soon as there is a file.

    Attributes:
        victim: which.
        when: the file; of a state, that of a round.
        times: how often.
        rounds: of the state.
        by: the signal.
    """

    victim: str
    when: Path
    times: int = 1
    rounds: int = 3
    by: signal.Signals = signal.SIGKILL
    watching: list[threading.Thread] = field(default_factory=list)

    @override
    def start(self, task: ActorTask, tell: Tell) -> ProcessHandle:
        handle = super().start(task, tell)
        if task.name == self.victim and len(self.watching) < self.times:
            self.watching.append(threading.Thread(target=self._kill, args=(handle,)))
            self.watching[-1].start()
        return handle

    def _kill(self, handle: ProcessHandle) -> None:
        deadline = time.monotonic() + LONG
        while not self._is_time() and time.monotonic() < deadline:
            time.sleep(0.001)
        handle.process.send_signal(self.by)

    def _is_time(self) -> bool:
        if not self.when.name.endswith(".state"):
            return self.when.exists()
        with contextlib.suppress(DataError):
            return SessionState.load(self.when).rounds >= self.rounds
        return False


def job_of(**sections: dict[str, object]) -> Job:
    settings = {"dataset": "breast_cancer", **SETTINGS, **sections.pop("job", {})}
    output: dict[str, object] = {"checkpoint_every": 1, **sections.pop("output", {})}
    return Job.of(job=settings, output=output, **sections)


def places_of(folder: Path, listen: str | None = None) -> Places:
    return Places(folder / "models", folder, folder / "guard", listen=listen)


def in_one_process(job: Job, folder: Path) -> TrainingResult:
    dataset = job_data(job, folder, None)
    result = train(job, dataset, Environment(guard_directory=folder / "another guard"))
    save_models(result, folder / "expected")
    return result


def require_same(result: TrainingResult, expected: TrainingResult, folder: Path) -> None:
    """Model files byte for byte, and scores; the mean loss is of the rounds since a restart."""
    for name in expected.outcomes:
        model, twin = (folder / each / f"{name}.safetensors" for each in ("models", "expected"))
        assert model.read_bytes() == twin.read_bytes()
    score, twin_score = (
        replace(each.scores[-1], training_loss=None) for each in (result, expected)
    )
    assert score == twin_score
    assert result.rounds == expected.rounds
    assert result.status == expected.status
    left = {path.name for path in (folder / "models").iterdir()}
    assert left <= {
        f"{name}.{end}"
        for name in expected.outcomes
        for end in ("safetensors", "state", "state.before")
    }


@pytest.mark.usefixtures("clean_place")
def test_a_killed_party_changes_nothing(tmp_path: Path) -> None:
    """Own files, TLS, and a feature party that dies on the way."""
    text = Path(two_organizations()).read_text(encoding="utf-8")
    settings = "rounds = 300\nbatch_size = 64\nlearning_rate = 0.1\n[output]\ncheckpoint_every = 1"
    text = text.replace("ckks", "plain").replace("rounds = 30", settings)
    Path("job.toml").write_text(text, encoding="utf-8")
    job, said = read_job(Path("job.toml")), list[str]()
    result = train_by_actors(
        job,
        job_data(job, tmp_path, None),
        KillingHost("shop", tmp_path / "models" / "shop.state"),
        places_of(tmp_path, listen="127.0.0.1:0"),
        supervision=Supervision(say=said.append),
    )
    require_same(result, in_one_process(job, tmp_path), tmp_path)
    (line,) = said
    assert line.startswith("shop is gone (killed by signal 9): all go on after ")
    assert line.endswith(" rounds, restart 1 of 3")
    assert 0 < result.rounds_before < 300
    assert result.costs().total_s > 0


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize(
    ("sections", "victim"),
    [
        ({"exchange": {"scheme": "plain"}}, "party1"),
        ({"exchange": {"scheme": "plain"}}, "party2"),
        ({"exchange": {"scheme": "masked"}, "job": {"parties": 3}}, "party3"),
        (
            {"exchange": {"scheme": "bfv"}, "job": {"rounds": 20, "allow_label_leak": True}},
            "party1",
        ),
        ({"job": {"algorithm": "ftl", "rounds": 60}}, "party2"),
    ],
)
def test_any_party_of_any_exchange_may_die(
    sections: dict[str, dict[str, object]], victim: str, tmp_path: Path
) -> None:
    job, said = job_of(**sections), list[str]()
    host = KillingHost(victim, tmp_path / "models" / f"{victim}.state")
    result = train_by_actors(
        job,
        breast_cancer(job.job.parties),
        host,
        places_of(tmp_path),
        supervision=Supervision(say=said.append),
    )
    require_same(result, in_one_process(job, tmp_path), tmp_path)
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize("victim", ["server", "party1"])
def test_a_job_that_keeps_no_state_starts_again(victim: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"algorithm": "fdml", "rounds": 60}
    job, said = job_of(job=settings, fdml={"staleness": 0}), list[str]()
    host = KillingHost(victim, tmp_path / "models" / "party1.safetensors")
    result = train_by_actors(
        job, breast_cancer(), host, places_of(tmp_path), supervision=Supervision(say=said.append)
    )
    require_same(result, in_one_process(job, tmp_path), tmp_path)
    assert said == [f"{victim} is gone (killed by signal 9): all start again, restart 1 of 3"]


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_what_is_counted_once_is_not_released_again(tmp_path: Path) -> None:
    job = job_of(exchange={"scheme": "dp"}, privacy={"noise_multiplier": 4.0})
    host = KillingHost("party2", tmp_path / "models" / "party2.safetensors")
    with pytest.raises(ConfigError, match=r"party2 is gone .*: it is not started again: exchange"):
        train_by_actors(job, breast_cancer(), host, places_of(tmp_path))


@pytest.mark.usefixtures("clean_place")
def test_what_one_left_that_listened_is_in_nobodys_way(tmp_path: Path) -> None:
    """It is killed before all are connected, which is when it would have removed its socket."""
    left: list[Path] = []

    class Stillborn(ProcessHost):
        @override
        def start(self, task: ActorTask, tell: Tell) -> ProcessHandle:
            assert task.listen.startswith("unix:")
            left.append(Path(task.listen.removeprefix("unix:")))
            left[-1].touch(exist_ok=False)
            handle = super().start(task, tell)
            handle.process.kill()
            return handle

    with pytest.raises(SecureVFLError, match=r"is gone .*, after 1 restarts"):
        train_by_actors(
            job_of(),
            breast_cancer(),
            Stillborn(),
            places_of(tmp_path),
            supervision=Supervision(restarts=1),
        )
    assert len(left) == 4
    assert not any(path.exists() for path in left)


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_one_that_is_frozen_is_started_again_and_one_that_computes_is_not(tmp_path: Path) -> None:
    """All but the frozen one wait for it, and say that they are alive, for longer than it may."""
    job, said = job_of(), list[str]()
    host = KillingHost(
        "party2", tmp_path / "models" / "party2.state", by=signal.SIGSTOP, silence_seconds=4.0
    )
    result = train_by_actors(
        job, breast_cancer(), host, places_of(tmp_path), supervision=Supervision(say=said.append)
    )
    require_same(result, in_one_process(job, tmp_path), tmp_path)
    (line,) = said
    assert line.startswith("party2 is gone (silent for 4 s): all go on after ")


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_one_that_always_dies_ends_the_job(tmp_path: Path) -> None:
    job = job_of(job={"rounds": 100_000})
    host = KillingHost("party1", tmp_path / "models" / "party2.state", times=2)
    with pytest.raises(SecureVFLError, match=r"party1 is gone .*, after 1 restarts"):
        train_by_actors(
            job, breast_cancer(), host, places_of(tmp_path), supervision=Supervision(restarts=1)
        )


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize("algorithm", ["fdml", "fedsgd", "fedbcd-p"])
def test_row_shards_learn_what_one_actor_learns(algorithm: str, tmp_path: Path) -> None:
    """Also where one of them is killed: all start again."""
    text = Path(two_organizations()).read_text(encoding="utf-8").replace("ckks", "plain")
    settings = (
        f"rounds = 100\nalgorithm = '{algorithm}'\nbatch_size = 40\nlearning_rate = 0.5\n"
        "standardize = false\nstart = 'zero'\nl2 = 0.01"
    )
    text = text.replace("rounds = 30", settings)
    own = "\n[fdml]\nstaleness = 0\n" if algorithm == "fdml" else ""
    Path("job.toml").write_text(text + own, encoding="utf-8")
    job, said = read_job(Path("job.toml")), list[str]()
    places = replace(places_of(tmp_path), row_shards=2)
    host = KillingHost("shop#1", tmp_path / "models" / ".actors" / "facts")
    result = train_by_actors(
        job, job_data(job, tmp_path, None), host, places, supervision=Supervision(say=said.append)
    )
    expected = in_one_process(job, tmp_path)
    for name, outcome in expected.outcomes.items():
        model = result.outcomes[name].model
        np.testing.assert_allclose(model.weights, outcome.model.weights, rtol=1e-9, atol=1e-12)
        assert model.header.rows == outcome.model.header.rows
    assert result.scores[-1].auc == pytest.approx(expected.scores[-1].auc)
    assert result.rounds == expected.rounds
    assert "shop#1" in result.ledgers
    assert said == ["shop#1 is gone (killed by signal 9): all start again, restart 1 of 3"]


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_labels_that_all_have_come_from_the_label_partys_file(tmp_path: Path) -> None:
    text = Path(two_organizations()).read_text(encoding="utf-8").replace("ckks", "plain")
    Path("job.toml").write_text(
        text.replace("[job]", "[job]\nalgorithm = 'fdml'\nbatch_size = 32")
        + "\n[fdml]\nstaleness = 0\n",
        encoding="utf-8",
    )
    job = read_job(Path("job.toml"))
    result = train_by_actors(job, job_data(job, tmp_path, None), ProcessHost(), places_of(tmp_path))
    expected = in_one_process(job, tmp_path)
    for name in expected.outcomes:
        model, twin = (tmp_path / each / f"{name}.safetensors" for each in ("models", "expected"))
        assert model.read_bytes() == twin.read_bytes()
    assert result.rounds == expected.rounds


@pytest.mark.usefixtures("clean_place")
def test_a_party_that_cannot_open_its_data_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = two_organizations()

    def start(host: ProcessHost, task: ActorTask, tell: Tell) -> ProcessHandle:
        Path("shop.csv").unlink(missing_ok=True)
        return ProcessHandle(task, tell, host.silence_seconds)

    monkeypatch.setattr(ProcessHost, "start", start)
    assert run("train", job, "--processes", "--quiet") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("securevfl: error: shop: ")
    assert error.endswith("shop.csv: cannot be read (No such file or directory)")


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_a_port_that_is_taken(capsys: Capture) -> None:
    job = two_organizations()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("train", job, "--processes", "--listen", f"127.0.0.1:{port}", "--quiet") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        f"securevfl: error: bank: tcp:127.0.0.1:{port}: cannot listen there "
        "(Address already in use)"
    )
