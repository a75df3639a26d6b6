"""The score of a blind job, once every owner knows its parameters: from sums over classes alone.

H_k are party k's predictions of the held-out rows, cut to ±64, and t_g the rows of class g as a 0/1
vector. Real targets are one group of all rows.

0. Among three or more, every feature party but the partner → label party: its H_p under its share
   of zero (`relays.gather_shares`): x at the label party and y at the partner are uniform, with
   x + y = ΣH modulo 2^59. Between two parties x = H_L and y = H_1. The label party takes real
   targets off x.
1. Label party → partner: Enc(t_g) and Enc(t_g·x) of both classes.
2. Partner → label party: their products with y and y², of which 20 bits a time are a row of the
   matrix; masked, re-randomized and flooded.
3. Partner → label party: what the masks add up to: those of Σ_g y, and of Σ_g (y² + 2xy) together.

With Σ_g x and Σ_g x² of its own the label party has Σ_g H and Σ_g H², as `exchanges.class_sums`
between two parties, whose messages these are.

Learns:
    label party: Σ_g H and Σ_g H² of both classes, four numbers, or Σ (H − y)² of real targets; of
        no single row where a class has many. With the partner ΣH of every row.
    partner: that held-out rows were scored; with all other feature parties no more.
    another feature party: nothing.
Guarantees: against semi-honest parties. A label party that encrypts another vector, one row alone
    for example, learns ΣH of that row.
"""

from math import floor, log2
from typing import TYPE_CHECKING

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels, RingArray, is_real
from securevfl.crypto import ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import RangeExceeded, UnexpectedMessage
from securevfl.protocols.blind.relays import HeldOutShares, gather_shares
from securevfl.protocols.blind.schedule import partner_of
from securevfl.protocols.exchanges.class_sums import (
    EncryptedHeldOut,
    EncryptedHeldOutProducts,
    HeldOutMasks,
)
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.plan import Facts
from securevfl.protocols.session.held_out_sums import (
    CLASSES,
    COLUMNS,
    combined,
    groups_of,
    require_many_rows,
    score_of_classes,
)
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.scoring import Score
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.runtime.line import Line
from securevfl.runtime.views import Decrypted, record

if TYPE_CHECKING:
    from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner

