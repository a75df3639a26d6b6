"""The two ways of transfer learning: components in clear or with noise, and under encryption.

**In clear** parties send their components (`objective`). To score held-out rows the label party
sends Φ, and the feature party answers φ = Φ·u_B. A round and a scoring take two messages each.

Learns:
    label party: u of B's rows of every batch, shape (S, w), and φ of its held-out rows.
    feature party: Φ, and ½ y_i Φ + 2g u_i^A of every row of a batch. As it knows Φ, this reveals
        every label for small g, and u_i^A once y_i is guessed.

Under the `dp` exchange units and Φ get noise. The units of a sample are clipped and noised like
predictions with w outputs. Φ is a mean over all rows of the label party, and replacing one row
moves each of its w entries by at most 2/N_A. It gets noise of the same multiplier once per round,
which the account counts as one more release of every sample. All other messages follow from these
(½ y Φ + 2g u, ΦΦᵀ, φ). No ε covers labels: y multiplies Φ in every row of a batch, and the label
party's own steps use exact labels. Held-out rows are scored by the Φ that was sent last, as another
release would cost privacy.

**Under encryption** each party owns a key. Per exchange and party k that steps, j the other:

1. j → k: Enc_j of its components, S·w + w² numbers, unit by unit (`objective`); and the power
   of two that bounds the eigenvalues of its Ψ.
2. k → j: for every unit the product with k's own matrix, masked, re-randomized.
3. j → k: the masked products in clear; k takes the masks off and has its gradient.

A unit's weights depend on S + w of these numbers only, so each of the w products has (S + w)·P
entries. The Q local steps use the party's own data only, so messages do not depend on Q.

`he_per_step` repeats, for benchmarks, moves 2 and 3 in every local step, as FATE does: on the
ciphertexts of the round, with the party's matrix at its weights now. These are the exact steps that
parties take in clear, where one product a round allows linearized ones.

Held-out rows are scored as φ = Φ·u_B, under another key of the label party. At each scoring:

1. label → feature party: Enc(Φ), w numbers.
2. feature → label party: the products with u of every held-out row, masked and re-randomized as
   in rounds; and the masks, so that the label party obtains Φ·u.

A round takes six messages, or 2 + 4Q under `he_per_step`; a scoring takes three.

Learns:
    either party: its own gradient ∂L/∂θ of the batch, P·w numbers that are new at every visit, and
        under `he_per_step` in every local step; as
        key owner products under masks, which are uniform; and the e for which ‖Φ‖², or the largest
        eigenvalue of the other's (1/S) Σ u uᵀ, lies between 2^(e−1) and 2^e.
    label party: φ of every held-out row, when it scores.
    feature party: that held-out rows were scored, and whether training stops.
Guarantees: against semi-honest parties, see `exchanges.encrypted`. A label party that encrypts
    another vector than Φ learns that combination of the units of every held-out row.
Source: Liu, Chen, Yang 2018, section 3; docs/decisions/0019-transfer-learning.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, log2

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.errors import TrainingDiverged, UnexpectedMessage
from securevfl.protocols.exchange import IN_CLEAR, Batch, Outgoing
from securevfl.protocols.exchanges.homomorphic import (
    OwnKey,
    PeerKey,
    checked,
    expect_count,
    within_bound,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import HeldOutPredictions, Party, Step
from securevfl.protocols.session.scoring import HeldOut, Score
from securevfl.protocols.transfer.objective import (
    LEAST_EXPONENT,
    Components,
    OwnGradient,
    OwnObjective,
    feature_components,
    settings_of,
)
from securevfl.runtime.channel import expect_shape, receive_values
from securevfl.runtime.costs import SCORING
from securevfl.runtime.views import Decrypted, Learned, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

# Sums of bounded units may leave their bound by rounding.
ROUNDING = 1 + 2.0**-20


@message_kind(30, stage="round", carries="values", shows="components")
class LabelComponents(StepMessage):
    """½ y Φ + 2g u of a batch, shape (S, w), and Φ, shape (w,)."""

    rows: FloatArray
    phi: FloatArray


@message_kind(31, stage="round", carries="values", shows="units")
class FeatureComponents(StepMessage):
    """u of a batch, shape (S, w)."""

    rows: FloatArray


@message_kind(32, stage="evaluation", carries="values", shows="components")
class ScoreVector(StepMessage):
    """Φ, by which held-out rows are scored, shape (w,)."""

    phi: FloatArray


class ClearSide:
    """Either party's side in clear.

    With `linearized` it steps on the linearization, as under encryption. `release` protects units
    and Φ before they are sent.
    """

    def __init__(self, party: Party, *, linearized: bool, release: Outgoing) -> None:
        self._party, self._linearized, self._release = party, linearized, release
        self._phi: FloatArray | None = None
        self.scores: FloatArray | None = None

    def given_phi(self) -> FloatArray:
        """Φ as the label party sent it last."""
        assert self._phi is not None  # noqa: S101
        return self._phi

    async def signal(self, step: Step, batch: Batch, objective: OwnObjective) -> OwnGradient | None:
        """Send components if the other party steps; returns the gradient if this one does."""
        del batch
        party = self._party
        (peer,) = party.others
        async with party.costs.compute("local"):
            own = objective.components(self._release)
        if peer in step.receivers:
            await self._give(peer, step.index, own)
        if party.name not in step.receivers:
            return None
        given = await self._take(peer, step.index, own.rows.shape)
        async with party.costs.compute("local"):
            if party.holds_labels:
                self.scores = given.rows @ own.factor.T
            if not self._linearized:
                return OwnGradient.exact(objective, given)
            value = objective.gradient(given)
            return OwnGradient.linearized(value, objective, given.largest)

    async def _give(self, peer: str, index: int, own: Components) -> None:
        channel = self._party.channel
        if self._party.holds_labels:
            self._phi = own.factor[0]
            await channel.send(peer, LabelComponents(index, own.rows, self._phi))
        else:
            await channel.send(peer, FeatureComponents(index, own.rows))

    async def _take(self, peer: str, index: int, shape: tuple[int, ...]) -> Components:
        channel = self._party.channel
        if self._party.holds_labels:
            _, units = await channel.receive([peer], FeatureComponents, index)
            expect_shape(peer, units.rows, shape)
            return feature_components(units.rows)
        _, message = await channel.receive([peer], LabelComponents, index)
        expect_shape(peer, message.rows, shape)
        expect_shape(peer, message.phi, shape[1:])
        return Components(message.rows, message.phi[None])


class ScoringInClear(HeldOut):
    """The label party sends Φ, the feature party answers φ of its held-out rows.

    `phi` computes Φ at the label party; `release` protects the units before φ is computed.
    """

    def __init__(
        self, party: Party, phi: Callable[[], FloatArray], release: Outgoing = IN_CLEAR
    ) -> None:
        self._party, self._phi, self._release = party, phi, release

    @override
    async def give(self, step: int, predictions: FloatArray) -> None:
        """Send φ = Φ·u of held-out rows from u, shape (test rows, w)."""
        party = self._party
        sender, message = await party.channel.receive([party.label_party], ScoreVector, step)
        expect_shape(sender, message.phi, predictions.shape[1:])
        async with party.costs.compute(SCORING):
            units = self._release.units(predictions)
            with np.errstate(over="ignore", invalid="ignore"):
                scores = units @ message.phi[:, None]
            if not np.isfinite(scores).all():
                raise TrainingDiverged("training diverged: scores leave float64")
        await party.channel.send(party.label_party, HeldOutPredictions(step, scores))

    @override
    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Score B's rows, without the label party's own columns."""
        del own
        party = self._party
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            phi = self._phi()
        await party.channel.send(peer, ScoreVector(step, phi))
        shape = len(labels), 1
        self.seen = await receive_values(party.channel, peer, HeldOutPredictions, step, shape)
        async with party.costs.compute(SCORING):
            return Score.of(step + 1, self.seen, labels)


