"""Scoring without showing predictions, from sums over the held-out rows of each class.

Held-out predictions are H = H_A + H_B, H_A at the label party and H_B at the other; b is the public
bound on predictions, and the 0/1 vector t_g marks the rows of class g. The label party owns a key
for scoring only. At each scoring:

1. label → feature party: Enc(t_g) and Enc(t_g·H_A/b) for both classes.
2. feature → label party: the products of each with the columns [H_B/b, (H_B/b)²], masked,
   re-randomized as in rounds.
3. feature → label party: sums of the masks: one for Σ_g H_B, one for
   Σ_g H_B² + 2·Σ_g H_A·H_B.

With its own Σ_g H_A and Σ_g H_A² the label party knows the mean and the variance of H in each
class. They determine the held-out mean of a quadratic loss exactly. The score takes the AUC of two
normal distributions with these moments (*binormal*), which is often off in the third digit.

Real targets form one group of all rows. The label party encrypts e = H_A − y in place of H_A, and
only learns Σ (H_B² + 2·e·H_B), to which it adds Σ e² for the squared error.

Between two parties products are in fixed point under the job's scheme, here; `blind.scoring`
multiplies shares of H in the ring.

Learns:
    label party: Σ_g H_B and Σ_g (H_B² + 2·H_A·H_B) for both classes, four numbers per scoring. For
        linear models these are functions of θ and of class sums of x_B, x_B·x_Bᵀ and x_A·x_Bᵀ,
        however often it scores, and of no single row where classes are large. For real targets one
        number per scoring, which also depends on the sum of y·x_B; a few large targets could
        dominate that sum, so such jobs are refused.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: against semi-honest parties. A label party that encrypts another vector, for example one
    row alone, learns H_B of that row; see SECURITY.md.
Source: docs/decisions/0017-held-out-rows.md.
"""

from abc import abstractmethod
from math import frexp
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels, RingArray, is_real
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.data.tables import as_classes
from securevfl.errors import ConfigError, RangeExceeded
from securevfl.models.scores import binormal_auc
from securevfl.protocols.exchange import Session
from securevfl.protocols.exchanges.homomorphic import checked, expect_count
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.keys import exchange_keys
from securevfl.protocols.session.scoring import HeldOut, Score
from securevfl.runtime.channel import receive_values
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

CLASSES, COLUMNS = 2, 2
FEWEST_ROWS = 10


