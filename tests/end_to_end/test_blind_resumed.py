"""Blind jobs that go on, and pads of an earlier run: fresh where they must be, and the same end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError, PeerViolation
from securevfl.job import Job
from securevfl.models.curvature import Curvature
from securevfl.protocols.blind.links import (
    Corrections,
    EncryptedPads,
    EncryptedPoints,
    MaskedShares,
    MaskedSteps,
)
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.pad_store import PadPlaces, Pads, PadStore
from securevfl.runtime.costs import FixedCosts
from securevfl.runtime.views import View
from securevfl.training import Environment, TrainingResult, make_offline, plan_for, train
from tests.jobs import Kept, all_weights
from tests.made_data import made

ROUNDS, BROKEN_AT = 4, 2
CORRELATED_RANDOMNESS = (EncryptedPads, MaskedSteps, EncryptedPoints, MaskedShares, Corrections)
# Parameters are opened on a grid of 2^-12, and roundings on the way are random.
ROUNDING = 0.005
# Tables of cosines have 8 bits.
LOGISTIC_ROUNDING = 0.01
DATA = made(3, columns=3)
BATCHES: dict[str, object] = {"batch_size": 64, "local_steps": 3, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def whole() -> tuple[TrainingResult, Kept]:
    return whole_run(job_of())


@pytest.fixture
def places(tmp_path: Path) -> PadPlaces:
    return PadPlaces(tmp_path / "pads", tmp_path / "keys")


class OtherBasis:
    """W and W⁺ with other signs, as another run may find them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        found = vars(Curvature)["whitening"].func

        def turned(curvature: Curvature) -> tuple[np.ndarray, np.ndarray]:
            into, out = found(curvature)
            return -into, -out

        patch.setattr(Curvature, "whitening", property(turned))


def job_of(
    settings: dict[str, object] = BATCHES,
    offline_rounds: int | None = None,
    scores: str | None = None,
) -> Job:
    fixed = {"rounds": ROUNDS, "loss": "taylor-logistic", "eval_every": "never"}
    exchange = {"scheme": "blind", "offline_rounds": offline_rounds, "scores": scores}
    return Job.of(job={**fixed, **settings}, exchange=exchange)


def whole_run(job: Job, dataset: VerticalDataset = DATA) -> tuple[TrainingResult, Kept]:
    kept = Kept()
    return train(job, dataset, Environment(keep_state=kept, record_views=True)), kept


def words_of(view: View) -> set[bytes]:
    """All ring elements that a party received."""
    found = set()
    for event in view.received():
        for values in vars(event.message).values():
            if isinstance(values, np.ndarray) and values.dtype == np.uint64:
                found |= {each.tobytes() for each in values.ravel()}
    return found


@pytest.mark.parametrize(
    ("settings", "offline_rounds", "parties"),
    [
        (BATCHES, None, 2),
        ({"batch_size": "full"}, None, 3),
        # Within a block, while the next is being made; and where one is used up.
        ({**BATCHES, "start": "random"}, 3, 2),
        (BATCHES, 2, 2),
    ],
)
def test_it_ends_where_an_unbroken_one_ends_with_fresh_pads(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    offline_rounds: int | None,
    parties: int,
) -> None:
    job, dataset = job_of(settings, offline_rounds), made(3, parties, columns=3)
    whole, kept = whole_run(job, dataset)
    assert sorted(kept) == [1, 2, 3, 4]
    OtherBasis(monkeypatch)
    rest = train(job, dataset, Environment(resume=kept[BROKEN_AT], record_views=True))
    assert rest.rounds == ROUNDS
    assert {len(ledger.snapshots) for ledger in rest.ledgers.values()} == {ROUNDS - BROKEN_AT}
    np.testing.assert_allclose(all_weights(rest), all_weights(whole), atol=ROUNDING)
    # Nothing that was sent before is sent again, pads and what is under them alike.
    for name, view in rest.views.items():
        assert not words_of(view) & words_of(whole.views[name])


def test_shares_of_a_state_are_uniform_and_only_together_parameters(
    whole: tuple[TrainingResult, Kept],
) -> None:
    """And a state holds nothing that was made offline."""
    states = [whole[1][BROKEN_AT], whole_run(job_of())[1][BROKEN_AT]]
    label, other = (table.name for table in DATA.parties)
    for name, peer in ((label, other), (other, label)):
        one, two = (each[name].in_flight for each in states)
        assert set(one) == {"own", f"held {peer}", "into", "out"}
        for part in ("own", f"held {peer}"):
            assert one[part].dtype == np.uint64
            # Two runs share nothing, and a share is as large as the ring.
            assert not set(one[part].ravel().tolist()) & set(two[part].ravel().tolist())
            assert np.log2(one[part].max().astype(float)) > 50
        own, held = one["own"], states[0][peer].in_flight[f"held {name}"]
        opened = (own + held) << np.uint64(5)
        assert np.abs(opened.view(np.int64) / 2.0**5).max() < 2.0**24


@pytest.mark.parametrize("part", ["own", "held party1", "into"])
def test_a_state_of_other_shares_is_refused(whole: tuple[TrainingResult, Kept], part: str) -> None:
    kept = dict(whole[1][BROKEN_AT])
    state = kept["party0"]
    cut = {**state.in_flight, part: state.in_flight[part][:, :-1]}
    kept["party0"] = replace(state, in_flight=cut)
    with pytest.raises(DataError, match="not the shares that this party keeps"):
        train(job_of(), DATA, Environment(resume=kept))


def test_states_on_disk_need_a_place_for_their_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoints of shares are sealed"):
        train(job_of(), DATA, Environment(checkpoints=tmp_path))


