"""A session that goes on from what was saved after a round ends where an unbroken one ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, DataError, PeerError
from securevfl.job import Job
from securevfl.protocols.plan import ROW_OFFSETS
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.vertical import runner
from securevfl.training import Environment, TrainingResult, train
from tests import jobs
from tests.jobs import Kept, Settings, SmallKeys, all_weights, breast_cancer, received
from tests.made_data import blocks_of, dataset_of, labels_of, made

ROUNDS, BROKEN_AT = 6, 4
OPENED = {"scheme": "bfv", "hide": "both", "scores": "rows"}
EXACT = {"local_steps": "exact", "batch_size": "full", "tolerance": 0.0}
States = dict[str, SessionState]


def job_of(exchange: str | Settings = "plain", **settings: object) -> Job:
    fixed = {"rounds": ROUNDS, "batch_size": 64, "local_steps": 3, "eval_every": 0}
    return jobs.job_of(exchange, **{**fixed, **settings})


def whole_run(job: Job, dataset: VerticalDataset | None = None) -> tuple[TrainingResult, Kept]:
    kept = Kept()
    environment = Environment(keys=SmallKeys(), keep_state=kept)
    return train(job, dataset or breast_cancer(), environment), kept


def unbroken(
    job: Job, folder: Path, dataset: VerticalDataset | None = None
) -> tuple[TrainingResult, States]:
    result, kept = whole_run(job, dataset)
    for name, state in kept[BROKEN_AT].items():
        (folder / f"{name}.state").write_bytes(state.content())
    return result, {name: SessionState.load(folder / f"{name}.state") for name in result.outcomes}


def resumed(job: Job, states: States, dataset: VerticalDataset | None = None) -> TrainingResult:
    environment = Environment(keys=SmallKeys(), resume=states)
    return train(job, dataset or breast_cancer(), environment)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (4, ["state 0", "1", "2", "on disk", "3", "4", "state 4", "5", "6", "on disk"]),
        (1, ["state 0", "on disk", "1", "state 1", "on disk", "2", "state 2", "on disk"]),
    ],
)
def test_a_state_is_on_disk_two_rounds_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, expected: list[str]
) -> None:
    """A peer that is a round ahead would otherwise drop the only state that both have."""
    done: list[str] = []

    class Watched(Checkpoints):
        @override
        def keep(self, state: SessionState) -> None:
            super().keep(state)
            if state.party == "party1":
                done[-1:] = [f"state {state.rounds}"]  # it waits for the last one itself

        @override
        def settle(self) -> None:
            super().settle()
            if self.newest.name == "party1.state":
                done.append("on disk")

    monkeypatch.setattr(runner, "Checkpoints", Watched)
    job = job_of(tolerance=0.0, output={"checkpoint_every": every})
    environment = Environment(
        checkpoints=tmp_path, progress=lambda rounds: done.append(str(rounds))
    )
    train(job, breast_cancer(), environment)
    assert done[: len(expected)] == expected


@pytest.mark.parametrize(
    ("exchange", "settings", "parties"),
    [
        ("plain", {}, 2),
        ("plain", {"algorithm": "fedbcd-s"}, 3),
        ("plain", {"model": "mlp", "hidden": [3]}, 2),
        ("plain", {"algorithm": "ftl"}, 2),
        ("masked", {}, 3),
        ("paillier", {"batch_size": 128}, 2),
        ({"scheme": "bfv", "round_trips": 2}, {}, 2),
        ({"scheme": "bfv", "round_trips": 1}, {}, 3),
        (OPENED, {"loss": "taylor-logistic"}, 3),
        ("plain", EXACT, 2),
        ("plain", {**EXACT, "batch_size": 128}, 3),
        ("plain", {**EXACT, "algorithm": "fedbcd-s"}, 3),
        ("masked", EXACT, 3),
        ({"scheme": "bfv", "round_trips": 2}, EXACT, 2),
        ({"scheme": "bfv", "round_trips": 1}, EXACT, 3),
        (OPENED, {**EXACT, "loss": "squared"}, 3),
    ],
)
def test_it_ends_with_the_same_parameters(
    tmp_path: Path, exchange: str | Settings, settings: Settings, parties: int
) -> None:
    dataset, job = breast_cancer(parties), job_of(exchange, **settings)
    whole, states = unbroken(job, tmp_path, dataset)
    rest = resumed(job, states, dataset)
    assert rest.rounds == ROUNDS
    assert {len(ledger.snapshots) for ledger in rest.ledgers.values()} == {ROUNDS - BROKEN_AT}
    # The same operations on the same numbers in one process; new keys and masks leave no trace.
    np.testing.assert_array_equal(all_weights(rest), all_weights(whole))
    assert rest.label_guard_ratio == whole.label_guard_ratio
    assert rest.scores[-1].auc == whole.scores[-1].auc


def test_it_goes_on_with_the_row_offsets_that_it_had(tmp_path: Path) -> None:
    """Others in their place would show what the difference makes of sums."""
    job = job_of(learning_rate=0.1)
    whole, states = unbroken(job, tmp_path)
    offsets = states[breast_cancer().label_party].in_flight["row offsets"]
    assert np.std(offsets) == pytest.approx(ROW_OFFSETS, rel=0.1)
    offsets += 1
    assert np.abs(all_weights(resumed(job, states)) - all_weights(whole)).max() > 1e-3


@pytest.mark.parametrize("exchange", ["plain", {"scheme": "bfv", "round_trips": 1}])
def test_exact_steps_go_on_from_every_round(exchange: str | Settings) -> None:
    """Before, at and after the ways back, and where the label party then ends training."""
    generator = np.random.default_rng(1)
    (block,) = blocks_of(generator, 1)
    dataset = dataset_of([block] * 5, labels_of(generator, [block]))
    job, kept = jobs.job_of(exchange, rounds=20, eval_every=0), Kept()
    whole = train(job, dataset, Environment(keep_state=kept, record_views=True))
    backs = [
        decision.step for decision in received(whole, "party1", Decision) if decision.backtrack
    ]
    assert len(backs) >= 2
    assert whole.rounds < 20
    broken = range(1, whole.rounds) if exchange == "plain" else (backs[0], backs[0] + 1)
    for rounds in broken:
        rest = train(job, dataset, Environment(resume=kept[rounds]))
        assert rest.rounds == whole.rounds
        np.testing.assert_array_equal(all_weights(rest), all_weights(whole))
        assert rest.outcomes["party0"].learned == whole.outcomes["party0"].learned


def test_a_state_holds_no_mask_no_noise_and_no_key(tmp_path: Path) -> None:
    _, states = unbroken(job_of({"scheme": "bfv", "round_trips": 1}), tmp_path)
    known = {"job_hash", "party", "rounds", "weights", "revealed", "in_flight", "data"}
    assert set().union(*(vars(state) for state in states.values())) == known
    all_keep = {"steps before", "steps kept", "steps numbers", "kept 1", "kept 2", "kept 3"}
    all_keep |= {"kept 4", "exchange sum of the next predictions"}
    own = {"watch losses", "watch bests", "watch ways back", "row offsets"}
    own |= {"kept losses", "kept scored", "kept figures"}
    label = breast_cancer().label_party
    assert {name: set(state.in_flight) for name, state in states.items()} == {
        name: all_keep | (own if name == label else set()) for name in states
    }
    offsets = states[label].in_flight["row offsets"].nbytes
    sizes = {name: len((tmp_path / f"{name}.state").read_bytes()) for name in states}
    assert all(size < 4000 + offsets * (name == label) for name, size in sizes.items())


def test_the_state_of_another_job_or_party_is_refused() -> None:
    """A party's that fits: the two have as many columns."""
    dataset, job = made(1, 3), job_of()
    kept = whole_run(job, dataset)[1][1]
    swapped = {"party0": kept["party0"], "party1": kept["party2"], "party2": kept["party1"]}
    for other, given in ((job.with_settings(learning_rate=0.2), kept), (job, swapped)):
        with pytest.raises(ConfigError, match=r"state of party 'party\d'"):
            resumed(other, given, dataset)


