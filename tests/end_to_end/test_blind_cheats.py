"""A party that cheats under `blind`: what it learns and does not (docs/explanation/blind.md).

Each of these is one step off the protocol that nobody else notices, and shows how far promises go.
Products are in clear here, as they add nothing: what a holder "decrypts" is whatever its owner made
of the words, digits of the holder's key among them. Checks on replies are off, which catch that:
tests/end_to_end/test_blind_checks.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import RangeExceeded, UnexpectedMessage
from securevfl.job import Job
from securevfl.protocols.blind import schedule
from securevfl.protocols.blind.fixed_point import REVEALED_BITS, Widths
from securevfl.protocols.blind.links import (
    POINTS,
    Corrections,
    EncryptedPads,
    EncryptedPoints,
    Group,
    Holding,
    MaskedShares,
    MaskedSteps,
    OfProducts,
)
from securevfl.protocols.blind.rounds import RevealedShare, SharedWeights
from securevfl.protocols.blind.schedule import Matrices, PlannedRound, Scales, Schedule
from securevfl.protocols.vertical.runner import Training
from securevfl.wire.codec import Message
from tests.blind_pads import ClearOwner, run
from tests.made_data import blocks_of, dataset_of, labels_of, made
from tests.tampering import changed

LABEL, FEATURE = "party0", "party1"
COLUMNS, ROWS, ROUNDS = 3, 60, 5
WIDTHS = Widths(12, 20, 12, 34, 20)
SCALES = Scales(step_bits=30, entry_bits=20)
DROPPED = SCALES.step_bits - WIDTHS.weight_bits


def job(**settings: object) -> Job:
    steps: dict[str, object] = {
        "batch_size": "full",
        "loss": "taylor-logistic",
        "eval_every": "never",
    }
    steps |= {"allow_label_leak": True, **settings}  # of so few rows
    return Job.of(job=steps, exchange={"scheme": "blind", "checks": 0})


class Cheated:
    """A holder, and what an owner may do to the words that it got from it."""

    def __init__(self) -> None:
        self.rounds = [PlannedRound(index, ROWS, 0.0, 0) for index in range(ROUNDS)]
        steps = RingProductFormat(COLUMNS + ROWS, COLUMNS, ROUNDS, 1)
        shares = RingProductFormat(COLUMNS, COLUMNS + ROWS, ROUNDS, 1)
        keys = OfProducts(ClearOwner(steps), ClearOwner(shares))
        self.holding = Holding(COLUMNS, keys, WIDTHS, SCALES, 0)
        self.pulls = words(self.holding.pads(self.rounds))[:COLUMNS]
        self.points = np.empty(0, np.uint64)

    def answer_steps(self, reply: RingArray) -> None:
        """Shape (P, R); points are drawn then, and this party gets what they are encrypted to."""
        message = MaskedSteps(0, (reply.tobytes(),))
        self.holding.take(FEATURE, message, self.rounds)
        self.holding.draw_points(self.rounds)
        self.points = words(self.holding.points(self.rounds))

    def answer_shares(self, of_pulls: RingArray) -> Corrections:
        """Shape (P, R); what comes back."""
        both = np.vstack([of_pulls, ring.uniform(ROWS, ROUNDS)])
        self.holding.take(FEATURE, MaskedShares(0, (both.tobytes(),)), self.rounds)
        return self.holding.end(FEATURE, self.rounds, lambda share: None)


def words(message: EncryptedPads | EncryptedPoints) -> RingArray:
    return np.frombuffer(message.groups[0], np.uint64).reshape(-1, ROUNDS)


def digits() -> IntArray:
    """Of the holder's key, as (0, ⌊q/t⌋) brings them into what it decrypts, shape (P, R)."""
    return np.random.default_rng(1).integers(-1, 2, (COLUMNS, ROUNDS))


def test_a_crafted_reply_comes_back_under_a_pad() -> None:
    """Whatever is decrypted: for any other there are points with which the same comes back."""
    cheated, other = Cheated(), Cheated()
    cheated.answer_steps(ring.of_integers(digits() << DROPPED))
    pulls = ring.uniform(COLUMNS, ROUNDS)
    seen = cheated.answer_shares(pulls).points
    other.answer_steps(np.zeros((COLUMNS, ROUNDS), np.uint64))
    point = np.zeros(COLUMNS, np.uint64)
    for index, row in enumerate(seen):
        other.holding.words[POINTS][index] = point
        point = ring.reduced(point - row)
    other.holding.point = point
    np.testing.assert_array_equal(other.answer_shares(pulls).points, seen)


