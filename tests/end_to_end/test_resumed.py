"""A session that goes on from what was saved after a round ends where an unbroken one ends."""

from pathlib import Path

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError, PeerError
from securevfl.job import Job
from securevfl.protocols.plan import ROW_OFFSETS
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.early_stopping import Course
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, all_weights, breast_cancer
from tests.made_data import blocks_of, dataset_of, labels_of

ROUNDS, BROKEN_AT = 6, 4
EXACT: dict[str, object] = {"local_steps": "exact", "batch_size": "full", "tolerance": 0.0}


def job_of(exchange: dict[str, object], **settings: object) -> Job:
    fixed = {"rounds": ROUNDS, "batch_size": 64, "local_steps": 3, "eval_every": 0}
    return Job.of(job={**fixed, **settings}, exchange=exchange)


def unbroken(
    job: Job, dataset: VerticalDataset, folder: Path
) -> tuple[TrainingResult, dict[str, SessionState]]:
    """A whole run, and what it kept in files on the way."""

    def keep(state: SessionState) -> None:
        if state.rounds == BROKEN_AT:
            state.save(folder / f"{state.party}.state")

    result = train(job, dataset, Environment(keys=SmallKeys(), keep_state=keep))
    states = {name: SessionState.load(folder / f"{name}.state") for name in result.outcomes}
    return result, states


@pytest.mark.parametrize(
    ("exchange", "settings", "parties"),
    [
        ({"scheme": "plain"}, {}, 2),
        ({"scheme": "plain"}, {"algorithm": "fedbcd-s"}, 3),
        ({"scheme": "plain"}, {"model": "mlp", "hidden": [3]}, 2),
        ({"scheme": "plain"}, {"algorithm": "ftl"}, 2),
        ({"scheme": "masked"}, {}, 3),
        ({"scheme": "paillier"}, {"batch_size": 128}, 2),
        ({"scheme": "bfv", "round_trips": 2}, {}, 2),
        ({"scheme": "bfv", "round_trips": 1}, {}, 3),
        ({"scheme": "bfv", "hide": "both"}, {"loss": "taylor-logistic"}, 3),
        ({"scheme": "plain"}, EXACT, 2),
        ({"scheme": "plain"}, {**EXACT, "batch_size": 128}, 3),
        ({"scheme": "plain"}, {**EXACT, "algorithm": "fedbcd-s"}, 3),
        ({"scheme": "masked"}, EXACT, 3),
        ({"scheme": "bfv", "round_trips": 2}, EXACT, 2),
        ({"scheme": "bfv", "round_trips": 1}, EXACT, 3),
        ({"scheme": "bfv", "hide": "both"}, {**EXACT, "loss": "squared"}, 3),
    ],
)
def test_it_ends_with_the_same_parameters(
    tmp_path: Path, exchange: dict[str, object], settings: dict[str, object], parties: int
) -> None:
    dataset, job = breast_cancer(parties), job_of(exchange, **settings)
    whole, states = unbroken(job, dataset, tmp_path)
    rest = train(job, dataset, Environment(keys=SmallKeys(), resume=states))
    assert rest.rounds == ROUNDS
    assert {len(ledger.snapshots) for ledger in rest.ledgers.values()} == {ROUNDS - BROKEN_AT}
    # The same operations on the same numbers in one process; new keys and masks leave no trace.
    np.testing.assert_array_equal(all_weights(rest), all_weights(whole))
    assert rest.label_guard_ratio == whole.label_guard_ratio
    assert rest.scores[-1].auc == whole.scores[-1].auc


def test_it_goes_on_with_the_row_offsets_that_it_had(tmp_path: Path) -> None:
    """Others in their place would show what the difference makes of sums."""
    dataset, job = breast_cancer(), job_of({"scheme": "plain"}, learning_rate=0.1)
    whole, states = unbroken(job, dataset, tmp_path)
    offsets = states[dataset.label_party].in_flight["row offsets"]
    assert np.std(offsets) == pytest.approx(ROW_OFFSETS, rel=0.1)
    offsets += 1
    rest = train(job, dataset, Environment(resume=states))
    assert np.abs(all_weights(rest) - all_weights(whole)).max() > 1e-3