@message_kind(33, stage="round", carries="ciphertexts", shows="components")
class EncryptedComponents(StepMessage):
    """Components under the sender's key, one vector per unit, and e − `LEAST_EXPONENT`."""

    vectors: Blobs
    exponent: int


def product_format(plan: Plan, columns: int) -> ProductFormat:
    """Fixed point and bounds of a job's products, one per unit, for the party with more columns.

    Units, Φ and both Ψ stay within ±1, and v of the label party within ½ + 2g. Powers of two bring
    each column of a matrix within ±1.
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
            rounds=plan.rounds * plan.products,
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
        ),
        value_bits=job.value_fraction_bits,
        matrix_bits=job.feature_fraction_bits,
    )
    if job.value_fraction_bits or job.feature_fraction_bits:
        return fmt
    # Components and matrices are of similar size: equal fraction bits round least.
    half = fmt.product_fraction_bits // 2
    rest = fmt.product_fraction_bits - half
    return replace(fmt, value_fraction_bits=rest, matrix_fraction_bits=half)


class EncryptedSide:
    """Either party's side under encryption."""

    def __init__(self, party: Party, own_key: OwnKey, peer_key: PeerKey) -> None:
        self._party, self._own_key, self._peer_key = party, own_key, peer_key
        self._given: tuple[int, Blobs] = 0, ()
        self.scores: FloatArray | None = None

    async def signal(self, step: Step, batch: Batch, objective: OwnObjective) -> OwnGradient | None:
        """Send encrypted components if the other party steps; this party's gradient if it does.

        A step that is not fresh takes the components of the one before it.
        """
        party, key = self._party, self._peer_key
        (peer,) = party.others
        if step.fresh and peer in step.receivers:
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
        if step.fresh:
            self._given = await self._take_components(peer, step.index)
        largest, vectors = self._given
        masks = await key.answer(step, vectors, prepared)
        if peer in step.receivers:
            await self._own_key.decrypt_products(step, batch, [peer])
        masked = await key.take_decrypted(step, masks.shape)
        async with party.costs.compute("local"):
            exponents = np.stack([each for _, each in scaled], axis=1)
            gradient = affine.constant + np.ldexp(key.unmasked(masked, masks), -exponents)
            signal = OwnGradient.linearized(gradient, objective, largest)
        record(party.channel, Learned(party.name, step.index, "gradients", gradient))
        return signal

    async def _take_components(self, peer: str, index: int) -> tuple[int, Blobs]:
        _, message = await self._party.channel.receive([peer], EncryptedComponents, index)
        units = self._peer_key.product_format.vectors
        expect_count(peer, message.vectors, units, "vectors")
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
            opened=True,
        ),
    )