def test_points_are_drawn_once_all_steps_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were Enc(ζ) of the next exchange there to answer with, it would take that pad off."""
    called: dict[int, list[str]] = {}

    def watch(name: str) -> None:
        method = getattr(Holding, name)

        def watched(self: Holding, *arguments: Any) -> Any:  # noqa: ANN401
            called.setdefault(id(self), []).append(name)
            return method(self, *arguments)

        monkeypatch.setattr(Holding, name, watched)

    for name in ("pads", "take", "draw_points", "points"):
        watch(name)
    run(job(rounds=3, batch_size=ROWS // 3), made(5, rows=ROWS, columns=COLUMNS))
    groups = 3
    steps, shares = ("pads", "take"), ("points", "take")
    expected = [name for name in steps for _ in range(groups)]
    expected += ["draw_points", *(name for name in shares for _ in range(groups))]
    assert list(called.values()) == [expected] * 2


def test_replies_made_of_the_ciphertexts_sent_are_an_oracle() -> None:
    """What replies are checked for: encryption can be computed on, by both keys.

    Steps are answered so that the points become the truncated pads of the pulls, and digits; then
    shares so that these points take those pads off the pulls.
    """
    cheated, hidden, dropped = Cheated(), digits(), WIDTHS.dropped_of_pulls
    following = np.roll(cheated.pulls, -1, axis=1) + ring.of_integers(hidden)
    before = np.roll(following, 1, axis=1)
    before[:, 0] = 0
    cheated.answer_steps(ring.reduced((following - before) << np.uint64(DROPPED)))
    said = cheated.answer_shares(ring.reduced(cheated.points << np.uint64(dropped)))
    known = np.cumsum(said.points, axis=0, dtype=np.uint64)[:-1] << np.uint64(dropped)
    seen = said.pulls[1:] + known + np.uint64((1 << dropped) - 1)
    read = ring.reduced(seen) >> np.uint64(dropped)
    bits = ring.RING_BITS - max(dropped, DROPPED)
    expected = ring.of_integers(hidden[:, :-1].T) & np.uint64((1 << bits) - 1)
    np.testing.assert_array_equal(read & np.uint64((1 << bits) - 1), expected)


def chosen(monkeypatch: pytest.MonkeyPatch, matrix: IntArray, scales: Scales) -> list[FloatArray]:
    """The feature party multiplies residuals by what it likes; what it reads in the end."""
    read: list[FloatArray] = []
    honest = schedule._schedule

    def cheated(task: Training, *others: Any) -> Schedule:  # noqa: ANN401
        made = honest(task, *others)
        if task.party.name == FEATURE:
            features = np.zeros((COLUMNS + ROWS, COLUMNS), np.int64)
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

    monkeypatch.setattr(schedule, "_schedule", cheated)
    monkeypatch.setattr(SharedWeights, "opened", opened)
    return read


def test_one_round_from_zero_tells_an_owner_with_a_matrix_of_its_own_every_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty labels a number: nobody can tell which matrix an owner multiplies by."""
    dataset = made(5, rows=ROWS, columns=COLUMNS)
    each = ROWS // COLUMNS
    matrix = np.zeros((COLUMNS, ROWS), np.int64)
    for column in range(COLUMNS):
        places = np.arange(column * each, (column + 1) * each)
        matrix[column, places] = 1 << np.arange(each)
    read = chosen(monkeypatch, matrix, Scales(step_bits=20, entry_bits=each))
    run(job(rounds=1, start="zero"), dataset)
    # Of ½ − y with 12 bits behind the point, in units of 2^(12 − 20).
    sums = np.rint(0.5 * ((1 << each) - 1) - np.ldexp(read[0], 8)).astype(np.int64)
    found = (sums[:, None] >> np.arange(each)) & 1
    np.testing.assert_array_equal(found.ravel(), dataset.train_labels)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Corrections, lambda m: replace(m, points=m.points[:, 1:])),
        (Corrections, lambda m: replace(m, points=m.points[1:])),
        (Corrections, lambda m: replace(m, pulls=m.pulls[:, :1])),
        (Corrections, lambda m: replace(m, pulls=m.pulls[1:])),
        (EncryptedPads, lambda m: replace(m, groups=())),
        (MaskedSteps, lambda m: replace(m, groups=m.groups * 2)),
        (EncryptedPoints, lambda m: replace(m, groups=m.groups * 2)),
        (MaskedShares, lambda m: replace(m, groups=())),
        (RevealedShare, lambda m: RevealedShare(m.values[:1])),
    ],
)
def test_messages_of_other_sizes_are_refused(
    kind: type[Message], change: Callable[[Any], Message]
) -> None:
    dataset, tamper = made(5, rows=ROWS, columns=COLUMNS), changed(kind, change)
    with pytest.raises(
        UnexpectedMessage, match=r"sent (an array of|\d products where \d are expected)"
    ):
        run(job(rounds=2), dataset, tamper=tamper)


@pytest.mark.parametrize("empty", [True, False])
def test_whether_a_job_fails_tells_a_holder_that_spoils_it_one_bit(empty: bool) -> None:
    """Junk for one row's residual: the end is beyond all sizes unless that row is zero."""
    generator = np.random.default_rng(6)
    blocks = blocks_of(generator, 2, rows=ROWS, columns=COLUMNS)
    if empty:
        blocks[1][7] = 0.0
    dataset = dataset_of(blocks, labels_of(generator, blocks))
    settings = job(rounds=2)

    # What it encrypts is not what it goes on with: the owner's step is off by −Ω·junk.
    def spoilt(self: Holding, group: Group) -> EncryptedPads:
        sent = np.frombuffer(honest(self, group).groups[0], np.uint64).copy().reshape(-1, 2)
        if len(sent) == COLUMNS + ROWS:
            sent[COLUMNS + 7, 0] += np.uint64(1 << 40)
        return EncryptedPads(0, (ring.reduced(sent).tobytes(),))

    with pytest.MonkeyPatch.context() as patch:
        honest = Holding.pads
        patch.setattr(Holding, "pads", spoilt)
        if empty:
            assert run(settings, dataset).result.rounds == 2
        else:
            with pytest.raises(RangeExceeded, match="revealed weights reach"):
                run(settings, dataset)