LARGEST_PREDICTION = 64.0
LIMB_BITS = 20
LIMBS = -(-ring.RING_BITS // LIMB_BITS)
MOST_FRACTION_BITS, LEAST_FRACTION_BITS = 20, 8


def sum_format(facts: Facts, line: Line) -> RingProductFormat:
    """Sizes of a job's class sums.

    Args:
        facts: of its data.
        line: between the label party and its partner.
    """
    return RingProductFormat(
        inner=facts.test_rows,
        outputs=COLUMNS * LIMBS,
        columns=2 * (1 if facts.real_targets else CLASSES),
        matrix_bound=(1 << LIMB_BITS) - 1,
        bandwidth_mbit=line.bandwidth_mbit,
    )


def fraction_bits(facts: Facts) -> int:
    """The most fraction bits of H with which sums of squares stay below half the ring.

    Targets may add as much to H − y as predictions do.

    Raises:
        RangeExceeded: so many rows that few are left.
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


class FeatureSums:
    """A feature party's side.

    Args:
        party: who it is.
        masks: with all others.
        bits: fraction bits of H.
        evaluator: the partner's end of the label party's key; None at all others.
    """

    def __init__(
        self,
        party: Party,
        masks: PairwiseMasks,
        bits: int,
        evaluator: "RingProductEvaluator | None",
    ) -> None:
        self._party, self._masks, self._bits = party, masks, bits
        self._evaluator = evaluator

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Hand on H, or multiply by a share of it and give the masks of the sums alone.

        Raises:
            UnexpectedMessage: another number of ciphertexts than are due.
            MalformedMessage: bytes that are no encryption of so many values.
        """
        party, label_party = self._party, self._party.label_party
        async with party.costs.compute(SCORING):
            own = encoded(party, predictions, self._bits)
        share = await gather_shares(
            party, self._masks, step, own, kind=HeldOutShares, phase=SCORING
        )
        if share is None or self._evaluator is None:
            return
        _, message = await party.channel.receive([label_party], EncryptedHeldOut, step)
        vectors = only(label_party, message.vectors)
        async with party.costs.compute(SCORING):
            matrix = np.vstack([limbs(share), limbs(share * share)])
            product, masks = checked(label_party, self._evaluator.product, vectors, matrix)
            sums = ring.reduced(combined(of_limbs(masks)))
        await party.channel.send(label_party, EncryptedHeldOutProducts(step, (product,)))
        await party.channel.send(label_party, HeldOutMasks(step, sums))


class LabelSums:
    """The label party's side: owns the key."""

    def __init__(
        self, party: Party, masks: PairwiseMasks, bits: int, owner: "RingProductOwner"
    ) -> None:
        self._party, self._masks, self._bits = party, masks, bits
        self._owner = owner

    def check(self, labels: Labels) -> None:
        """Check that no sum is of a few rows, and that sums of targets fit.

        Raises:
            ConfigError: a class of fewer than ten rows, or real targets that few of make up.
            RangeExceeded: targets far larger than any prediction.
        """
        require_many_rows(labels, "scores = 'rows' opens every row's, eval_every = 'never' none")
        largest = len(self._party.names) * LARGEST_PREDICTION
        if is_real(labels) and np.mean(labels.astype(np.float64) ** 2) > largest**2:
            raise RangeExceeded(
                f"held-out targets are {np.sqrt(np.mean(labels**2)):.3g} deviations in the mean, "
                f"at most {largest:g} expected"
            )

    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Ask for the sums and score by them.

        Raises:
            UnexpectedMessage: another number of ciphertexts or masks than are due.
            MalformedMessage: a reply that is no ciphertext of this key.
        """
        party, partner = self._party, partner_of(self._party)
        groups = groups_of(labels)
        async with party.costs.compute(SCORING):
            share = encoded(party, own, self._bits)
        gathered = await gather_shares(
            party, self._masks, step, share, kind=HeldOutShares, phase=SCORING
        )
        assert gathered is not None  # noqa: S101
        async with party.costs.compute(SCORING):
            if is_real(labels):
                largest = float(np.max(np.abs(labels)))
                gathered = gathered - ring.encode(labels, self._bits, largest, "targets")
            by_group = groups * gathered[:, None]
            vectors = self._owner.encrypt(ring.reduced(np.hstack([groups, by_group])))
        await party.channel.send(partner, EncryptedHeldOut(step, (vectors,)))
        _, reply = await party.channel.receive([partner], EncryptedHeldOutProducts, step)
        _, masks = await party.channel.receive([partner], HeldOutMasks, step)
        count = groups.shape[1]
        expect_shape(partner, masks.values, (count, COLUMNS if count == CLASSES else 1))
        product = only(partner, reply.products)
        async with party.costs.compute(SCORING):
            masked = checked(partner, self._owner.decrypt, product)
            record(party.channel, Decrypted(partner, step, masked))
            found = combined(of_limbs(masked)) - masks.values
            ours = np.stack([by_group.sum(axis=0), (by_group * gathered[:, None]).sum(axis=0)])
            return self._score(step + 1, found.T + ours[-found.shape[1] :], labels)

    def _score(self, rounds: int, sums: RingArray, labels: Labels) -> Score:
        """From Σ_g H and Σ_g H² by group, shape (2, 2), or Σ (H − y)² alone, (1, 1)."""
        squares = ring.decode(ring.reduced(sums[-1]), 2 * self._bits)
        if is_real(labels):
            mean_squared = max(float(squares[0]), 0.0) / len(labels)
            return Score.of_squares(rounds, mean_squared, labels)
        both = np.stack([ring.decode(ring.reduced(sums[0]), self._bits), squares])
        counts = np.bincount(labels, minlength=CLASSES).astype(np.float64)
        return score_of_classes(rounds, both, counts, self._party.loss.middle)


def encoded(party: Party, predictions: FloatArray, bits: int) -> RingArray:
    """H of held-out rows in the ring, shape (test rows,); what is beyond ±64 is cut and counted."""
    cut = np.clip(predictions[:, 0], -LARGEST_PREDICTION, LARGEST_PREDICTION)
    party.costs.count("clipped_held_out", int(np.count_nonzero(cut != predictions[:, 0])))
    return ring.encode(cut, bits, LARGEST_PREDICTION, "predictions")


def limbs(words: RingArray) -> IntArray:
    """20 bits a time of residues modulo 2^59, shape (3, n), least significant first."""
    places = np.arange(0, ring.RING_BITS, LIMB_BITS, dtype=np.uint64)
    parts = ring.reduced(words) >> places[:, None] & np.uint64((1 << LIMB_BITS) - 1)
    return parts.astype(np.int64)


def of_limbs(values: RingArray) -> RingArray:
    """What products of limbs, or their masks, add up to.

    Args:
        values: of the limbs of y, then of y², with every vector, shape (6, vectors).

    Returns:
        By vector and column, shape (vectors, 2), modulo 2^64, right modulo 2^59.
    """
    places = np.arange(0, ring.RING_BITS, LIMB_BITS, dtype=np.uint64)
    whole = values.reshape(COLUMNS, LIMBS, -1) << places[:, None]
    added: RingArray = whole.sum(axis=1, dtype=np.uint64)
    return added.T


def only(sender: str, ciphertexts: tuple[bytes, ...]) -> bytes:
    """The one ciphertext of a message.

    Raises:
        UnexpectedMessage: another number.
    """
    if len(ciphertexts) != 1:
        raise UnexpectedMessage(f"{sender} sent {len(ciphertexts)} ciphertexts where 1 is due")
    return ciphertexts[0]
