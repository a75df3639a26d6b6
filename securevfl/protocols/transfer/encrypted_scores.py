"""Scoring held-out rows of transfer learning under encryption: φ = Φ·u_B, and nothing else.

The label party owns a key of its own for it. At a scoring:

1. label → feature party: Enc(Φ), w numbers.
2. feature → label party: the products with u of every held-out row, masked, re-randomized and
   flooded as in rounds; and the masks, which leave Φ·u.

Learns:
    label party: φ of every held-out row: what it predicts for them.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: against semi-honest parties. A label party that encrypts another vector learns that
    combination of the units of every held-out row.
"""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.models.scores import accuracy, auc
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.transfer.encrypted import ROUNDING
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(34, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedScoreVector(StepMessage):
    """Enc(Φ) under the sender's key."""

    vector: bytes


@message_kind(35, stage="evaluation", carries="ciphertexts", shows="scores")
class EncryptedScores(StepMessage):
    """The masked products of Φ with u of every held-out row, under the receiver's key."""

    product: bytes


@message_kind(36, stage="evaluation", carries="masked", shows="scores")
class ScoreMasks(StepMessage):
    """Their masks, shape (test rows,), modulo 2^64."""

    values: RingArray


def score_format(plan: Plan, units: int) -> ProductFormat:
    """Fixed point and size of a job's scorings; Φ and units stay within ±1."""
    timetable = plan.timetable
    return with_fraction_bits(
        plan.job.exchange.scheme,
        ProductFormat(
            rows=units,
            value_bound=ROUNDING,
            matrix_bound=1.0,
            columns=timetable.test_rows,
            rounds=timetable.times(plan.rounds),
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
        ),
    )


class EncryptedFeatureScores:
    """B's side: multiplies under the label party's key."""

    def __init__(self, party: Party, evaluator: Evaluator, product_format: ProductFormat) -> None:
        self._party, self._evaluator, self._format = party, evaluator, product_format

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Multiply Φ with u of held-out rows, shape (test rows, w), and give the masks too."""
        party, fmt, label_party = self._party, self._format, self._party.label_party
        _, message = await party.channel.receive([label_party], EncryptedScoreVector, step)
        async with party.costs.compute(SCORING):
            matrix = encode(predictions.T, fmt.matrix_fraction_bits, fmt.matrix_bound, "units")
            prepared = self._evaluator.prepare(np.ascontiguousarray(matrix))
            multiply = self._evaluator.masked_product
            reply = checked(label_party, multiply, message.vector, prepared)
        await party.channel.send(label_party, EncryptedScores(step, reply.ciphertext))
        await party.channel.send(label_party, ScoreMasks(step, reply.mask))


class EncryptedLabelScores:
    """A's side: owns the key, and computes Φ at the weights now."""

    def __init__(
        self,
        party: Party,
        owner: KeyOwner,
        product_format: ProductFormat,
        phi: Callable[[], FloatArray],
    ) -> None:
        self._party, self._owner, self._format, self._phi = party, owner, product_format, phi

    def check(self, labels: Labels) -> None:
        """Nothing."""

    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Ask for φ and score by it."""
        del own
        party, fmt, rows = self._party, self._format, len(labels)
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            encoded = encode(self._phi(), fmt.value_fraction_bits, fmt.value_bound, "Φ")
            vector = self._owner.encrypt(encoded)
        await party.channel.send(peer, EncryptedScoreVector(step, vector))
        _, reply = await party.channel.receive([peer], EncryptedScores, step)
        _, masks = await party.channel.receive([peer], ScoreMasks, step)
        expect_shape(peer, masks.values, (rows,))
        async with party.costs.compute(SCORING):
            masked = checked(peer, self._owner.decrypt, reply.product, rows)
            record(party.channel, Decrypted(peer, step, masked))
            scores = unmask(masked, masks.values, self._owner.modulus_bits)
            found = decode(scores, fmt.product_fraction_bits)[:, None]
            return Score(step + 1, auc(found, labels), accuracy(found, labels))
