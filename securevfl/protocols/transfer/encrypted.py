"""Transfer learning under encryption: components are hidden, and of scores all but φ.

Each party owns a key. Per exchange and party k that steps, j the other:

1. j → k: Enc_j of its components, S·w + w² numbers, unit by unit (`objective`); and the power
   of two that bounds the eigenvalues of its Ψ.
2. k → j: for every unit the product with k's own matrix, masked, re-randomized, flooded.
3. j → k: the masked products in clear; k takes the masks off and has its gradient.

A unit's weights meet S + w of these numbers only, so the w products have (S + w)·P entries each,
where one over all units would have w times as many, zero but for these. All that is left to the Q
local steps is the party's own (`Linearized`): how many there are changes nothing of this.

Held-out rows are scored as φ = Φ·u_B. The label party owns another key for it. At a scoring:

1. label → feature party: Enc(Φ), w numbers.
2. feature → label party: the products with u of every held-out row, masked, re-randomized and
   flooded as in rounds; and the masks, which leave Φ·u.

Learns:
    either party: its own gradient ∂L/∂θ of the batch, P·w numbers that are new at every
        visit; as key owner products under masks, which are uniform; and the e for which ‖Φ‖², or
        the largest eigenvalue of the other's (1/S) Σ u uᵀ, lies from 2^(e−1) to 2^e.
    label party: φ of every held-out row, when it scores: what it predicts for them.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: as in `exchanges.encrypted`: against semi-honest parties. A label party that encrypts
    another vector than Φ learns that combination of the units of every held-out row.
Messages: six a round, three a scoring.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2

import numpy as np

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.errors import UnexpectedMessage
from securevfl.models.scores import accuracy, auc
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey, checked, within_bound
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party, Step
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.transfer.objective import (
    LEAST_EXPONENT,
    Linearized,
    OwnGradient,
    OwnObjective,
    settings_of,
)
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, Learned, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

# Sums of bounded units may leave their bound by rounding.
ROUNDING = 1 + 2.0**-20


@message_kind(33, stage="round", carries="ciphertexts", shows="components")
class EncryptedComponents(StepMessage):
    """Components, one vector a unit, under the sender's key; e − `LEAST_EXPONENT`."""

    vectors: Blobs
    exponent: int


def product_format(plan: Plan, columns: int) -> ProductFormat:
    """Fixed point and bounds of a job's products, one for each unit; P columns at who has more.

    Units stay within ±1, and so do Φ and both Ψ; v of the label party within ½ + 2g. A matrix comes
    within ±1 by powers of two, column by column.
    """
    job, settings = plan.job.exchange, settings_of(plan)
    fmt = with_fraction_bits(
        job.scheme,
        ProductFormat(
            rows=plan.most_batch_rows + settings.units,
            value_bound=max(1.0, 0.5 + 2 * settings.alignment) * ROUNDING,
            matrix_bound=1.0,
            columns=columns,
            vectors=settings.units,
            rounds=plan.rounds,
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
        ),
        value_bits=job.value_fraction_bits,
        matrix_bits=job.feature_fraction_bits,
    )
    if job.value_fraction_bits or job.feature_fraction_bits:
        return fmt
    # Components and matrices are of one size here: rounding weighs least where bits are halved.
    half = fmt.product_fraction_bits // 2
    rest = fmt.product_fraction_bits - half
    return replace(fmt, value_fraction_bits=rest, matrix_fraction_bits=half)


class EncryptedSide:
    """Either party's side."""

    def __init__(self, party: Party, own_key: OwnKey, peer_key: PeerKey) -> None:
        self._party, self._own_key, self._peer_key = party, own_key, peer_key
        self.scores: FloatArray | None = None

    async def signal(self, step: Step, batch: Batch, objective: OwnObjective) -> OwnGradient | None:
        """Serve the other with components if it steps, and take the own gradient."""
        party, key = self._party, self._peer_key
        (peer,) = party.others
        if peer in step.receivers:
            async with party.costs.compute("local"):
                own = objective.components()
                exponent = own.largest - LEAST_EXPONENT
            vectors = await self._own_key.encrypted(own.by_unit, "components")
            await party.channel.send(peer, EncryptedComponents(step.index, vectors, exponent))
        if party.name not in step.receivers:
            await self._own_key.decrypt_products(step, batch, [peer])
            return None
        async with party.costs.compute("local"):
            affine = objective.affine()
            bound = key.product_format.matrix_bound
            scaled = [within_bound(each, bound) for each in affine.matrices]
        async with party.costs.compute("evaluate"):
            prepared = [key.prepared(matrix) for matrix, _ in scaled]
        largest, vectors = await self._take_components(peer, step.index)
        masks = await key.answer(step, vectors, prepared)
        if peer in step.receivers:
            await self._own_key.decrypt_products(step, batch, [peer])
        masked = await key.take_decrypted(step, masks.shape)
        async with party.costs.compute("local"):
            exponents = np.stack([each for _, each in scaled], axis=1)
            gradient = affine.constant + np.ldexp(key.unmasked(masked, masks), -exponents)
            signal = OwnGradient(
                Linearized(gradient, objective.bend(largest)), objective.steepest(largest)
            )
        record(party.channel, Learned(party.name, step.index, "gradients", gradient))
        return signal

    async def _take_components(self, peer: str, index: int) -> tuple[int, Blobs]:
        _, message = await self._party.channel.receive([peer], EncryptedComponents, index)
        units = self._peer_key.product_format.vectors
        if len(message.vectors) != units:
            raise UnexpectedMessage(
                f"{peer} sent {len(message.vectors)} vectors where {units} are due"
            )
        # Ψ of bounded units has eigenvalues up to w.
        largest, most = message.exponent + LEAST_EXPONENT, ceil(log2(units)) + 1
        if largest > most:
            raise UnexpectedMessage(f"{peer} bounds eigenvalues by 2^{largest}, at most 2^{most}")
        return largest, message.vectors


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
