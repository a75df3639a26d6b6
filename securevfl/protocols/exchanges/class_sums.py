"""Scoring where both sides are hidden, between two parties: sums over classes under encryption.

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
        and of x_A·x_Bᵀ, however often it scores: of no single row where a class has many.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: against semi-honest parties. A label party that encrypts another vector, one row alone
    for example, learns H_B of that row; see SECURITY.md.
"""

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.errors import ConfigError, UnexpectedMessage
from securevfl.models.scores import binormal_accuracy, binormal_auc
from securevfl.protocols.exchange import Session
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.keys import exchange_keys
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.scoring import Score
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

CLASSES, COLUMNS = 2, 2
VECTORS = 2 * CLASSES
FEWEST_ROWS = 10


@message_kind(20, stage="evaluation", carries="ciphertexts")
class EncryptedHeldOut(StepMessage):
    """Enc(t_0), Enc(t_1), Enc(t_0·H_A/b) and Enc(t_1·H_A/b) over the held-out rows."""

    vectors: Blobs


@message_kind(21, stage="evaluation", carries="ciphertexts")
class EncryptedHeldOutProducts(StepMessage):
    """Masked products of these four with [H_B/b, (H_B/b)²], under the receiver's key."""

    products: Blobs


@message_kind(22, stage="evaluation", carries="masked")
class HeldOutMasks(StepMessage):
    """What the masks of the class sums add up to, shape (2, 2), modulo 2^64."""

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
            vectors=VECTORS,
            rounds=timetable.times(plan.rounds),
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
        ),
    )


def combined(values: RingArray) -> RingArray:
    """Products or their masks, added up to what the label party may know of them.

    Args:
        values: by vector and column, shape (4, 2).

    Returns:
        By class: Σ_g H_B, and Σ_g (H_B² + 2·H_A·H_B), shape (2, 2), modulo 2^64.
    """
    found = values[:CLASSES].copy()
    found[:, 1] += np.uint64(2) * values[CLASSES:, 0]
    return found


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
            UnexpectedMessage: another number of vectors than four.
            MalformedMessage: bytes that are no encryption of so many values.
        """
        party, fmt, label_party = self._party, self._format, self._party.label_party
        _, message = await party.channel.receive([label_party], EncryptedHeldOut, step)
        if len(message.vectors) != VECTORS:
            raise UnexpectedMessage(
                f"{label_party} sent {len(message.vectors)} vectors where {VECTORS} are due"
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

    def check(self, labels: IntArray) -> None:
        """Check that no sum is of a few rows.

        Raises:
            ConfigError: a class of fewer than ten rows.
        """
        counts = np.bincount(labels, minlength=CLASSES)
        if counts.min() < FEWEST_ROWS:
            raise ConfigError(
                f"held-out rows: {counts.min()} of class {counts.argmin()}, at least "
                f"{FEWEST_ROWS} expected: hide = 'both' scores by sums over classes"
            )

    async def score(self, step: int, own: FloatArray, labels: IntArray) -> Score:
        """Ask for the class sums and score by them.

        Raises:
            UnexpectedMessage: another number of products than four.
            MalformedMessage: a reply that is no ciphertext of this key.
        """
        party, fmt = self._party, self._format
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            ours = within(party, own, self._bound)[:, 0]
            classes = (labels[:, None] == np.arange(CLASSES)).astype(np.float64)
            values = np.hstack([classes, classes * ours[:, None]])
            encoded = encode(values, fmt.value_fraction_bits, fmt.value_bound, "predictions")
            vectors = tuple(self._owner.encrypt(each) for each in np.ascontiguousarray(encoded.T))
        await party.channel.send(peer, EncryptedHeldOut(step, vectors))
        _, reply = await party.channel.receive([peer], EncryptedHeldOutProducts, step)
        _, masks = await party.channel.receive([peer], HeldOutMasks, step)
        expect_shape(peer, masks.values, (CLASSES, COLUMNS))
        if len(reply.products) != VECTORS:
            raise UnexpectedMessage(f"{peer} sent {len(reply.products)} products, {VECTORS} due")
        async with party.costs.compute(SCORING):
            decrypt = self._owner.decrypt
            products = [checked(peer, decrypt, each, COLUMNS) for each in reply.products]
            masked = np.stack(products)
            record(party.channel, Decrypted(peer, step, masked))
            sums = unmask(combined(masked), masks.values, self._owner.modulus_bits)
            theirs = decode(sums, fmt.product_fraction_bits).T
            return self._score(step, theirs + np.stack([ours, ours**2]) @ classes, classes)

    def _score(self, step: int, sums: FloatArray, classes: FloatArray) -> Score:
        """From Σ_g H/b and Σ_g (H/b)², shape (2, classes)."""
        counts = classes.sum(axis=0)
        means = self._bound * sums[0] / counts
        variances = np.maximum(self._bound**2 * sums[1] / counts - means**2, 0.0)
        return Score(
            step + 1,
            binormal_auc(means, variances),
            binormal_accuracy(means, variances, counts),
            binormal=True,
        )


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
