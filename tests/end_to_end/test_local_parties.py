"""Parties as processes learn what the simulation learns, also where one of them is killed."""

import contextlib
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from typing_extensions import override

from securevfl.errors import DataError, PeerViolation, SecureVFLError
from securevfl.files import read_arrays
from securevfl.job import Job, read_job
from securevfl.parties.local import Places, Supervision, train_locally
from securevfl.parties.local_party import folder_of
from securevfl.parties.own_data import ALIGNED, OwnRows, join
from securevfl.parties.processes import ProcessHandle, ProcessHost
from securevfl.parties.task import Task, Tell
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.runtime.costs import CORRELATED_RANDOMNESS
from securevfl.training import Environment, TrainingResult, save_models, train
from securevfl.training.job_data import file_sources, job_data
from tests.end_to_end.commands import (
    LONG,
    children,
    command_of,
    run,
    started,
    two_organizations,
    wait_until,
)
from tests.jobs import all_weights

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
STEPS: dict[str, object] = {"rounds": 300, "batch_size": 64, "learning_rate": 0.1}
SETTINGS = {**STEPS, "seed": 3, "start": "seeded"}


@dataclass
class KillingHost(ProcessHost):
    """Kills a party, so many times, as soon as a file is there; a state, once of some rounds."""

    victim: str
    when: Path
    times: int = 1
    rounds: int = 3
    by: signal.Signals = signal.SIGKILL
    watching: list[threading.Thread] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    @override
    def start(self, task: Task, tell: Tell) -> ProcessHandle:
        handle = super().start(task, tell)
        self.started.append(task.name)
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


def of_files(scheme: str = "plain", /, **settings: object) -> Job:
    """A job on two organizations' files; sections that algorithms have are sections."""
    own = {name: settings.pop(name) for name in ("fdml", "output") if name in settings}
    settings = {"start": "seeded", **settings}
    return read_job(Path(two_organizations(settings, scheme, **own)))  # type: ignore[arg-type]


def in_processes(
    job: Job,
    folder: Path,
    host: ProcessHost,
    *,
    listen: str | None = None,
    **more: Any,  # noqa: ANN401
) -> tuple[TrainingResult, list[str]]:
    said = list[str]()
    supervision = Supervision(say=said.append, **more.pop("supervision", {}))
    places = Places(folder / "models", folder, folder / "guard", listen=listen, **more)
    data = job_data(job, folder, None)
    return train_locally(job, data, host, places, supervision=supervision), said


def in_one_process(job: Job, folder: Path) -> TrainingResult:
    dataset = job_data(job, folder, None)
    result = train(job, dataset, Environment(guard_directory=folder / "another guard"))
    save_models(result, folder / "expected")
    return result


def require_same(result: TrainingResult, job: Job, folder: Path) -> None:
    """As in one process: model files byte for byte, and scores.

    All but the mean loss, which is of the rounds since a restart.
    """
    expected = in_one_process(job, folder)
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
    ends = ("safetensors", "state", "state.before")
    assert left <= {f"{name}.{end}" for name in expected.outcomes for end in ends}


