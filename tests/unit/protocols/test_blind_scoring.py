"""Class sums of shares: the scores that follow, and what the label party sees of rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto import ring
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.errors import ConfigError, MalformedMessage, RangeExceeded, UnexpectedMessage
from securevfl.models.scores import binormal_auc
from securevfl.protocols.blind.relays import HeldOutShares
from securevfl.protocols.blind.scoring import (
    LARGEST_PREDICTION,
    establish_sums,
    fraction_bits,
    limbs,
    of_limbs,
)
from securevfl.protocols.exchanges.class_sums import (
    EncryptedHeldOut,
    EncryptedHeldOutProducts,
    HeldOutMasks,
    combined,
)
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.scoring import Score
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Simulated, Tamper, simulate
from securevfl.wire.codec import Message
from tests.plans import agreed_masks, plan_of
from tests.tampering import changed

ROWS = 60
LAN = Line(latency_ms=1.0, bandwidth_mbit=1e3)
LABEL, PARTNER = "bank", "shop"


def plan_for(parties: int, *, real: bool = False, rows: int = ROWS) -> Plan:
    job = {"loss": "squared"} if real else {}
    plan = plan_of(parties=parties, classes=0 if real else 2, job=job)
    return replace(plan, facts=replace(plan.facts, test_rows=rows))


def predictions_of(parties: int, draw: np.random.Generator, labels: Labels) -> list[FloatArray]:
    return [labels[:, None] / parties + draw.normal(size=(len(labels), 1)) for _ in range(parties)]


SEED = bytes(KEY_SEED_BYTES)


def run(
    plan: Plan, predictions: list[FloatArray], labels: Labels, tamper: Tamper | None = None
) -> Simulated[Score | None]:
    names = plan.facts.names
    masks = agreed_masks(names)

    async def program(channel: Channel, costs: Costs, name: str) -> Score | None:
        party = Party(channel, costs, names, LABEL, plan.loss)
        side = await establish_sums(party, plan, masks[name], SEED)
        own = predictions[names.index(name)]
        if name != LABEL:
            await side.give(4, own)
            return None
        side.check(labels)
        return await side.score(4, own, labels)

    programs = {name: partial(program, name=name) for name in names}
    return simulate(programs, LAN, record_views=True, tamper=tamper)


def score_of(result: Simulated[Score | None]) -> Score:
    score = result.results[LABEL]
    assert score is not None
    return score


@pytest.fixture(scope="module", params=[2, 3, 5])
def scored(request: pytest.FixtureRequest) -> tuple[Plan, Simulated[Score | None], FloatArray]:
    plan, draw = plan_for(request.param), np.random.default_rng(request.param)
    labels = LABELS
    predictions = predictions_of(request.param, draw, labels)
    return plan, run(plan, predictions, labels), np.hstack(predictions)


LABELS = np.arange(ROWS) % 3 // 2
Scored = tuple[Plan, Simulated[Score | None], FloatArray]


def test_scores_are_those_of_the_classes_means_and_variances(scored: Scored) -> None:
    plan, result, predictions = scored
    total = predictions.sum(axis=1)
    by_class = [total[number == LABELS] for number in (0, 1)]
    means, variances = (np.array([f(each) for each in by_class]) for f in (np.mean, np.var))
    score = score_of(result)
    assert score.rounds == 5
    assert score.binormal
    assert score.auc == pytest.approx(binormal_auc(means, variances), abs=1e-4)
    assert score.class_accuracy is None
    assert all(result.results[name] is None for name in plan.facts.names if name != LABEL)


def test_the_label_party_opens_four_sums_and_nothing_by_row(scored: Scored) -> None:
    plan, result, predictions = scored
    view, parties = result.views[LABEL], len(plan.facts.names)
    kinds = sorted(type(each.message).__name__ for each in view.received())
    assert kinds == sorted(
        ["EncryptedHeldOutProducts", "HeldOutMasks", *["HeldOutShares"] * (parties - 2)]
    )
    (masks,) = [e.message.values for e in view.received() if isinstance(e.message, HeldOutMasks)]
    (products,) = [each.values for each in view.decrypted()]
    opened = ring.reduced(combined(of_limbs(products)) - masks)
    shares = np.zeros(ROWS, np.uint64)
    for each in view.received(HeldOutShares):
        assert isinstance(each.message, HeldOutShares)
        shares = shares + each.message.values
    bits = fraction_bits(plan.facts)
    own = plan.facts.names.index(LABEL)
    shares = shares + ring.encode(predictions[:, own], bits, LARGEST_PREDICTION, "H")
    for number, (first, second) in enumerate(opened):
        rows = number == LABELS
        total = predictions.sum(axis=1)[rows]
        sums = ring.reduced(np.stack([first, *shares[rows]]).sum(dtype=np.uint64))
        squares = ring.reduced(np.stack([second, *shares[rows] ** 2]).sum(dtype=np.uint64))
        assert ring.decode(sums, bits) == pytest.approx(total.sum(), abs=1e-3)
        assert ring.decode(squares, 2 * bits) == pytest.approx((total**2).sum(), abs=1e-3)


def test_no_single_product_opens_with_the_masks_that_are_given(scored: Scored) -> None:
    _, result, _ = scored
    view = result.views[LABEL]
    (masks,) = [e.message.values for e in view.received() if isinstance(e.message, HeldOutMasks)]
    (products,) = [each.values for each in view.decrypted()]
    assert masks.shape == (2, 2)
    assert products.shape == (6, 4)
    # Bits beyond the ring would tell sums of masks before they wrap.
    assert int(masks.max()) >> ring.RING_BITS == 0
    columns = of_limbs(products)
    words = np.concatenate(
        [
            ring.centred(ring.reduced(values - mask)).ravel()
            for mask in masks.ravel()
            for values in (products, columns[2:], columns[:2, 1])
        ]
    )
    # Of 60 rows no sum of squares is beyond 2^51; uniform residues hardly ever are below.
    assert np.mean(np.abs(words) < 1 << 51) < 0.2
    assert len(set(words.tolist())) == len(words)


def test_shares_of_the_same_predictions_are_fresh() -> None:
    plan, draw = plan_for(3), np.random.default_rng(1)
    predictions = predictions_of(3, draw, LABELS)
    seen = []
    for _ in range(2):
        (each,) = run(plan, predictions, LABELS).views[LABEL].received(HeldOutShares)
        assert isinstance(each.message, HeldOutShares)
        seen.append(each.message.values)
        assert int(seen[-1].max()) >> ring.RING_BITS == 0
    plain = ring.encode(predictions[2][:, 0], fraction_bits(plan.facts), 64.0, "H")
    assert not any(np.any(one == other) for one, other in ((seen[0], seen[1]), (seen[0], plain)))


def test_others_receive_nothing_and_the_partner_only_ciphertexts(scored: Scored) -> None:
    plan, result, _ = scored
    for name in plan.facts.names:
        kinds = [type(each.message).__name__ for each in result.views[name].received()]
        if name == PARTNER:
            assert kinds == ["PublicKey", "EncryptedHeldOut"]
        elif name != LABEL:
            assert kinds == []


@pytest.mark.parametrize("parties", [2, 3])
def test_real_targets_take_the_sum_of_squared_errors(parties: int) -> None:
    plan, draw = plan_for(parties, real=True), np.random.default_rng(parties)
    targets = draw.normal(size=ROWS)
    predictions = [draw.normal(size=(ROWS, 1)) for _ in range(parties)]
    result = run(plan, predictions, targets)
    score = score_of(result)
    expected = Score.of(5, np.sum(predictions, axis=0), targets)
    assert score.rmse == pytest.approx(expected.rmse, rel=1e-4)
    assert score.r2 == pytest.approx(expected.r2, abs=1e-3)
    assert score.mae is None
    (masks,) = [each.message for each in result.views[LABEL].received(HeldOutMasks)]
    assert isinstance(masks, HeldOutMasks)
    assert masks.values.shape == (1, 1)


def test_targets_as_large_as_may_be_do_not_wrap() -> None:
    plan = plan_for(2, real=True)
    largest = 2 * LARGEST_PREDICTION
    targets = np.where(np.arange(ROWS) % 2, largest, -largest)
    own = -np.sign(targets)[:, None] * LARGEST_PREDICTION
    score = score_of(run(plan, [own, own], targets))
    assert score.rmse == pytest.approx(2 * largest)
    with pytest.raises(RangeExceeded, match="deviations in the mean, at most 128"):
        run(plan, [own, own], 1.01 * targets)


def test_predictions_beyond_their_bound_are_cut_and_counted() -> None:
    plan = plan_for(2)
    total = np.where(LABELS == 1, 1.0, -1.0)[:, None]
    predictions = [2 * LARGEST_PREDICTION * total, total]
    result = run(plan, predictions, LABELS)
    assert result.costs[PARTNER].operations["clipped_held_out"] == ROWS
    assert result.costs[LABEL].operations["clipped_held_out"] == 0
    score = score_of(result)
    assert score.auc == pytest.approx(1.0)


def test_sums_of_few_rows_are_refused() -> None:
    plan = plan_for(2)
    labels = (np.arange(ROWS) < 9).astype(np.int64)
    with pytest.raises(ConfigError, match=r"9 of class 1, at least 10 expected.*scores = 'rows'"):
        run(plan, predictions_of(2, np.random.default_rng(0), labels), labels)


@pytest.mark.parametrize("rows", [10, 113, 1 << 14, 1_234_567])
@pytest.mark.parametrize("parties", [2, 5])
@pytest.mark.parametrize("classes", [0, 2])
def test_sums_of_squares_fit_half_the_ring_and_hardly_less(
    rows: int, parties: int, classes: int
) -> None:
    names = tuple(map(str, range(parties)))
    facts = Facts(names, "0", 1, rows, classes, np.zeros(1, np.uint64))
    bits = fraction_bits(facts)
    largest = parties * LARGEST_PREDICTION * (1 if classes else 2)
    # Every party's prediction is rounded.
    integer = int(largest * 2**bits) + parties
    assert rows * integer**2 < 1 << (ring.RING_BITS - 1)
    assert bits == 20 or rows * integer**2 >= 1 << (ring.RING_BITS - 4)


def test_so_many_rows_that_nothing_is_left_are_refused() -> None:
    facts = Facts(("a", "b"), "a", 1, 1 << 36, 2, np.zeros(1, np.uint64))
    with pytest.raises(RangeExceeded, match="fraction bits, at least 8 expected"):
        fraction_bits(facts)


def test_limbs_come_together_again() -> None:
    words = ring.uniform(7)
    parts = limbs(words)
    assert parts.shape == (3, 7)
    assert int(parts.max()) < 1 << 20
    both = np.vstack([parts, limbs(words * words)]).astype(np.uint64)
    first, second = of_limbs(both).T
    np.testing.assert_array_equal(ring.reduced(first), words)
    np.testing.assert_array_equal(ring.reduced(second), ring.reduced(words * words))


WORDS: RingArray = np.zeros((2, 1), np.uint64)


@pytest.mark.parametrize(
    ("message", "error", "error_text"),
    [
        (
            EncryptedHeldOut(4, (b"", b"")),
            UnexpectedMessage,
            "sent 2 ciphertexts where 1 are expected",
        ),
        (EncryptedHeldOut(4, (b"no",)), MalformedMessage, "from bank"),
        (EncryptedHeldOutProducts(4, ()), UnexpectedMessage, "sent 0 ciphertexts"),
        (EncryptedHeldOutProducts(4, (b"no",)), MalformedMessage, "from shop"),
        (HeldOutMasks(4, WORDS), UnexpectedMessage, "sent an array of"),
    ],
)
def test_what_does_not_fit_is_refused(
    message: Message, error: type[Exception], error_text: str
) -> None:
    predictions = predictions_of(2, np.random.default_rng(0), LABELS)
    with pytest.raises(error, match=error_text):
        run(plan_for(2), predictions, LABELS, changed(type(message), lambda _: message))