@pytest.mark.parametrize("exchange", [{"scheme": "plain"}, {"scheme": "bfv", "round_trips": 1}])
def test_exact_steps_go_on_from_every_round(exchange: dict[str, object]) -> None:
    """Before, at and after the ways back, and where the label party then ends training."""
    generator = np.random.default_rng(1)
    (block,) = blocks_of(generator, 1)
    dataset = dataset_of([block] * 5, labels_of(generator, [block]))
    job = Job.of(job={"rounds": 20, "eval_every": 0}, exchange=exchange)
    kept: dict[int, dict[str, SessionState]] = {}

    def keep(state: SessionState) -> None:
        kept.setdefault(state.rounds, {})[state.party] = state

    whole = train(job, dataset, Environment(keep_state=keep, record_views=True))
    received = whole.views["party1"].received(Course)
    backs = [e.message.step for e in received if isinstance(e.message, Course) and e.message.back]
    assert len(backs) >= 2
    assert whole.rounds < 20
    broken = range(1, whole.rounds) if exchange["scheme"] == "plain" else (backs[0], backs[0] + 1)
    for rounds in broken:
        rest = train(job, dataset, Environment(resume=kept[rounds]))
        assert rest.rounds == whole.rounds
        np.testing.assert_array_equal(all_weights(rest), all_weights(whole))
        assert rest.outcomes["party0"].learned == whole.outcomes["party0"].learned


def test_a_state_holds_no_mask_no_noise_and_no_key(tmp_path: Path) -> None:
    dataset = breast_cancer(2)
    job = job_of({"scheme": "bfv", "round_trips": 1})
    _, states = unbroken(job, dataset, tmp_path)
    held = {name: set(vars(state)) for name, state in states.items()}
    known = {"job_hash", "party", "rounds", "weights", "revealed", "in_flight", "data"}
    assert set.union(*held.values()) == known
    steps = {"steps before", "steps kept", "steps numbers"}
    watch = {"watch losses", "watch bests", "watch ways back"}
    exchanged = {"exchange sum of the next predictions"}
    label = dataset.label_party
    kept = {"kept 1", "kept 2", "kept 3", "kept 4"}
    seen = {"kept losses", "kept scored", "kept figures"}
    own = watch | seen | {"row offsets"}
    assert {name: set(state.in_flight) for name, state in states.items()} == {
        name: steps | kept | exchanged | (own if name == label else set()) for name in states
    }
    offsets = states[label].in_flight["row offsets"].nbytes
    sizes = {name: len((tmp_path / f"{name}.state").read_bytes()) for name in states}
    assert all(size < 4000 + offsets * (name == label) for name, size in sizes.items())


def test_the_state_of_another_job_or_party_is_refused(tmp_path: Path) -> None:
    dataset, job = breast_cancer(2), job_of({"scheme": "plain"})
    _, states = unbroken(job, dataset, tmp_path)
    other = job.with_settings(learning_rate=0.2)
    with pytest.raises(ConfigError, match="state of party"):
        train(other, dataset, Environment(resume=states))
    first, second = states
    with pytest.raises(ConfigError, match="state of party"):
        train(job, dataset, Environment(resume={first: states[second], second: states[first]}))


def first_states(job: Job, dataset: VerticalDataset) -> dict[str, SessionState]:
    """What all keep after the first round."""
    kept: dict[str, SessionState] = {}

    def keep(state: SessionState) -> None:
        kept.setdefault(state.party, state)

    train(job, dataset, Environment(keep_state=keep))
    return kept


def test_a_party_that_fits_another_ones_state_does_not_take_it() -> None:
    generator = np.random.default_rng(1)
    blocks = blocks_of(generator, 3)
    dataset, job = dataset_of(blocks, labels_of(generator, blocks)), job_of({"scheme": "plain"})
    kept = first_states(job, dataset)
    swapped = {"party0": kept["party0"], "party1": kept["party2"], "party2": kept["party1"]}
    with pytest.raises(ConfigError, match=r"state of party 'party[12]'"):
        train(job, dataset, Environment(resume=swapped))


def test_a_session_does_not_go_on_with_other_data() -> None:
    generator = np.random.default_rng(1)
    blocks = blocks_of(generator, 2)
    labels, job = labels_of(generator, blocks), job_of({"scheme": "plain"})
    kept = first_states(job, dataset_of(blocks, labels))
    changed = dataset_of([blocks[0], blocks[1] + 0.5], labels)
    with pytest.raises(DataError, match="'party1': its data are not those of the session"):
        train(job, changed, Environment(resume=kept))