def test_a_killed_party_changes_nothing(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"rounds": 300, "batch_size": 64, "learning_rate": 0.1}
    job, host = of_files(output={"checkpoint_every": 1}, **steps), killing("shop", tmp_path)
    result, (gone, goes_on) = in_processes(job, tmp_path, host, listen="127.0.0.1:0")
    require_same(result, job, tmp_path)
    assert gone == "shop is gone (killed by signal 9): it starts again, restart 1 of 3"
    assert goes_on == f"all go on after {result.rounds_before} rounds"
    assert host.started == ["bank", "shop", "shop"]
    assert 0 < result.rounds_before < 300
    assert result.costs().total_s > 0


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("plain", {"rounds": 12}),
        ("bfv", {"rounds": 4}),
        ("blind", {"rounds": 4, "loss": "taylor-logistic"}),
    ],
)
def test_processes_learn_and_count_what_the_simulation_does(
    scheme: str, settings: dict[str, object], tmp_path: Path
) -> None:
    steps: dict[str, object] = {
        "batch_size": 128,
        "local_steps": 2,
        "eval_every": 0,
        "learning_rate": 0.1,
    }
    steps |= {"allow_label_leak": True, "output": {"checkpoint_every": 0}}
    job = of_files(scheme, **steps, **settings)
    result, said = in_processes(job, tmp_path, ProcessHost(), listen="127.0.0.1:0")
    expected = in_one_process(job, tmp_path)
    assert said == []
    # Pads are fresh in every run: under `blind` weights agree to their last bits' rounding only.
    rounding = 2e-3 if scheme == "blind" else 0
    np.testing.assert_allclose(all_weights(result), all_weights(expected), rtol=0, atol=rounding)
    assert np.any(all_weights(result))
    assert [score.auc for score in result.scores] == pytest.approx(
        [score.auc for score in expected.scores], abs=1e-3 * (scheme == "blind")
    )
    for name, ledger in expected.ledgers.items():
        costs = result.ledgers[name]
        assert costs.hops == ledger.hops
        assert set(costs.bytes_sent) == set(ledger.bytes_sent)
        if scheme == "plain":
            assert costs.bytes_sent == ledger.bytes_sent
        # Which other phases are on the longest path depends on how fast each party is.
        assert ({CORRELATED_RANDOMNESS} if scheme == "blind" else {"setup", "local"}) <= set(
            costs.path
        )


def test_weights_of_rows_stay_at_the_label_party(tmp_path: Path) -> None:
    """Others are told their mean only, and take the same steps."""
    job = of_files(rounds=12, output={"checkpoint_every": 0})
    lines = (tmp_path / "bank.csv").read_text().splitlines()
    columns = ["w", *(f"{1 + n % 7}.5" for n in range(len(lines) - 1))]
    weighed = [f"{line},{each}" for line, each in zip(lines, columns, strict=True)]
    (tmp_path / "bank.csv").write_text("\n".join(weighed))
    bank, shop = job.party
    job = job.model_copy(update={"party": (bank.model_copy(update={"weight_column": "w"}), shop)})
    result, said = in_processes(job, tmp_path, ProcessHost())
    assert said == []
    require_same(result, job, tmp_path)
    assert result.plan.facts.weight_bits == 67  # a mean of at most 8


class MisalignedHost(ProcessHost):
    """Swaps two of the aligned rows that the shop orders its own file by."""

    @override
    def start(self, task: Task, tell: Tell) -> ProcessHandle:
        if task.name == "shop":
            path = folder_of(task) / ALIGNED
            header, arrays = read_arrays(path)
            arrays["train"][[0, 1]] = arrays["train"][[1, 0]]
            path.write_bytes(save(arrays, header))
        return super().start(task, tell)


class ForgetfulHost(ProcessHost):
    """Removes a row of the shop's file once the rows are joined."""

    @override
    def start(self, task: Task, tell: Tell) -> ProcessHandle:
        if task.name == "shop":
            lines = Path("shop.csv").read_text(encoding="utf-8").splitlines()
            Path("shop.csv").write_text("\n".join(lines[:-1]), encoding="utf-8")
        return super().start(task, tell)


def test_data_that_changed_since_they_were_joined_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="are not those that the job was planned for"):
        in_processes(of_files(rounds=3), tmp_path, ForgetfulHost())


@pytest.mark.parametrize("scheme", ["plain", "blind"])
def test_as_many_rows_in_another_order_are_refused_before_the_first_round(
    scheme: str, tmp_path: Path
) -> None:
    steps: dict[str, Any] = {"rounds": 3, "local_steps": 1, "allow_label_leak": True}
    job = of_files(scheme, loss="taylor-logistic", output={"checkpoint_every": 0}, **steps)
    refusal = "(shop|bank) holds the same number of rows, but others or in another order"
    with pytest.raises(SecureVFLError, match=refusal):
        in_processes(job, tmp_path, MisalignedHost())
    dataset = job_data(job, tmp_path, None)
    first, second, *others = range(len(dataset.train_labels))
    sources = file_sources(job, tmp_path)
    rows = {each.name: OwnRows.read(each, by_digest=False) for each in sources}
    taken = rows["shop"].taken(join(rows, "bank")["shop"])
    swapped = replace(taken, train=[taken.train[i] for i in (second, first, *others)])
    tables = tuple(
        swapped.load(job).table if each.name == "shop" else each for each in dataset.parties
    )
    with pytest.raises(PeerViolation, match=refusal):
        train(job, replace(dataset, parties=tables))


