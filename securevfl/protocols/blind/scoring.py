"""Scoring of a blind job: once, at the end, when every owner knows its parameters.

The score follows from sums over classes only, unless the job shows rows (`scores = "rows"`).

H_k are party k's predictions of the held-out rows, clipped to ±64, and the 0/1 vector t_g marks the
rows of class g. Real targets form one group of all rows.

0. Among three parties or more, every feature party but the partner → label party: its H_p, masked
   by its share of zero (`relays.gather_shares`). Then x at the label party and y at the partner are
   uniform with x + y = ΣH modulo 2^59. Between two parties x = H_L and y = H_1. The label party
   subtracts real targets from x.
1. Label party → partner: Enc(t_g) and Enc(t_g·x) of both classes.
2. Partner → label party: their products with y and y², split into rows of 20 bits each; masked
   modulo their whole modulus, and re-randomized.
3. Partner → label party: sums of the masks: one for Σ_g y, one for Σ_g (y² + 2xy).

With its own Σ_g x and Σ_g x² the label party has Σ_g H and Σ_g H². The messages are those of
`exchanges.class_sums`.

Learns, with `scores = "sums"`:
    label party: Σ_g H and Σ_g H² of both classes, or Σ (H − y)² of real targets: nothing of single
        rows where classes are large. Colluding with the partner, ΣH of every row.
    partner: that held-out rows were scored, even if it colludes with all other feature parties.
    another feature party: nothing.
With `scores = "rows"` the label party learns H_k of every held-out row between two parties, and
    only ΣH among more.
Guarantees: against semi-honest parties. A label party that encrypts another vector, for example one
    row alone, learns ΣH of that row.
Source: docs/decisions/0036-more-parties-and-scores-in-shares.md.
"""

from math import floor, log2
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels, RingArray, is_real
from securevfl.crypto import ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import RangeExceeded
from securevfl.lazy import Lazy
from securevfl.protocols.blind.links import only, take_ring_key
from securevfl.protocols.blind.relays import HeldOutShares, gather_shares
from securevfl.protocols.blind.schedule import partner_of
from securevfl.protocols.exchanges.class_sums import (
    CLASSES,
    COLUMNS,
    ClassSums,
    combined,
    groups_of,
)
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import ClearGathering, Party, gathering_of
from securevfl.protocols.session.keys import KeyMaker, PublicKey
from securevfl.protocols.session.scoring import ByRow, Scoring
from securevfl.protocols.vertical.runner import Training, scoring_of
from securevfl.runtime.costs import SCORING, SETUP
from securevfl.runtime.line import Line
from securevfl.wire.codec import Blobs

if TYPE_CHECKING:
    from securevfl.crypto import ring_products
else:  # SEAL takes a second to load, and descriptions need none
    ring_products = Lazy("securevfl.crypto.ring_products")

