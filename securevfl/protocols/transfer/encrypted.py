"""Transfer learning under encryption: both components hidden, one product a party and round.

Each party owns a key. Per exchange and party k that steps, j the other:

1. j → k: Enc_j of its components, S·d + d² numbers, unit by unit (`objective`); and the power
   of two that bounds the eigenvalues of its K.
2. k → j: for every unit the product with k's own matrix, masked, re-randomized, flooded.
3. j → k: the masked products in clear; k takes the masks off and has its gradient.

A unit's weights meet S + d of these numbers only, so the d products have (S + d)·P entries each,
where one over all units would have d² times that. Several units share a vector, with zeros in its
matrix, where this takes less time. All that is left to the Q local steps is the party's own
(`Linearized`): how many there are changes nothing of this.

Learns:
    either party: its own gradient ∂L/∂θ of the batch, (F + 1)·d numbers that are new at every
        visit; as key owner products under masks, which are uniform; and the e for which ‖Φ‖², or
        the largest eigenvalue of the other's (1/S) Σ u uᵀ, lies from 2^(e−1) to 2^e.
    label party: φ of held-out rows, when it scores.
Guarantees: as in `exchanges.encrypted`: against semi-honest parties.
Messages: six a round, three a scoring.
"""

from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import SCHEMES, with_fraction_bits
from securevfl.errors import RangeExceeded, UnexpectedMessage
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey, within_bound
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.transfer.objective import LEAST_EXPONENT, Components, Objective
from securevfl.protocols.transfer.steps import Linearized, Signal
from securevfl.runtime.views import Learned, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

# Sums of bounded units may leave their bound by rounding.
ROUNDING = 1 + 2.0**-20


@message_kind(33, stage="round", carries="ciphertexts")
class EncryptedComponents(StepMessage):
    """Components, one vector a group of units, under the sender's key; e − `LEAST_EXPONENT`."""

    vectors: Blobs
    exponent: int


@dataclass(frozen=True)
class Groups:
    """How units lie in vectors: `size` of them in each, one after the other.

    Attributes:
        units: d.
        size: a divisor of d.
    """

    units: int
    size: int

    @property
    def count(self) -> int:
        """Vectors."""
        return self.units // self.size

    def values(self, given: Components) -> FloatArray:
        """What is encrypted, shape (size·(S + d), count)."""
        return self._joined(given.by_unit)

    def matrices(self, of_units: FloatArray) -> list[FloatArray]:
        """Each vector's matrix, (size·(S + d), size·P), from those of units, (d, S + d, P)."""
        _, rows, columns = of_units.shape
        found = []
        for first in range(0, self.units, self.size):
            block = np.zeros((self.size, rows, self.size, columns))
            for at in range(self.size):
                block[at, :, at] = of_units[first + at]
            found.append(block.reshape(self.size * rows, self.size * columns))
        return found

    def parted(self, products: FloatArray) -> FloatArray:
        """Products of all units, shape (P, d), from those of vectors, (size·P, count)."""
        return (
            products.reshape(self.size, -1, self.count).transpose(1, 2, 0).reshape(-1, self.units)
        )

    def _joined(self, by_unit: FloatArray) -> FloatArray:
        rows = len(by_unit)
        return (
            by_unit.reshape(rows, self.count, self.size).transpose(2, 0, 1).reshape(-1, self.count)
        )


