"""Transfer learning under encryption: both components hidden, one product a party and round.

Each party owns a key. Per exchange and party k that steps, j the other:

1. j → k: Enc_j of its components, S·w + w² numbers, unit by unit (`objective`); and the power
   of two that bounds the eigenvalues of its Ψ.
2. k → j: for every unit the product with k's own matrix, masked, re-randomized, flooded.
3. j → k: the masked products in clear; k takes the masks off and has its gradient.

A unit's weights meet S + w of these numbers only, so the w products have (S + w)·P entries each,
where one over all units would have w times as many, zero but for these. All that is left to the Q
local steps is the party's own (`Linearized`): how many there are changes nothing of this.

Learns:
    either party: its own gradient ∂L/∂θ of the batch, P·w numbers that are new at every
        visit; as key owner products under masks, which are uniform; and the e for which ‖Φ‖², or
        the largest eigenvalue of the other's (1/S) Σ u uᵀ, lies from 2^(e−1) to 2^e.
    label party: φ of held-out rows, when it scores.
Guarantees: as in `exchanges.encrypted`: against semi-honest parties.
Messages: six a round, three a scoring.
"""

from dataclasses import replace
from math import ceil, log2

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.errors import UnexpectedMessage
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey, within_bound
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party, Step
from securevfl.protocols.transfer.objective import (
    LEAST_EXPONENT,
    Linearized,
    OwnGradient,
    OwnObjective,
    settings_of,
)
from securevfl.runtime.views import Learned, record
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
