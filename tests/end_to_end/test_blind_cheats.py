"""A party that cheats under `blind`: what it gets, and what it does not (docs/blind.md).

Promises are for semi-honest parties. Each of these is one step off the protocol that nobody else
notices, and shows how far the promise goes. Products are in clear here, as they add nothing: what a
holder "decrypts" is whatever its owner made of the words, digits of the holder's key among them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import RangeExceeded
from securevfl.job import Job
from securevfl.protocols.blind import block
from securevfl.protocols.blind.pads import HolderKeys, Holding, PadInputs, PadProducts
from securevfl.protocols.blind.rounds import SharedWeights
from securevfl.protocols.blind.schedule import Matrices, Round, Scales, Schedule
from securevfl.protocols.blind.widths import REVEALED_BITS, Widths
from securevfl.protocols.vertical.program import Training
from tests.blind_pads import ClearOwner, Product, Told, run
from tests.made_data import blocks_of, dataset_of, labels_of

LABEL, FEATURE = "party0", "party1"
COLUMNS, ROWS, ROUNDS = 3, 60, 5
WIDTHS = Widths(12, 20, 12, 34)
SCALES = Scales(step_bits=30, entry_bits=20)
DROPPED = SCALES.step_bits - WIDTHS.weight_bits


def job(**settings: object) -> Job:
    steps = {"batch_size": "full", "loss": "taylor-logistic", "eval_every": "never", **settings}
    return Job.of(job=steps, exchange={"scheme": "blind"})


class Link:
    """A holder, and what an owner may do to the words that it got from it."""

    def __init__(self) -> None:
        self.rounds = [Round(index, ROWS, 0.0, 0) for index in range(ROUNDS)]
        self.groups = {0: self.rounds}
        steps = RingProductFormat(COLUMNS + ROWS, COLUMNS, ROUNDS, 1)
        predictions = RingProductFormat(COLUMNS, ROWS, ROUNDS, 1)
        keys = HolderKeys(ClearOwner(steps), ClearOwner(predictions))
        self.holding = Holding(COLUMNS, keys, WIDTHS, SCALES)
        inputs = self.holding.inputs(self.groups)
        words = np.frombuffer(inputs.for_steps[0], np.uint64).reshape(-1, ROUNDS)
        self.points, self.pads = words[:COLUMNS], words[COLUMNS:]

    def corrections(self, reply: RingArray) -> RingArray:
        """What comes back, shape (R, P), for a reply of shape (P, R)."""
        predictions = ring.uniform(ROWS, ROUNDS).tobytes()
        answer = PadProducts(0, (reply.tobytes(),), (predictions,))
        return self.holding.take(FEATURE, answer, self.groups, lambda share: None)[1].values


def low(words: RingArray) -> RingArray:
    return words & np.uint64((1 << (ring.RING_BITS - DROPPED)) - 1)


def test_a_crafted_reply_comes_back_under_a_pad() -> None:
    """Whatever is decrypted: for any other there are points with which the same comes back."""
    link = Link()
    key_digits = np.random.default_rng(1).integers(-1, 2, (COLUMNS, ROUNDS))
    seen = link.corrections(ring.of_integers(key_digits << DROPPED))
    other = Link()
    point = np.zeros(COLUMNS, np.uint64)
    for index, row in enumerate(seen):
        other.holding._points[index] = point
        point = ring.reduced(point - row)  # as if zeros had been decrypted
    other.holding._point = point
    np.testing.assert_array_equal(other.corrections(np.zeros_like(link.points)), seen)


def test_a_reply_made_of_the_ciphertexts_sent_is_told_by_what_comes_back() -> None:
    """The oracle that keeps the promise a semi-honest one: encryption can be computed on."""
    link = Link()
    # Of the holder's key, shifted to where the words stand (0, ⌊q/t⌋): any words that are hidden.
    hidden = np.random.default_rng(1).integers(-1, 2, (COLUMNS, ROUNDS))
    following = np.roll(link.points, -1, axis=1)  # Enc(ζ) of the next exchange, in the same reply
    reply = ring.of_integers(hidden << DROPPED) + ((following - link.points) << np.uint64(DROPPED))
    seen = link.corrections(ring.reduced(reply))
    np.testing.assert_array_equal(low(seen[:-1].T), low(ring.of_integers(hidden))[:, :-1])


def test_junk_in_place_of_pads_is_answered_by_uniform_words() -> None:
    """Masks do not ask what was encrypted: any other steps answer it alike."""
    junk = np.vstack([np.zeros((COLUMNS, 1), np.uint64), ring.uniform(ROWS, 1) & np.uint64(1)])
    drawn = np.random.default_rng(2).integers(-4000, 4000, (2, COLUMNS, COLUMNS + ROWS))
    first, other = (Product(matrix, junk, ring.uniform(COLUMNS, 1)) for matrix in drawn)
    other.mask = ring.reduced(first.decrypted - (other.decrypted - other.mask))
    np.testing.assert_array_equal(other.decrypted, first.decrypted)


def chosen(monkeypatch: pytest.MonkeyPatch, matrix: IntArray, scales: Scales) -> list[FloatArray]:
    """The feature party multiplies residuals by what it likes; what it reads in the end."""
    read: list[FloatArray] = []
    honest = block._schedule

    def schedule(task: Training, *others: Any) -> Schedule:  # noqa: ANN401
        made = honest(task, *others)
        if task.party.name == FEATURE:
            features = np.zeros((ROWS, COLUMNS), np.int64)
            steps = np.hstack([np.zeros((COLUMNS, COLUMNS), np.int64), matrix])
            monkeypatch.setattr(made, "scales", lambda widths: scales)
            monkeypatch.setattr(made, "matrices", lambda *_: {0: Matrices(steps, features)})
        return made

    def opened(self: SharedWeights, top: RingArray) -> FloatArray:
        own = ring.truncated(self.weights, self.widths.weight_bits - REVEALED_BITS, first=False)
        values = ring.decode(ring.reduced(top + own), REVEALED_BITS)
        if len(values) == COLUMNS:  # the label party has an intercept, too
            read.append(values)
            return np.zeros_like(values)
        return values

    monkeypatch.setattr(block, "_schedule", schedule)
    monkeypatch.setattr(SharedWeights, "opened", opened)
    return read


def test_one_round_from_zero_tells_an_owner_with_a_matrix_of_its_own_every_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty labels a number: nobody can tell which matrix an owner multiplies by."""
    generator = np.random.default_rng(5)
    blocks = blocks_of(generator, 2, rows=ROWS, columns=COLUMNS)
    labels = labels_of(generator, blocks)
    each = ROWS // COLUMNS
    matrix = np.zeros((COLUMNS, ROWS), np.int64)
    for column in range(COLUMNS):
        places = np.arange(column * each, (column + 1) * each)
        matrix[column, places] = 1 << np.arange(each)
    read = chosen(monkeypatch, matrix, Scales(step_bits=20, entry_bits=each))
    run(job(rounds=1, start="zero"), dataset_of(blocks, labels))
    # Of ½ − y with 12 bits behind the point, in units of 2^(12 − 20).
    sums = np.rint(0.5 * ((1 << each) - 1) - np.ldexp(read[0], 8)).astype(np.int64)
    found = (sums[:, None] >> np.arange(each)) & 1
    np.testing.assert_array_equal(found.ravel(), labels)