def test_a_session_does_not_go_on_with_other_data() -> None:
    dataset, job = made(1), job_of()
    kept = whole_run(job, dataset)[1][1]
    first, second = (table.train for table in dataset.parties)
    changed = dataset_of([first, second + 0.5], as_classes(dataset.train_labels))
    with pytest.raises(DataError, match="'party1': its data differ from those of the session"):
        resumed(job, kept, changed)


def test_a_job_that_cannot_go_on_writes_no_state(tmp_path: Path) -> None:
    every: Settings = {"checkpoint_every": 1}
    for scheme, privacy in (("plain", {}), ("dp", {"noise_multiplier": 1.0})):
        job = job_of(scheme, output=every, privacy=privacy)
        train(job, breast_cancer(), Environment(checkpoints=tmp_path / scheme))
    assert len(list((tmp_path / "plain").glob("*.state*"))) == 4
    assert not (tmp_path / "dp").exists()


def test_parties_that_go_on_from_different_rounds_notice(tmp_path: Path) -> None:
    job = job_of()
    first, state = next(iter(unbroken(job, tmp_path)[1].items()))
    with pytest.raises(PeerError, match="step"):
        resumed(job, {first: state})


def test_noise_that_is_counted_is_not_drawn_again(tmp_path: Path) -> None:
    noisy = job_of("dp", privacy={"noise_multiplier": 1.0})
    _, states = unbroken(noisy, tmp_path)
    with pytest.raises(ConfigError, match="release again"):
        resumed(noisy, states)


