"""A job that is killed at any moment starts again: same weights, counted once, never refused."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.errors import ConfigError, FeatureLeakRefused
from securevfl.job import Job
from securevfl.protocols.attempts import beginning
from securevfl.protocols.guards import failed_checks, person_record, row_record
from securevfl.protocols.guards.person_record import PersonRecord
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.plan import Plan
from securevfl.protocols.session import checkpoints
from securevfl.protocols.session.checkpoints import last_session
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.protocols.session.workplace import PartyOutcome, Workplace
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Program, simulate
from securevfl.training import data_of, plan_for
from tests.jobs import breast_cancer

KILLED = 9
WRITERS = (person_record, row_record, checkpoints, failed_checks)
RECORDS = ("labels.safetensors", "rows.safetensors")
SETTINGS: dict[str, dict[str, object]] = {
    # As many rounds as one job may show of these rows, and two may not.
    "plain": {"rounds": 5, "batch_size": "full", "learning_rate": 0.1, "eval_every": 0},
    "masked": {"rounds": 6, "batch_size": 128, "learning_rate": 0.1},
    "bfv": {"rounds": 3, "batch_size": "full", "learning_rate": 0.1},
    "blind": {"rounds": 3, "batch_size": "full", "loss": "taylor-logistic"},
    "dp": {"rounds": 6, "batch_size": 128, "learning_rate": 0.1},
}


@dataclass
class Attempts:
    """All parties' attempts at a job; each party has a folder for its secret and its records."""

    folder: Path
    scheme: str
    parties: int = 2
    every: int = 0

    @property
    def plan(self) -> Plan:
        settings = {"start": "random", **SETTINGS[self.scheme]}
        if self.parties > 2:
            settings["allow_label_leak"] = True
        job = Job.of(
            job=settings,
            exchange={"scheme": self.scheme},
            **({"privacy": {"noise_multiplier": 0.5}} if self.scheme == "dp" else {}),
            output={"checkpoint_every": self.every},
        )
        return plan_for(job, breast_cancer(self.parties))

    def of(self, name: str) -> Path:
        return self.folder / name

    def like(self, folder: Path) -> "Attempts":
        """The same parties before their first attempt: their secrets and keys, and no records."""
        for path in self.folder.rglob("*"):
            if path.suffix in (".attempts", ".key"):
                to = folder / path.relative_to(self.folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to)
        return replace(self, folder=folder)

    def run(self, wrap: Callable[[Program[Any]], Program[Any]] = lambda each: each) -> Any:  # noqa: ANN401
        plan, dataset = self.plan, breast_cancer(self.parties)
        states = last_session(self.folder / "states", plan.facts.names)
        pads = PadPlaces(self.folder / "pads", self.folder / "pad keys")
        places = {}
        for table in dataset.parties:
            data, own = data_of(plan, dataset, table), self.of(table.name)
            places[table.name] = Workplace(
                data=data,
                keys=KeyMaker(),
                **beginning(own / "job.attempts", plan, data),
                guard_directory=own / "guard",
                checkpoints=self.folder / "states",
                resume=states.get(table.name),
                pads=pads.of(table.name) if self.scheme == "blind" and self.every else None,
            )
        programs = plan.algorithm.programs(plan, places)
        wrapped = {name: wrap(program) for name, program in programs.items()}
        return simulate(wrapped, PRESETS["lan"], job_hash=plan.hash).results

    def killed(self, patch: Callable[[pytest.MonkeyPatch], None], wrap: Any = None) -> bool:  # noqa: ANN401
        """Run in a process of its own that may be killed; returns whether it was."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                patch(pytest.MonkeyPatch())
                self.run(*filter(None, [wrap]))
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, KILLED)
        return status == KILLED

    def records(self) -> dict[str, bytes]:
        return {
            f"{name}/{file}": path.read_bytes()
            for name in self.plan.facts.names
            for file in RECORDS
            if (path := self.of(name) / "guard" / file).exists()
        }


def weights(outcomes: Mapping[str, PartyOutcome]) -> dict[str, bytes]:
    return {name: each.model.digest.encode() for name, each in outcomes.items()}


def writes(number: int, *, after: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """Kills before or after a record or a state is written, of all in their order."""
    count = [0]

    def patch(patching: pytest.MonkeyPatch) -> None:
        for module in WRITERS:
            original = module.replace_file

            def write(*args: Any, original: Any = original, **how: bool) -> None:  # noqa: ANN401
                count[0] += 1
                if count[0] == number and not after:
                    os._exit(KILLED)
                original(*args, **how)
                if count[0] == number:
                    os._exit(KILLED)

            patching.setattr(module, "replace_file", write)

    return patch


class Dying:
    """A channel whose owner is killed as it sends its message of this number."""

    sent = 0

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self._number = channel, number

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._channel, name)

    async def send(self, *args: Any) -> None:  # noqa: ANN401
        Dying.sent += 1
        if Dying.sent == self._number:
            os._exit(KILLED)
        await self._channel.send(*args)


def sends(number: int) -> Callable[[Program[Any]], Program[Any]]:
    def wrap(program: Program[Any]) -> Program[Any]:
        async def dies(channel: Channel, costs: Costs) -> Any:  # noqa: ANN401
            Dying.sent = 0
            return await program(Dying(channel, number), costs)

        return dies

    return wrap


Undisturbed = Callable[..., tuple[Attempts, Any]]


def nothing(_: pytest.MonkeyPatch) -> None:
    """Leaves all as it is."""


@pytest.fixture
def undisturbed(tmp_path: Path) -> Undisturbed:
    def made(*args: Any, **more: Any) -> tuple[Attempts, Any]:  # noqa: ANN401
        attempts = Attempts(tmp_path / "undisturbed", *args, **more)
        return attempts, attempts.run()

    return made


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("scheme", "parties", "every"),
    [
        ("plain", 2, 0),
        pytest.param("plain", 2, 1, marks=SLOW),
        pytest.param("plain", 3, 0, marks=SLOW),
        pytest.param("masked", 3, 0, marks=SLOW),
        pytest.param("masked", 3, 1, marks=SLOW),
        pytest.param("bfv", 2, 0, marks=SLOW),
        pytest.param("bfv", 2, 1, marks=SLOW),
        pytest.param("bfv", 3, 1, marks=SLOW),
    ],
)
def test_a_job_that_is_killed_at_any_moment_counts_once_and_learns_the_same(
    scheme: str,
    parties: int,
    every: int,
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    whole, expected = undisturbed(scheme, parties, every=every)
    moments: list[tuple[Any, Any]] = []
    for number in range(1, 8):
        moments += [(writes(number, after=False), None), (writes(number, after=True), None)]
    moments += [(nothing, sends(number)) for number in (1, 2, 7, 12, 18)]
    killed = 0
    for place, (patch, wrap) in enumerate(moments):
        attempts = whole.like(tmp_path / str(place))
        killed += attempts.killed(patch, wrap)
        outcomes = attempts.run()
        assert weights(outcomes) == weights(expected)
        require_counted_once(attempts, whole)
    assert killed >= len(moments) // 2


def require_counted_once(attempts: Attempts, whole: Attempts) -> None:
    if not attempts.every:
        assert attempts.records() == whole.records()
    for name in attempts.records():
        path, twin = (
            each.folder / Path(name).parent / "guard" / Path(name).name
            for each in (attempts, whole)
        )
        if path.name.startswith("rows"):
            rows, others = RowRecord.load(path), RowRecord.load(twin)
            assert np.array_equal(rows.trained, others.trained)
            assert np.array_equal(rows.scored, others.scored)
        else:
            person, other = PersonRecord.load(path), PersonRecord.load(twin)
            for peer in other.model.keys() | other.others.keys():
                assert np.array_equal(person.model.get(peer, 0), other.model.get(peer, 0))
                assert np.array_equal(person.others.get(peer, 0), other.others.get(peer, 0))


def test_another_start_would_count_once_more_and_is_refused(
    undisturbed: Undisturbed,
) -> None:
    """The control: without the secret of the first attempt, numbers are others and count."""
    whole, expected = undisturbed("plain", 2)
    again = whole.run()
    assert weights(again) == weights(expected)
    before = RowRecord.load(whole.of("party2") / "guard" / "rows.safetensors").trained
    for secret in whole.folder.rglob("job.attempts"):
        secret.unlink()
    with pytest.raises(FeatureLeakRefused, match="this job would show up to 5 more"):
        whole.run()
    after = RowRecord.load(whole.of("party2") / "guard" / "rows.safetensors").trained
    assert np.array_equal(after, before)


@pytest.mark.parametrize(
    ("scheme", "parties"), [("plain", 2), ("plain", 3), pytest.param("bfv", 2, marks=SLOW)]
)
def test_a_job_of_which_one_party_dies_counts_once_too(
    scheme: str,
    parties: int,
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    """The others notice, and write down how far they came before they start again."""
    whole, expected = undisturbed(scheme, parties)

    class Dies(Exception):
        """Of one party."""

    for place, number in enumerate((1, 2, 4, 6)):
        attempts, sent = whole.like(tmp_path / str(place)), [0]

        def dying(program: Program[Any], sent: list[int] = sent, number: int = number) -> Any:  # noqa: ANN401
            async def dies(channel: Channel, costs: Costs) -> Any:  # noqa: ANN401
                if channel.name != "party2":
                    return await program(channel, costs)
                send = channel.send

                async def sends_or_dies(*args: Any) -> None:  # noqa: ANN401
                    sent[0] += 1
                    if sent[0] == number:
                        raise Dies
                    await send(*args)

                channel.send = sends_or_dies  # type: ignore[assignment,method-assign]
                return await program(channel, costs)

            return dies

        with pytest.raises(Dies):
            attempts.run(dying)
        assert weights(attempts.run()) == weights(expected)
        trained, twin = (
            (
                RowRecord.load(path).trained
                for path in (
                    each.of("party2") / "guard" / "rows.safetensors" for each in (attempts, whole)
                )
                if path.exists()
            )
            if scheme == "plain"
            else (0, 0)
        )
        assert np.array_equal(trained, twin)
        people, others = (
            PersonRecord.load(each.of("party1") / "guard" / "labels.safetensors")
            for each in (attempts, whole)
        )
        assert (people.answers, people.seen) == (others.answers, others.seen)


@pytest.mark.parametrize(
    ("parties", "every", "thorough"),
    [
        (2, 0, False),
        pytest.param(2, 1, True, marks=SLOW),
        pytest.param(3, 0, True, marks=SLOW),
        pytest.param(3, 1, True, marks=SLOW),
    ],
)
def test_blind_starts_again_and_its_end_counts_as_one_run_more(
    parties: int,
    every: int,
    thorough: bool,
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    whole, expected = undisturbed("blind", parties, every=every)
    label = whole.plan.facts.label_party
    twin = PersonRecord.load(whole.of(label) / "guard" / "labels.safetensors")
    moments: list[tuple[Any, Any]] = [(writes(n, after=n % 2 > 0), None) for n in (1, 2, 4)]
    moments += [(nothing, sends(n)) for n in (3, 9)]
    for place, (patch, wrap) in enumerate(moments if thorough else moments[:1]):
        attempts = whole.like(tmp_path / str(place))
        attempts.killed(patch, wrap)
        outcomes = attempts.run()
        for name, each in outcomes.items():
            apart = each.model.weights - expected[name].model.weights
            assert np.abs(apart).max() < 0.05 * np.abs(expected[name].model.weights).max()
        found = PersonRecord.load(attempts.of(label) / "guard" / "labels.safetensors")
        np.testing.assert_array_equal(found.ends, twin.ends)
        assert 1 <= sum(sum(each.values()) for each in found.told.values()) <= 2


def test_a_job_that_releases_noise_is_attempted_once(tmp_path: Path) -> None:
    """Fresh noise on the same numbers would take from it, and its account counts it once."""
    attempts = Attempts(tmp_path, "dp")
    attempts.killed(nothing, sends(4))
    with pytest.raises(ConfigError, match="is not started again: exchange 'dp'"):
        attempts.run()