@pytest.mark.parametrize("empty", [True, False])
def test_whether_a_job_fails_tells_a_holder_that_spoils_it_one_bit(empty: bool) -> None:
    """Junk for one row's residual: the end is beyond all sizes unless that row is zero."""
    generator = np.random.default_rng(6)
    blocks = blocks_of(generator, 2, rows=ROWS, columns=COLUMNS)
    if empty:
        blocks[1][7] = 0.0
    dataset = dataset_of(blocks, labels_of(generator, blocks))
    settings = job(rounds=2)
    first = run(settings, dataset)
    label = first.insights[LABEL]
    # What it encrypts is not what it goes on with: the owner's step is off by −Ω·junk.
    masks = [each.mask for each in label.products]

    def spoilt(self: Holding, groups: Mapping[int, Sequence[Round]]) -> PadInputs:
        message = inputs(self, groups)
        words = np.frombuffer(message.for_steps[0], np.uint64).copy().reshape(-1, 2)
        if len(words) == ROWS + COLUMNS:
            words[COLUMNS + 7, 0] += np.uint64(1 << 40)
        return PadInputs(message.step, (ring.reduced(words).tobytes(),), message.for_predictions)

    with pytest.MonkeyPatch.context() as patch:
        inputs = Holding.inputs
        patch.setattr(Holding, "inputs", spoilt)
        told = {LABEL: Told(label.pads, masks)}
        if empty:
            assert run(settings, dataset, told).result.rounds == 2
        else:
            with pytest.raises(RangeExceeded, match="revealed weights reach"):
                run(settings, dataset, told)