def test_what_was_saved_is_not_changed_by_going_on(tmp_path: Path) -> None:
    job = job_of({"scheme": "bfv", "round_trips": 2})
    _, states = unbroken(job, tmp_path)
    before = {name: repr(state.revealed) for name, state in states.items()}
    resumed(job, states)
    assert {name: repr(state.revealed) for name, state in states.items()} == before


def test_a_session_that_has_ended_does_not_go_on_nor_one_of_fdml() -> None:
    job = job_of()
    _, kept = whole_run(job)
    with pytest.raises(ConfigError, match="after 6 rounds"):
        resumed(job, kept[ROUNDS])
    with pytest.raises(ConfigError, match="keeps no state"):
        resumed(job_of(algorithm="fdml"), kept[BROKEN_AT])


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data, cut=cut: data[:cut] for cut in (0, 7, 40, -1)),
        lambda data: data.replace(b"in flight.sum", b"in_flight.sum"),
    ],
    ids=["0", "7", "40", "all but one", "something else in it"],
)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "bank.state"
    state = SessionState("ab", "bank", 3, np.ones((2, 1)), in_flight={"sum": np.ones(2)})
    path.write_bytes(state.content())
    assert SessionState.load(path).rounds == 3
    assert set(SessionState.load(path).in_flight) == {"sum"}
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="is damaged"):
        SessionState.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        SessionState.load(tmp_path / "none.state")


def test_a_job_that_goes_on_is_not_counted_twice(tmp_path: Path) -> None:
    allowed: dict[str, Any] = {"allow_label_leak": True, "allow_feature_leak": True}
    job, kept = job_of("bfv", model="mlp", hidden=[3], **allowed), Kept()
    records: list[list[bytes]] = []
    for how in ("keep_state", "resume", None):
        given: dict[str, Any] = {"keep_state": kept} if how == "keep_state" else {}
        if how == "resume":
            given = {"resume": kept[BROKEN_AT]}
        again = job if given else job.with_settings(seed=1)
        train(again, breast_cancer(), Environment(guard_directory=tmp_path, **given))
        # Labels at the one party, held-out rows at the other.
        found = [next(tmp_path.rglob(name)) for name in ("rows.safetensors", "labels.safetensors")]
        records.append([each.read_bytes() for each in found])
    first, gone_on, anew = records
    assert gone_on == first
    assert all(each != one for each, one in zip(anew, first, strict=True))


def test_no_state_is_kept_of_a_round_that_ends_the_job() -> None:
    result, kept = whole_run(job_of(target_auc=0.5, eval_every=1))
    assert result.rounds == 1
    assert not kept