def test_parties_start_where_no_job_file_says(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"rounds": 3, "local_steps": 1, "learning_rate": 0.1}
    job = of_files(start="random", **steps)
    result, _ = in_processes(job, tmp_path, ProcessHost())
    apart = np.abs(all_weights(result) - all_weights(in_one_process(job, tmp_path)))
    assert apart.min() > 1e-6


def killing(victim: str, folder: Path, **more: Any) -> KillingHost:  # noqa: ANN401
    return KillingHost(victim, folder / "models" / f"{victim}.state", **more)


@pytest.mark.slow
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
    job = job_of(**sections)
    result, (gone, _) = in_processes(job, tmp_path, killing(victim, tmp_path))
    assert gone.startswith(f"{victim} is gone ")
    require_same(result, job, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["party1", "party2"])
def test_a_job_that_keeps_no_state_starts_again(victim: str, tmp_path: Path) -> None:
    job = job_of(job={"algorithm": "fdml", "rounds": 60}, fdml={"staleness": 0})
    host = KillingHost(victim, tmp_path / "models" / "party1.safetensors")
    result, said = in_processes(job, tmp_path, host)
    require_same(result, job, tmp_path)
    gone = f"{victim} is gone (killed by signal 9): it starts again, restart 1 of 3"
    assert said == [gone, "all begin again"]


class Stillborn(ProcessHost):
    """Kills every party before all are connected, which is when it would have left its socket."""

    @override
    def start(self, task: Task, tell: Tell) -> ProcessHandle:
        handle = super().start(task, tell)
        handle.process.kill()
        return handle


def test_parties_that_die_again_and_again_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(SecureVFLError, match=r"is gone .*, after 1 restarts"):
        in_processes(job_of(), tmp_path, Stillborn(), supervision={"restarts": 1})
    assert not list((tmp_path / "tmp").iterdir())
    assert not list((tmp_path / "models").iterdir())


def test_a_party_that_cannot_open_its_data_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = two_organizations()

    def start(host: ProcessHost, task: Task, tell: Tell) -> ProcessHandle:
        Path("shop.csv").unlink(missing_ok=True)
        return ProcessHandle(task, tell, host.silence_seconds)

    monkeypatch.setattr(ProcessHost, "start", start)
    assert run("train", job, "--processes", "--quiet") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("securevfl: error: shop: ")
    assert error.endswith("shop.csv: cannot be read (No such file or directory)")


# ------------------------------------- processes end with their operator, however it ends


def test_an_interrupt_ends_all_of_them(tmp_path: Path) -> None:
    """No process and no socket is left, and the command line says how it goes on."""
    printed = ended_by(signal.SIGINT, tmp_path, expected=130)
    assert printed[-1] == "securevfl: interrupted"
    assert any("rounds; continue with: securevfl train job.toml" in line for line in printed)


@pytest.mark.slow
def test_parties_do_not_outlive_an_operator_that_is_killed(tmp_path: Path) -> None:
    ended_by(signal.SIGKILL, tmp_path, expected=-signal.SIGKILL)


def ended_by(sent: signal.Signals, folder: Path, expected: int) -> list[str]:
    """What a job of processes says that is ended in its midst, and that nobody is left of it."""
    Path("job.toml").write_text(
        "[job]\ndataset = 'breast_cancer'\nrounds = 1000000\n[output]\ncheckpoint_every = 1\n",
        encoding="utf-8",
    )
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        with started("train", "job.toml", "--processes") as process:
            wait_until(process, (folder / "models" / "party2.state.before").exists)
            parties = children(process.pid)
            assert len(parties) == 2
            process.send_signal(sent)
            _, told = process.communicate(timeout=LONG)
            assert process.returncode == expected
            wait_until(None, lambda: not any(command_of(each) for each in parties))
    assert not list((folder / "tmp").iterdir())
    assert not (folder / "models" / ".parties").exists()
    return told.splitlines()