def sizes_of(
    plan: Plan, agreement: Agreement, units: int, alignment: float
) -> tuple[ProductFormat, Groups]:
    """Fixed point and bounds of a job's products, and how many units share a vector.

    Units stay within ±1, and so do Φ and both K; V of the label party within ½ + 2γ. A matrix comes
    within ±1 by powers of two, column by column.

    Args:
        plan: of the job.
        agreement: what the parties told each other.
        units: d.
        alignment: γ.

    Raises:
        RangeExceeded: products that the scheme has no room for.
    """
    settings = plan.job.exchange
    columns = max(agreement.own_columns, *agreement.columns.values()) // units
    one = ProductFormat(
        rows=plan.most_batch_rows + units,
        value_bound=max(1.0, 0.5 + 2 * alignment) * ROUNDING,
        matrix_bound=1.0,
        columns=columns,
        vectors=units,
        rounds=plan.job.job.rounds,
        bandwidth_mbit=plan.line.bandwidth_mbit,
        latency_ms=plan.line.latency_ms,
    )

    def of(size: int) -> ProductFormat:
        grouped = replace(one, rows=size * one.rows, columns=size * columns, vectors=units // size)
        given = (settings.value_fraction_bits, settings.feature_fraction_bits)
        fmt = with_fraction_bits(
            settings.scheme, grouped, value_bits=given[0], matrix_bits=given[1]
        )
        if given != (None, None):
            return fmt
        # Components and matrices are of one size here: rounding weighs least where bits are halved.
        half = fmt.product_fraction_bits // 2
        rest = fmt.product_fraction_bits - half
        return replace(fmt, value_fraction_bits=rest, matrix_fraction_bits=half)

    seconds = SCHEMES[settings.scheme].seconds
    best, least = 1, np.inf
    if seconds is not None:
        for size in (each for each in range(1, units + 1) if units % each == 0):
            try:
                taken = seconds(of(size)) * (units // size)
            except RangeExceeded:
                continue
            if taken < least:
                best, least = size, taken
    return of(best), Groups(units, best)


class EncryptedSide:
    """Either party's side.

    Args:
        party: who it is.
        own_key: its own.
        peer_key: the other's.
        groups: how units lie in vectors.
    """

    def __init__(self, party: Party, own_key: OwnKey, peer_key: PeerKey, groups: Groups) -> None:
        self._party, self._groups = party, groups
        self._own_key, self._peer_key = own_key, peer_key
        self.scores: FloatArray | None = None

    async def signal(self, step: Step, batch: Batch, objective: Objective) -> Signal | None:
        """Serve the other with components if it steps, and take the own gradient.

        Raises:
            PeerError: the peer broke the protocol or is gone.
            RangeExceeded: components beyond their bounds.
        """
        party, groups = self._party, self._groups
        (peer,) = party.others
        if peer in step.receivers:
            async with party.costs.compute("local"):
                own = objective.components()
                values, exponent = groups.values(own), own.largest - LEAST_EXPONENT
            vectors = await self._own_key.encrypted(values, "components")
            await party.channel.send(peer, EncryptedComponents(step.index, vectors, exponent))
        if party.name not in step.receivers:
            await self._own_key.decrypt_products(step, batch, [peer])
            return None
        async with party.costs.compute("local"):
            affine = objective.affine()
            bound = self._peer_key.product_format.matrix_bound
            scaled = [within_bound(each, bound) for each in groups.matrices(affine.matrices)]
        async with party.costs.compute("evaluate"):
            prepared = [self._peer_key.prepared(matrix) for matrix, _ in scaled]
        largest, vectors = await self._take_components(peer, step.index)
        masks = await self._peer_key.answer(step, vectors, prepared)
        if peer in step.receivers:
            await self._own_key.decrypt_products(step, batch, [peer])
        masked = await self._peer_key.take_decrypted(step, masks.shape)
        async with party.costs.compute("local"):
            exponents = np.stack([each for _, each in scaled], axis=1)
            products = np.ldexp(self._peer_key.unmasked(masked, masks), -exponents)
            gradient = affine.constant + groups.parted(products)
            signal = Signal(
                Linearized(gradient, objective.bend(largest)), objective.steepest(largest)
            )
        record(party.channel, Learned(party.name, step.index, gradient))
        return signal

    async def _take_components(self, peer: str, index: int) -> tuple[int, Blobs]:
        """The bound's exponent and the vectors."""
        _, message = await self._party.channel.receive([peer], EncryptedComponents, index)
        if len(message.vectors) != self._groups.count:
            raise UnexpectedMessage(
                f"{peer} sent {len(message.vectors)} vectors where {self._groups.count} are due"
            )
        # K of bounded units has eigenvalues up to d.
        largest, most = message.exponent + LEAST_EXPONENT, ceil(log2(self._groups.units)) + 1
        if largest > most:
            raise UnexpectedMessage(f"{peer} bounds eigenvalues by 2^{largest}, at most 2^{most}")
        return largest, message.vectors