def test_a_job_that_cannot_go_on_writes_no_state(tmp_path: Path) -> None:
    every = {"checkpoint_every": 1}
    plain = job_of({"scheme": "plain"})
    for scheme, job in (
        ("plain", Job.of(**{**dict(plain), "output": every})),
        (
            "dp",
            Job.of(
                job=plain.job,
                exchange={"scheme": "dp"},
                output=every,
                privacy={"noise_multiplier": 1.0},
            ),
        ),
    ):
        train(job, breast_cancer(), Environment(checkpoints=tmp_path / scheme))
    assert len(list((tmp_path / "plain").glob("*.state*"))) == 4
    assert len(list((tmp_path / "dp").glob("*.safetensors"))) == 2
    assert not list((tmp_path / "dp").glob("*.state*"))


def test_parties_that_go_on_from_different_rounds_notice(tmp_path: Path) -> None:
    dataset, job = breast_cancer(2), job_of({"scheme": "plain"})
    _, states = unbroken(job, dataset, tmp_path)
    first, _ = states
    with pytest.raises(PeerError, match="step"):
        train(job, dataset, Environment(resume={first: states[first]}))


def test_noise_that_is_counted_is_not_drawn_again(tmp_path: Path) -> None:
    dataset, job = breast_cancer(2), job_of({"scheme": "dp"})
    noisy = Job.of(**{**dict(job), "privacy": {"noise_multiplier": 1.0}})
    _, states = unbroken(noisy, dataset, tmp_path)
    with pytest.raises(ConfigError, match="release again"):
        train(noisy, dataset, Environment(resume=states))


def test_what_was_saved_is_not_changed_by_going_on(tmp_path: Path) -> None:
    dataset, job = breast_cancer(2), job_of({"scheme": "bfv", "round_trips": 2})
    _, states = unbroken(job, dataset, tmp_path)
    before = {name: repr(state.revealed) for name, state in states.items()}
    train(job, dataset, Environment(keys=SmallKeys(), resume=states))
    assert {name: repr(state.revealed) for name, state in states.items()} == before


def test_a_session_that_has_ended_does_not_go_on() -> None:
    dataset, job = breast_cancer(2), job_of({"scheme": "plain"})
    states: dict[str, SessionState] = {}
    train(job, dataset, Environment(keep_state=lambda state: states.update({state.party: state})))
    with pytest.raises(ConfigError, match="after 6 rounds"):
        train(job, dataset, Environment(resume=states))


def test_fdml_keeps_no_state(tmp_path: Path) -> None:
    dataset = breast_cancer(2)
    _, states = unbroken(job_of({"scheme": "plain"}), dataset, tmp_path)
    with pytest.raises(ConfigError, match="keeps no state"):
        train(job_of({"scheme": "plain"}, algorithm="fdml"), dataset, Environment(resume=states))


def test_a_state_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bank.state"
    SessionState("ab", "bank", 3, np.ones((2, 1)), in_flight={"sum": np.ones(2)}).save(path)
    assert set(SessionState.load(path).in_flight) == {"sum"}
    path.write_bytes(path.read_bytes().replace(b"in flight.sum", b"in_flight.sum"))
    with pytest.raises(DataError, match="is damaged"):
        SessionState.load(path)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_damaged_state_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "bank.state"
    SessionState("ab", "bank", 3, np.ones((2, 1))).save(path)
    assert SessionState.load(path).rounds == 3
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="is damaged"):
        SessionState.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        SessionState.load(tmp_path / "none.state")


def test_a_job_that_goes_on_is_not_counted_twice(tmp_path: Path) -> None:
    dataset = breast_cancer(2)
    allowed = {"allow_label_leak": True, "allow_feature_leak": True}
    job = job_of({"scheme": "bfv"}, model="mlp", hidden=[3], **allowed)
    guard = tmp_path / "guard"
    states: dict[str, SessionState] = {}

    def keep(state: SessionState) -> None:
        if state.rounds == BROKEN_AT:
            states[state.party] = state

    train(job, dataset, Environment(keep_state=keep, guard_directory=guard))
    # Labels at the one party, held-out rows at the other.
    records = [next(guard.rglob(name)) for name in ("held-out.json", "labels.safetensors")]
    first = [each.read_bytes() for each in records]
    train(job, dataset, Environment(resume=states, guard_directory=guard))
    assert [each.read_bytes() for each in records] == first
    train(job, dataset, Environment(guard_directory=guard))
    assert all(each.read_bytes() != one for each, one in zip(records, first, strict=True))


def test_no_state_is_kept_of_a_round_that_ends_the_job() -> None:
    kept: list[int] = []
    job = job_of({"scheme": "plain"}, target_auc=0.5, eval_every=1)
    environment = Environment(keep_state=lambda state: kept.append(state.rounds))
    assert train(job, breast_cancer(2), environment).rounds == 1
    assert kept == []