@message_kind(20, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedHeldOut(StepMessage):
    """Enc(t_0), Enc(t_1), Enc(t_0·H_A/b) and Enc(t_1·H_A/b) over the held-out rows.

    For real targets Enc(1) and Enc(e/b), both scaled by the power of two that brings e within b.
    """

    vectors: Blobs


@message_kind(21, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedHeldOutProducts(StepMessage):
    """Masked products of these with [H_B/b, (H_B/b)²], under the receiver's key."""

    products: Blobs


@message_kind(22, stage="evaluation", carries="masked", shows="scores")
class HeldOutMasks(StepMessage):
    """Sums of the masks, shape (2, 2), or (1, 1) for real targets, modulo 2^64."""

    values: RingArray


def require_many_rows(labels: Labels, alternatives: str) -> None:
    """Refuse sums over few rows; the error names the alternatives.

    A class needs ten rows, and real targets an effective number of as many.
    """
    if is_real(labels):
        weights = np.abs(labels)
        rows = weights.sum() ** 2 / np.sum(weights**2)
        if rows < FEWEST_ROWS:
            raise ConfigError(
                f"held-out rows: their targets weigh as much as {rows:.1f} rows would, at "
                f"least {FEWEST_ROWS} expected, as the score is a sum over all; {alternatives}"
            )
        return
    counts = np.bincount(as_classes(labels), minlength=CLASSES)
    if counts.min() < FEWEST_ROWS:
        raise ConfigError(
            f"held-out rows: {counts.min()} of class {counts.argmin()}, at least {FEWEST_ROWS} "
            f"expected, as scores are of sums over classes; {alternatives}"
        )


def groups_of(labels: Labels) -> NDArray[np.uint8]:
    """The rows of each sum, as 0/1 columns: two classes, or all rows of real targets."""
    if is_real(labels):
        return np.ones((len(labels), 1), np.uint8)
    classes: NDArray[np.bool_] = labels[:, None] == np.arange(CLASSES)
    return classes.astype(np.uint8)


def combined(values: RingArray) -> RingArray:
    """The sums that the label party may learn, of products or of their masks, modulo 2^64.

    Takes values by vector (t_g of every group g, then t_g·H_A) and column (H_B, H_B²), shape
    (4, 2), or (2, 2) for real targets. Returns Σ_g H_B and Σ_g (H_B² + 2·H_A·H_B) by class, shape
    (2, 2), or Σ (H_B² + 2·e·H_B) alone, shape (1, 1).
    """
    groups = len(values) // 2
    found = values[:groups].copy()
    found[:, 1] += np.uint64(2) * values[groups:, 0]
    return found if groups == CLASSES else found[:, 1:]


def binormal_score(predictions: FloatArray, labels: Labels) -> Score:
    """The binormal score of known predictions, shape (N,)."""
    groups = groups_of(labels).astype(np.float64)
    sums = np.stack([predictions @ groups, predictions**2 @ groups])
    return score_of_classes(0, sums, groups.sum(axis=0))


def score_of_classes(rounds: int, sums: NDArray[np.float64], counts: NDArray[np.float64]) -> Score:
    """The binormal score from Σ_g H and Σ_g H², shape (2, classes), and rows per class."""
    means = sums[0] / counts
    variances = np.maximum(sums[1] / counts - means**2, 0.0)
    return Score(rounds, binormal_auc(means, variances), binormal=True)


class ClassSums(HeldOut):
    """One party's side of scoring by sums over classes; the label party owns the key.

    Attributes:
        multiplier: the party that multiplies.
        alternatives: to scoring by sums, for errors.
    """

    alternatives: ClassVar[str]

    def __init__(self, party: Party, multiplier: str) -> None:
        self.party, self.multiplier = party, multiplier

    @override
    def check(self, labels: Labels) -> None:
        """Check held-out labels before training.

        Raises:
            ConfigError: sums would depend on few rows, see `require_many_rows`.
            RangeExceeded: targets far larger than any prediction.
        """
        require_many_rows(labels, self.alternatives)

    @override
    async def give(self, step: int, predictions: FloatArray) -> None:
        """Multiply, and send sums of the masks only."""
        channel, label_party = self.party.channel, self.party.label_party
        numbers = await self.numbers(step, predictions)
        if numbers is None:
            return
        _, message = await channel.receive([label_party], EncryptedHeldOut, step)
        async with self.party.costs.compute(SCORING):
            products, masks = self.multiplied(label_party, message.vectors, numbers)
        await channel.send(label_party, EncryptedHeldOutProducts(step, products))
        await channel.send(label_party, HeldOutMasks(step, masks))

    @override
    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Obtain the class sums and score by them."""
        party, peer, real = self.party, self.multiplier, is_real(labels)
        numbers = await self.numbers(step, own)
        assert numbers is not None  # noqa: S101
        async with party.costs.compute(SCORING):
            vectors = self.encrypted(numbers, labels)
        await party.channel.send(peer, EncryptedHeldOut(step, vectors))
        _, reply = await party.channel.receive([peer], EncryptedHeldOutProducts, step)
        shape = (1, 1) if real else (CLASSES, COLUMNS)
        masks = await receive_values(party.channel, peer, HeldOutMasks, step, shape)
        async with party.costs.compute(SCORING):
            masked = self.decrypted(peer, reply.products)
            record(party.channel, Decrypted(peer, step, masked))
            found = self.added(masked, masks, numbers, labels)
            if real:
                mean_squared = max(float(found[0, 0]), 0.0) / len(labels)
                return Score.of_squares(step + 1, mean_squared, labels)
            counts = np.bincount(labels, minlength=CLASSES).astype(np.float64)
            return score_of_classes(step + 1, found, counts)

    @abstractmethod
    async def numbers(self, step: int, predictions: FloatArray) -> NDArray[Any] | None:
        """This party's H_A or H_B, encoded; None at parties that do not multiply."""

    @abstractmethod
    def encrypted(self, numbers: NDArray[Any], labels: Labels) -> Blobs:
        """Enc(t_g) and Enc(t_g·H_A)."""

    @abstractmethod
    def multiplied(
        self, sender: str, vectors: Blobs, numbers: NDArray[Any]
    ) -> tuple[Blobs, RingArray]:
        """Their products with [H_B, H_B²], masked; and the masks, `combined`."""

    @abstractmethod
    def decrypted(self, sender: str, products: Blobs) -> RingArray:
        """The masked products."""

    @abstractmethod
    def added(
        self, masked: RingArray, masks: RingArray, numbers: NDArray[Any], labels: Labels
    ) -> FloatArray:
        """Σ_g H and Σ_g H², shape (2, 2), by column and class; or Σ (H − y)² alone, (1, 1)."""


def class_sum_format(plan: Plan) -> ProductFormat:
    """Fixed point and size of a job's class sums.

    H_B² and twice H_A·H_B add up under the masks; noise tells nothing over all scorings.
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
            opened=True,
        ),
    )


class FixedPointSums(ClassSums):
    """Products in fixed point, between two parties: numbers are H_k divided by its public bound.

    Predictions beyond the bound are clipped and counted.
    """

    alternatives = "eval_every = 'never' trains without"

    def __init__(
        self,
        party: Party,
        own: KeyOwner | None,
        ends: dict[str, Evaluator],
        product_format: ProductFormat,
        bound: float,
    ) -> None:
        super().__init__(party, party.feature_parties[0])
        self._own, self._ends = own, ends
        self._format, self._bound = product_format, bound

    @override
    async def numbers(self, step: int, predictions: FloatArray) -> FloatArray:
        """H_k/b, shape (test rows,)."""
        del step
        bound, costs = self._bound, self.party.costs
        async with costs.compute(SCORING):
            clipped = np.clip(predictions, -bound, bound)
            costs.count("clipped_held_out", int(np.count_nonzero(clipped != predictions)))
            return np.asarray(clipped / bound)[:, 0]

    @override
    def encrypted(self, numbers: FloatArray, labels: Labels) -> Blobs:
        """One ciphertext per vector; for real targets all scaled by one power of two."""
        assert self._own is not None  # noqa: S101
        fmt, groups = self._format, groups_of(labels).astype(np.float64)
        halvings = 0
        if is_real(labels):
            numbers, halvings = self._errors(numbers, labels)
        vectors = np.ldexp(np.hstack([groups, groups * numbers[:, None]]), -halvings)
        encoded = encode(vectors, fmt.value_fraction_bits, fmt.value_bound, "predictions")
        return tuple(self._own.encrypt(each) for each in np.ascontiguousarray(encoded.T))

    @override
    def multiplied(
        self, sender: str, vectors: Blobs, numbers: FloatArray
    ) -> tuple[Blobs, RingArray]:
        fmt, end = self._format, self._ends[sender]
        expect_count(sender, vectors, fmt.vectors, "vectors")
        columns = np.stack([numbers, numbers**2], axis=1)
        matrix = encode(columns, fmt.matrix_fraction_bits, fmt.matrix_bound, "predictions")
        prepared = end.prepare(matrix)
        replies = [checked(sender, end.masked_product, each, prepared) for each in vectors]
        masks = combined(np.stack([reply.mask for reply in replies]))
        return tuple(reply.ciphertext for reply in replies), masks

    @override
    def decrypted(self, sender: str, products: Blobs) -> RingArray:
        """By vector and column, shape (4, 2), or (2, 2) for real targets."""
        assert self._own is not None  # noqa: S101
        decrypt = self._own.decrypt
        expect_count(sender, products, self._format.vectors, "products")
        return np.stack([checked(sender, decrypt, each, COLUMNS) for each in products])

    @override
    def added(
        self, masked: RingArray, masks: RingArray, numbers: FloatArray, labels: Labels
    ) -> FloatArray:
        assert self._own is not None  # noqa: S101
        found = unmask(combined(masked), masks, self._own.modulus_bits)
        theirs = decode(found, self._format.product_fraction_bits)
        if is_real(labels):
            errors, halvings = self._errors(numbers, labels)
            return self._bound**2 * (np.ldexp(theirs, halvings) + np.sum(errors**2))
        classes = groups_of(labels).astype(np.float64)
        units = np.array([[self._bound], [self._bound**2]])
        return units * (theirs.T + np.stack([numbers, numbers**2]) @ classes)

    def _errors(self, numbers: FloatArray, labels: Labels) -> tuple[FloatArray, int]:
        """e/b, shape (test rows,), and how many halvings bring it within 1."""
        errors: FloatArray = numbers - labels.astype(np.float64) / self._bound
        halvings = max(0, frexp(float(np.max(np.abs(errors))))[1])
        if halvings >= self._format.value_fraction_bits:
            raise RangeExceeded(
                f"held-out targets: up to {np.max(np.abs(labels)):.3g} deviations from the mean"
            )
        return errors, halvings


async def establish_class_sums(session: Session) -> FixedPointSums | None:
    """This party's side of scoring by class sums; None without held-out rows."""
    party, plan = session.party, session.plan
    if not plan.timetable.test_rows:
        return None
    fmt, settings = class_sum_format(plan), plan.job.exchange
    owners = (party.label_party,)
    own, ends = await exchange_keys(
        party, settings, fmt, owners=owners, keys=session.keys, seed=session.agreement.seed
    )
    return FixedPointSums(party, own, ends, fmt, settings.prediction_bound)