FOR_SCORES, CIPHERTEXTS = "ring, scores", "ciphertexts"
LARGEST_PREDICTION = 64.0
LIMB_BITS = 20
LIMBS = -(-ring.RING_BITS // LIMB_BITS)
MOST_FRACTION_BITS, LEAST_FRACTION_BITS = 20, 8


def sum_format(facts: Facts, line: Line) -> RingProductFormat:
    """Sizes of the products for a job's class sums."""
    return RingProductFormat(
        inner=facts.test_rows,
        outputs=COLUMNS * LIMBS,
        columns=2 * (1 if facts.real_targets else CLASSES),
        matrix_bound=(1 << LIMB_BITS) - 1,
        bandwidth_mbit=line.bandwidth_mbit,
    )


def fraction_bits(facts: Facts) -> int:
    """The most fraction bits of H that keep sums of squares below half the ring.

    Real targets count as much as predictions.

    Raises:
        RangeExceeded: too many rows leave too few bits.
    """
    largest = len(facts.names) * LARGEST_PREDICTION * (2 if facts.real_targets else 1)
    spare = ring.RING_BITS - 1 - log2(facts.test_rows * largest**2)
    # Rounding adds less than one part in 2^8 to a square.
    bits = min(MOST_FRACTION_BITS, floor((spare - 0.1) / 2))
    if bits < LEAST_FRACTION_BITS:
        raise RangeExceeded(
            f"scores: squares of {facts.test_rows} held-out predictions of {len(facts.names)} "
            f"parties leave {bits} fraction bits, at least {LEAST_FRACTION_BITS} expected; hold "
            "out fewer rows"
        )
    return bits


class RingSums(ClassSums):
    """Products of shares of H modulo 2^59, with `bits` fraction bits."""

    alternatives = "scores = 'rows' shows every row, eval_every = 'never' skips scoring"

    def __init__(
        self,
        party: Party,
        masks: PairwiseMasks,
        bits: int,
        *,
        owner: "ring_products.RingProductOwner | None" = None,
        evaluator: "ring_products.RingProductEvaluator | None" = None,
    ) -> None:
        super().__init__(party, partner_of(party))
        self._masks, self._bits = masks, bits
        self._owner, self._evaluator = owner, evaluator

    @override
    def check(self, labels: Labels) -> None:
        super().check(labels)
        largest = len(self.party.names) * LARGEST_PREDICTION
        if is_real(labels) and np.mean(labels.astype(np.float64) ** 2) > largest**2:
            raise RangeExceeded(
                f"held-out targets are {np.sqrt(np.mean(labels**2)):.3g} deviations in the mean, "
                f"at most {largest:g} expected"
            )

    @override
    async def numbers(self, step: int, predictions: FloatArray) -> RingArray | None:
        """A share of H at the label party and its partner, shape (test rows,)."""
        async with self.party.costs.compute(SCORING):
            own = encoded(self.party, predictions, self._bits)
        return await gather_shares(
            self.party, self._masks, step, own, kind=HeldOutShares, phase=SCORING
        )

    @override
    def encrypted(self, numbers: RingArray, labels: Labels) -> Blobs:
        assert self._owner is not None  # noqa: S101
        groups = groups_of(labels)
        by_group = groups * self._less_targets(numbers, labels)[:, None]
        return (self._owner.encrypt(ring.reduced(np.hstack([groups, by_group]))),)

    @override
    def multiplied(
        self, sender: str, vectors: Blobs, numbers: RingArray
    ) -> tuple[Blobs, RingArray]:
        assert self._evaluator is not None  # noqa: S101
        encrypted = only(sender, vectors, CIPHERTEXTS)
        matrix = np.vstack([limbs(numbers), limbs(numbers * numbers)])
        product, masks = checked(sender, self._evaluator.product, encrypted, matrix)
        return (product,), ring.reduced(combined(of_limbs(masks)))

    @override
    def decrypted(self, sender: str, products: Blobs) -> RingArray:
        """By limb and vector, shape (6, 4), or (6, 2) for real targets."""
        assert self._owner is not None  # noqa: S101
        return checked(sender, self._owner.decrypt, only(sender, products, CIPHERTEXTS))

    @override
    def added(
        self, masked: RingArray, masks: RingArray, numbers: RingArray, labels: Labels
    ) -> FloatArray:
        share, found = self._less_targets(numbers, labels), combined(of_limbs(masked)) - masks
        by_group = groups_of(labels) * share[:, None]
        ours = np.stack([by_group.sum(axis=0), (by_group * share[:, None]).sum(axis=0)])
        sums = ring.reduced(found.T + ours[-found.shape[1] :])
        squares = ring.decode(sums[-1], 2 * self._bits)
        return np.stack([*(ring.decode(each, self._bits) for each in sums[:-1]), squares])

    def _less_targets(self, share: RingArray, labels: Labels) -> RingArray:
        if not is_real(labels):
            return share
        return share - ring.encode(labels, self._bits, float(np.max(np.abs(labels))), "targets")


def encoded(party: Party, predictions: FloatArray, bits: int) -> RingArray:
    """H of held-out rows in the ring, shape (test rows,), clipped to ±64; clipped ones count."""
    cut = np.clip(predictions[:, 0], -LARGEST_PREDICTION, LARGEST_PREDICTION)
    party.costs.count("clipped_held_out", int(np.count_nonzero(cut != predictions[:, 0])))
    return ring.encode(cut, bits, LARGEST_PREDICTION, "predictions")


def limbs(words: RingArray) -> IntArray:
    """Residues modulo 2^59 as 20-bit limbs, shape (3, n), least significant first."""
    places = np.arange(0, ring.RING_BITS, LIMB_BITS, dtype=np.uint64)
    parts = ring.reduced(words) >> places[:, None] & np.uint64((1 << LIMB_BITS) - 1)
    return parts.astype(np.int64)


def of_limbs(values: RingArray) -> RingArray:
    """Products of limbs, or their masks, combined to products of words modulo 2^59.

    Takes those of the limbs of y, then of y², with every vector, shape (6, vectors); returns them
    by vector and column, shape (vectors, 2).
    """
    places = np.arange(0, ring.RING_BITS, LIMB_BITS, dtype=np.uint64)
    whole = values.reshape(COLUMNS, LIMBS, -1) << places[:, None]
    added: RingArray = whole.sum(axis=1, dtype=np.uint64)
    return added.T


async def establish_scoring(training: Training, agreement: Agreement) -> Scoring:
    """This party's side of scoring."""
    party, plan = training.party, training.plan
    shown, masks = plan.algorithm.held_out(plan), agreement.masks
    if not plan.timetable.test_rows:
        return scoring_of(training, ByRow(party, ClearGathering(party)))
    if shown == "hidden":
        return scoring_of(training, await establish_sums(party, plan, masks, agreement.seed))
    by_row = ByRow(party, gathering_of(party, masks, sums=shown == "summed"))
    return scoring_of(training, by_row)


async def establish_sums(party: Party, plan: Plan, masks: PairwiseMasks, seed: bytes) -> RingSums:
    """This party's side of class sums, with a key of the label party, of the joint seed."""
    facts, bits = plan.facts, fraction_bits(plan.facts)
    fmt, partner = sum_format(facts, plan.line), partner_of(party)
    if party.holds_labels:
        async with party.costs.compute(SETUP):
            owner = ring_products.RingProductOwner(fmt, seed)
        await party.channel.send(partner, PublicKey(FOR_SCORES, owner.public_bytes))
        return RingSums(party, masks, bits, owner=owner)
    evaluator = None
    if party.name == partner:
        evaluator = await take_ring_key(
            party, party.label_party, FOR_SCORES, fmt, seed, keys=KeyMaker()
        )
    return RingSums(party, masks, bits, evaluator=evaluator)