def test_states_on_disk_are_sealed_under_a_key_of_their_session(
    places: PadPlaces, tmp_path: Path
) -> None:
    keys, kept = set(), list[SessionState]()
    environment = Environment(pads=places, checkpoints=tmp_path, keep_state=kept.append)
    for _ in range(2):
        train(job_of(), DATA, environment)
        keys |= {path.read_bytes() for path in places.keys.rglob("*.state-key")}
    assert len(keys) == 2 * len(DATA.parties)
    assert len(kept) == 2 * len(DATA.parties) * ROUNDS
    assert all(state.in_flight.keys() == {"sealed"} for state in kept)


def test_no_model_is_written_while_parameters_are_in_shares(
    places: PadPlaces, tmp_path: Path
) -> None:
    job = job_of()
    output = job.output.model_copy(update={"checkpoint_every": 1})
    environment = Environment(pads=places, checkpoints=tmp_path)
    train(job.model_copy(update={"output": output}), DATA, environment)
    assert list(tmp_path.glob("*.state"))
    assert not list(tmp_path.glob("*.safetensors"))


def test_pads_of_an_earlier_run_leave_rounds_without_ciphertexts(
    whole: tuple[TrainingResult, Kept],
    places: PadPlaces,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, unaided = job_of(), whole[0]
    timed = Environment(
        pads=places, stopwatch=FixedCosts({"correlated_randomness": 1.0}), record_views=True
    )
    made = make_offline(job, DATA, timed)
    OtherBasis(monkeypatch)
    result = train(job, DATA, timed)
    np.testing.assert_allclose(all_weights(result), all_weights(unaided), atol=ROUNDING)
    for view in result.views.values():
        assert not [e for e in view.received() if isinstance(e.message, CORRELATED_RANDOMNESS)]
    costs, before = result.costs(), unaided.costs()
    assert costs.offline_bytes == made.costs.offline_bytes == before.offline_bytes
    assert costs.messages == before.messages
    assert costs.offline_compute_s == made.costs.offline_compute_s > 1
    # Which party is last decides whose path counts.
    assert costs.offline_communication_s == pytest.approx(
        made.costs.offline_communication_s, rel=0.1
    )


def test_three_parties_make_logistic_pads_offline(
    places: PadPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[float] = []
    monkeypatch.setattr(PadStore, "require_room", lambda _, size: expected.append(size))
    job, dataset = job_of({"batch_size": "full", "loss": "logistic"}), made(3, 3, columns=3)
    unaided = train(job, dataset, Environment())
    parts = make_offline(job, dataset, Environment(pads=places)).parts
    sizes = [part.size for part in parts.values()]
    np.testing.assert_allclose(sorted(expected), sorted(sizes), rtol=0.1)
    result = train(job, dataset, Environment(pads=places))
    np.testing.assert_allclose(all_weights(result), all_weights(unaided), atol=LOGISTIC_ROUNDING)
    assert result.costs().offline_bytes == unaided.costs().offline_bytes


def test_pads_made_offline_by_block_are_those_of_all_rounds(places: PadPlaces) -> None:
    settings: dict[str, object] = {"batch_size": "full", "loss": "logistic"}
    job = job_of(settings, offline_rounds=2)
    make_offline(job, DATA, Environment(pads=places))
    result = train(job, DATA, Environment(pads=places))
    assert not list(places.folder.rglob("*.pads"))
    unaided = train(job_of(settings), DATA, Environment())
    np.testing.assert_allclose(all_weights(result), all_weights(unaided), atol=LOGISTIC_ROUNDING)


def test_pads_that_a_peer_has_not_are_refused_and_kept(places: PadPlaces, tmp_path: Path) -> None:
    """Before anything of held-out rows is counted as shown."""
    job = job_of({**BATCHES, "eval_every": 0}, scores="rows")
    make_offline(job, DATA, Environment(pads=places))
    first, second = (table.name for table in DATA.parties)
    places.of(second).discard()
    guarded = Environment(pads=places, guard_directory=tmp_path / "guards")
    with pytest.raises(PeerViolation, match="holds pads made offline and"):
        train(job, DATA, guarded)
    assert not list(tmp_path.rglob("rows.safetensors"))
    plan = plan_for(job, DATA)
    places.of(first).usable(plan.hash.hex(), plan.facts.names)


@pytest.mark.parametrize(
    ("lacking", "record"), [("own/steps", 3), ("held/party1/path", 4), ("steps/0", 0)]
)
def test_pads_that_lack_something_are_refused(
    lacking: str, record: int, places: PadPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_offline(job_of(), DATA, Environment(pads=places))
    take = PadStore.take

    def without(store: PadStore, *of: Any) -> Pads:  # noqa: ANN401
        pads = take(store, *of)
        records = list(pads.records)
        assert lacking in records[record] or "party1" in lacking
        records[record] = {n: words for n, words in records[record].items() if n != lacking}
        return replace(pads, records=iter(records))

    monkeypatch.setattr(PadStore, "take", without)
    with pytest.raises(DataError, match=f"pads made offline lack '{lacking}'"):
        train(job_of(), DATA, Environment(pads=places))


def test_there_must_be_something_to_make_and_a_place_for_it(places: PadPlaces) -> None:
    job = job_of()
    with pytest.raises(ConfigError, match="set a folder for pads"):
        make_offline(job, DATA, Environment())
    with pytest.raises(ConfigError, match="'plain' has no offline phase"):
        make_offline(Job.of(exchange={"scheme": "plain"}), DATA, Environment(pads=places))
    make_offline(job, DATA, Environment(pads=places))
    with pytest.raises(DataError, match="there are some already"):
        make_offline(job, DATA, Environment(pads=places))
    assert all(places.of(table.name).there for table in DATA.parties)