class ScoringEncrypted(HeldOut):
    """The feature party computes φ under the label party's key.

    `phi` computes Φ at the label party.
    """

    def __init__(
        self,
        party: Party,
        phi: Callable[[], FloatArray],
        product_format: ProductFormat,
        key: KeyOwner | None,
        ends: Mapping[str, Evaluator],
    ) -> None:
        self._party, self._phi, self._format = party, phi, product_format
        self._key, self._ends = key, ends

    @override
    async def give(self, step: int, predictions: FloatArray) -> None:
        """Multiply Φ with u of held-out rows, shape (test rows, w); send products and masks."""
        party, fmt, label_party = self._party, self._format, self._party.label_party
        evaluator = self._ends[label_party]
        _, message = await party.channel.receive([label_party], EncryptedScoreVector, step)
        async with party.costs.compute(SCORING):
            matrix = encode(predictions.T, fmt.matrix_fraction_bits, fmt.matrix_bound, "units")
            prepared = evaluator.prepare(np.ascontiguousarray(matrix))
            reply = checked(label_party, evaluator.masked_product, message.vector, prepared)
        await party.channel.send(label_party, EncryptedScores(step, reply.ciphertext))
        await party.channel.send(label_party, ScoreMasks(step, reply.mask))

    @override
    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Obtain φ and score by it, without the label party's own columns."""
        del own
        party, key, fmt, rows = self._party, self._key, self._format, len(labels)
        assert key is not None  # noqa: S101
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            encoded = encode(self._phi(), fmt.value_fraction_bits, fmt.value_bound, "Φ")
            vector = key.encrypt(encoded)
        await party.channel.send(peer, EncryptedScoreVector(step, vector))
        _, reply = await party.channel.receive([peer], EncryptedScores, step)
        masks = await receive_values(party.channel, peer, ScoreMasks, step, (rows,))
        async with party.costs.compute(SCORING):
            masked = checked(peer, key.decrypt, reply.product, rows)
            record(party.channel, Decrypted(peer, step, masked))
            scores = unmask(masked, masks, key.modulus_bits)
            self.seen = decode(scores, fmt.product_fraction_bits)[:, None]
            return Score.of(step + 1, self.seen, labels)
