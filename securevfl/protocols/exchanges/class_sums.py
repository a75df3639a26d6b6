"""Scoring where both sides are hidden, between two parties: sums over classes under encryption.

Real targets take the same with one group of all rows in place of classes, e = H_A − y in place of
H_A, and no masks of Σ H_B: what is left, Σ (H_B² + 2·e·H_B), is the squared error but for Σ e².

The label party owns a key of its own for it. At a scoring, for H = H_A + H_B of the held-out rows,
b the public bound on predictions and t_g the rows of class g as a 0/1 vector:

1. label → feature party: Enc(t_g) and Enc(t_g·H_A/b) for both classes.
2. feature → label party: the products of each with the columns [H_B/b, (H_B/b)²], masked,
   re-randomized and flooded as in rounds.
3. feature → label party: the masks, added up as the label party adds up what it decrypts: those of
   Σ_g H_B, and those of Σ_g H_B² + 2·Σ_g H_A·H_B together.

With its own Σ_g H_A and Σ_g H_A² the label party has the mean and the variance of H in each class:
held-out means of losses that are quadratic in H exactly, and the AUC and accuracy of two normal
distributions that have them (*binormal*), which is what a `Score` then says.

Learns:
    label party: Σ_g H_B and Σ_g (H_B² + 2·H_A·H_B) for both classes, four numbers a scoring. Of
        linear models they are functions of θ, of the sums of x_B and x_B·x_Bᵀ over each class
        and of x_A·x_Bᵀ, however often it scores: of no single row where a class has many. Of real
        targets one number a scoring, a function also of the sum of y·x_B: of few rows where few
        targets make up most of it, which is refused.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: against semi-honest parties. A label party that encrypts another vector, one row alone
    for example, learns H_B of that row; see SECURITY.md.
"""

from dataclasses import dataclass
from math import frexp

import numpy as np

from securevfl.arrays import FloatArray, Labels, RingArray, is_real
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.errors import RangeExceeded, UnexpectedMessage
from securevfl.protocols.exchange import Session
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.held_out_sums import (
    CLASSES,
    COLUMNS,
    combined,
    groups_of,
    require_many_rows,
    score_of_classes,
)
from securevfl.protocols.session.keys import exchange_keys
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.scoring import Score
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind


@message_kind(20, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedHeldOut(StepMessage):
    """Enc(t_0), Enc(t_1), Enc(t_0·H_A/b) and Enc(t_1·H_A/b) over the held-out rows.

    Of real targets Enc(1) and Enc(e/b), both by one power of two that brings e within b.
    """

    vectors: Blobs


@message_kind(21, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedHeldOutProducts(StepMessage):
    """Masked products of these with [H_B/b, (H_B/b)²], under the receiver's key."""

    products: Blobs


@message_kind(22, stage="evaluation", carries="masked", shows="scores")
class HeldOutMasks(StepMessage):
    """What the masks of the sums add up to, shape (2, 2), or (1, 1), modulo 2^64."""

    values: RingArray


def class_sum_format(plan: Plan) -> ProductFormat:
    """Fixed point and size of a job's class sums.

    H_B² and twice H_A·H_B add up before the masks come off; all scorings are flooded for.
    """
    timetable = plan.timetable
    return with_fraction_bits(
        plan.job.exchange.scheme,
        ProductFormat(
            rows=timetable.test_rows,
            value_bound=1.0,
            matrix_bound=1.0,
            summands=3,
            columns=COLUMNS,
            vectors=2 * (1 if plan.facts.real_targets else CLASSES),
            rounds=timetable.times(plan.rounds),
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
        ),
    )


class FeatureClassSums:
    """The feature party's side: multiplies under the label party's key."""

    def __init__(
        self, party: Party, evaluator: Evaluator, product_format: ProductFormat, bound: float
    ) -> None:
        self._party = party
        self._evaluator = evaluator
        self._format = product_format
        self._bound = bound

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Multiply, and give the masks of the class sums alone.

        Raises:
            UnexpectedMessage: another number of vectors than are due.
            MalformedMessage: bytes that are no encryption of so many values.
        """
        party, fmt, label_party = self._party, self._format, self._party.label_party
        _, message = await party.channel.receive([label_party], EncryptedHeldOut, step)
        if len(message.vectors) != fmt.vectors:
            raise UnexpectedMessage(
                f"{label_party} sent {len(message.vectors)} vectors where {fmt.vectors} are due"
            )
        async with party.costs.compute(SCORING):
            own = within(party, predictions, self._bound)[:, 0]
            columns = np.stack([own, own**2], axis=1)
            matrix = encode(columns, fmt.matrix_fraction_bits, fmt.matrix_bound, "predictions")
            prepared = self._evaluator.prepare(matrix)
            multiply = self._evaluator.masked_product
            replies = [checked(label_party, multiply, each, prepared) for each in message.vectors]
            masks = combined(np.stack([reply.mask for reply in replies]))
        products = tuple(reply.ciphertext for reply in replies)
        await party.channel.send(label_party, EncryptedHeldOutProducts(step, products))
        await party.channel.send(label_party, HeldOutMasks(step, masks))


class LabelClassSums:
    """The label party's side: owns the key."""

    def __init__(
        self,
        party: Party,
        owner: KeyOwner,
        product_format: ProductFormat,
        bound: float,
    ) -> None:
        self._party = party
        self._owner = owner
        self._format = product_format
        self._bound = bound

    def check(self, labels: Labels) -> None:
        """Check that no sum is of a few rows.

        Raises:
            ConfigError: a class of fewer than ten rows, or real targets that few of make up.
        """
        require_many_rows(labels, "eval_every = 'never' trains without")

    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Ask for the class sums and score by them.

        Raises:
            UnexpectedMessage: another number of products than are due.
            MalformedMessage: a reply that is no ciphertext of this key.
        """
        party, fmt = self._party, self._format
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            ours = within(party, own, self._bound)[:, 0]
            sums = self._sums(ours, labels)
            encoded = encode(sums.vectors, fmt.value_fraction_bits, fmt.value_bound, "predictions")
            vectors = tuple(self._owner.encrypt(each) for each in np.ascontiguousarray(encoded.T))
        await party.channel.send(peer, EncryptedHeldOut(step, vectors))
        _, reply = await party.channel.receive([peer], EncryptedHeldOutProducts, step)
        _, masks = await party.channel.receive([peer], HeldOutMasks, step)
        groups = fmt.vectors // 2
        expect_shape(peer, masks.values, (groups, COLUMNS if groups == CLASSES else 1))
        if len(reply.products) != fmt.vectors:
            raise UnexpectedMessage(
                f"{peer} sent {len(reply.products)} products, {fmt.vectors} due"
            )
        async with party.costs.compute(SCORING):
            decrypt = self._owner.decrypt
            products = [checked(peer, decrypt, each, COLUMNS) for each in reply.products]
            masked = np.stack(products)
            record(party.channel, Decrypted(peer, step, masked))
            found = unmask(combined(masked), masks.values, self._owner.modulus_bits)
            return sums.score(step + 1, decode(found, fmt.product_fraction_bits), self._bound)

    def _sums(self, ours: FloatArray, labels: Labels) -> "_ClassSums | _SquareSum":
        """What is to be summed, of H_A/b, shape (test rows,)."""
        if not is_real(labels):
            classes = groups_of(labels).astype(np.float64)
            return _ClassSums(ours, classes, self._party.loss.middle)
        errors: FloatArray = ours - labels.astype(np.float64) / self._bound
        halvings = max(0, frexp(float(np.max(np.abs(errors))))[1])
        if halvings >= self._format.value_fraction_bits:
            raise RangeExceeded(
                f"held-out targets: up to {np.max(np.abs(labels)):.3g} deviations from the mean"
            )
        return _SquareSum(errors, halvings, labels)


@dataclass(frozen=True, eq=False)
class _ClassSums:
    """H_A/b, shape (test rows,), rows by class as 0/1, (test rows, 2), and the loss's middle."""

    ours: FloatArray
    classes: FloatArray
    middle: float

    @property
    def vectors(self) -> FloatArray:
        return np.hstack([self.classes, self.classes * self.ours[:, None]])

    def score(self, rounds: int, theirs: FloatArray, bound: float) -> Score:
        """From Σ_g H_B/b and Σ_g (H_B² + 2·H_A·H_B)/b², by class."""
        sums = theirs.T + np.stack([self.ours, self.ours**2]) @ self.classes
        units = np.array([[bound], [bound**2]])
        return score_of_classes(rounds, units * sums, self.classes.sum(axis=0), self.middle)


@dataclass(frozen=True, eq=False)
class _SquareSum:
    """e/b, shape (test rows,), how often it is halved to be within 1, and the targets."""

    errors: FloatArray
    halvings: int
    targets: Labels

    @property
    def vectors(self) -> FloatArray:
        both = np.stack([np.ones_like(self.errors), self.errors], axis=1)
        return np.ldexp(both, -self.halvings)

    def score(self, rounds: int, theirs: FloatArray, bound: float) -> Score:
        """From Σ (H_B² + 2·e·H_B)/b², halved as often."""
        squares = np.ldexp(float(theirs[0, 0]), self.halvings) + np.sum(self.errors**2)
        mean_squared = bound**2 * max(float(squares), 0.0) / len(self.errors)
        return Score.of_squares(rounds, mean_squared, self.targets)


async def establish_class_sums(session: Session) -> FeatureClassSums | LabelClassSums | None:
    """This party's side, with the label party's key for it; none where nothing is scored.

    Raises:
        RangeExceeded: sums over so many held-out rows that the scheme has no room for.
    """
    party, plan = session.party, session.plan
    if not plan.timetable.test_rows:
        return None
    fmt, settings = class_sum_format(plan), plan.job.exchange
    own, evaluators = await exchange_keys(
        party, settings, fmt, owners=(party.label_party,), keys=session.keys
    )
    if own is not None:
        return LabelClassSums(party, own, fmt, settings.prediction_bound)
    evaluator = evaluators[party.label_party]
    return FeatureClassSums(party, evaluator, fmt, settings.prediction_bound)


def within(party: Party, predictions: FloatArray, bound: float) -> FloatArray:
    """Predictions over their public bound; what is beyond is clipped and counted."""
    clipped = np.clip(predictions, -bound, bound)
    party.costs.count("clipped_held_out", int(np.count_nonzero(clipped != predictions)))
    return np.asarray(clipped / bound)
