"""`hide = "residuals"` in one round trip a round, for linear local models.

Whatever local steps a linear model takes, the next exchange is at b − A·G for a vector b and a
matrix A that the feature party knows (`LocalSteps.ahead`). Q gradient steps from θ lead to
θ − A·(G + λθ) with A = η Σ_{j<Q} (I − η·curved)^j and curved = (c/S)XᵀX + (λ + μ)I, exact steps to
the same with A = (γΓ + μI)⁻¹. So the party can compute its *next* predictions under encryption, on
the next batch X':

    H' = X'b + matrix·Enc(d), matrix = −X'·A·Xᵀ/S.

Per round and feature party k; the label party K owns the keys:

1. K → k: the masked X_kᵀd + r_k of the round before (`DecryptedProducts`), and Enc_K(d).
2. k → K: Enc_K(X_kᵀd + r_k) and Enc_K(H_k'), both re-randomized and flooded.

Only the first round's predictions travel in clear, and those after a way back (`session.course`),
which no residuals lead to; the last round has none to come.

Learns: as in `encrypted`: the label party H_k' per sample, as it would have been sent in clear,
    and besides it a power of two that scales the matrix; a feature party only G_k.
Messages a round of FedBCD-p: 3(K − 1), two of them on the way at once.
Source: docs/decisions/0009-one-round-trip.md.
"""

from dataclasses import dataclass
from functools import partial
from math import frexp

import numpy as np

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import OpenEvaluator
from securevfl.errors import MalformedMessage, TrainingDiverged
from securevfl.protocols.exchange import Batch, Lookahead
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.session.gathering import Gathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import GradientSignal, PredictionsSignal, Signal
from securevfl.runtime.views import Learned, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

SCALE_OFFSET = 64
NEXT_SUM = "sum of the next predictions"


@message_kind(7, stage="round", carries="ciphertexts", shows="gradients")
class EncryptedStep(StepMessage):
    """C products of [X | matrixᵀ]: the masked Xᵀv + r, and the sender's next predictions, open.

    The predictions, S' rows, are in fixed point times 2^(scale − SCALE_OFFSET).
    """

    products: Blobs
    scale: int


@dataclass(frozen=True)
class AffinePredictions:
    """H' = matrix·d + constant.

    Attributes:
        matrix: shape (S', S).
        constant: shape (S', C).
    """

    matrix: FloatArray
    constant: FloatArray

    def scale_bits(self, matrix_bound: float, product_bound: float) -> int:
        """The largest scale with |matrix|·2^scale and |constant|·2^scale within their bounds."""
        room = [
            frexp(bound / largest)[1] - 1
            for bound, values in ((matrix_bound, self.matrix), (product_bound, self.constant))
            if (largest := float(np.max(np.abs(values)))) > 0
        ]
        return max(-SCALE_OFFSET, min([*room, SCALE_OFFSET - 1]))


def next_predictions(steps: LocalSteps, now: Batch, then: Batch) -> AffinePredictions:
    """H' as a function of d.

    Raises:
        TrainingDiverged: a step size at which the steps leave float64.
    """
    moves, point = steps.ahead(now.inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = -(then.inputs @ moves @ now.inputs.T) / len(now.inputs)
        constant = then.inputs @ point
    if not (np.isfinite(matrix).all() and np.isfinite(constant).all()):
        raise TrainingDiverged("training diverged: use a smaller learning rate")
    return AffinePredictions(matrix, constant)


class OneTripFeatureSide:
    """A feature party's side: evaluates under the label party's key, one round ahead."""

    def __init__(
        self, party: Party, gathering: Gathering, key: PeerKey, lookahead: Lookahead
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._key = key
        self._lookahead = lookahead
        self.in_flight: dict[str, FloatArray] = {}
        assert isinstance(key.evaluator, OpenEvaluator)  # noqa: S101
        self._evaluator = key.evaluator

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Give predictions, unless they are there from the round before."""
        if self.in_flight.pop(NEXT_SUM, None) is None:
            await self._gathering.give(step, predictions)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Multiply encrypted residuals, for the gradient and for the next predictions."""
        del others
        party, key = self._party, self._key
        upcoming = self._lookahead.next_batch(step.index)
        if upcoming is None:
            mask = await key.multiply(step, batch, predictions.shape[1])
        else:
            mask = await self._multiply_ahead(step, batch, upcoming, predictions.shape[1])
            self.in_flight[NEXT_SUM] = np.zeros(0)
        masked = await key.take_decrypted(step, mask.shape)
        async with party.costs.compute("local"):
            gradient = key.unmasked(masked, mask) / len(batch.inputs)
        record(party.channel, Learned(party.label_party, step.index, "gradients", gradient))
        return GradientSignal(gradient)

    async def _multiply_ahead(
        self, step: Step, batch: Batch, upcoming: Batch, outputs: int
    ) -> RingArray:
        party, key, fmt = self._party, self._key, self._key.product_format
        evaluator = self._evaluator
        async with party.costs.compute("local"):
            ahead = next_predictions(self._lookahead.steps, batch, upcoming)
        async with party.costs.compute("evaluate"):
            bound = fmt.largest_product / fmt.summands * 2.0**-fmt.product_fraction_bits
            scale = ahead.scale_bits(fmt.matrix_bound, bound)
            scaled = np.hstack([batch.tangent, np.ldexp(ahead.matrix.T, scale)])
            encoded = encode(scaled, fmt.matrix_fraction_bits, fmt.matrix_bound, "features")
            prepared = evaluator.prepare(encoded)
            addends = encode(
                np.ldexp(ahead.constant, scale), fmt.product_fraction_bits, bound, "predictions"
            )
        replies = []
        for vector, addend in zip(await key.take_encrypted(step, outputs), addends.T, strict=True):
            multiply = partial(evaluator.partly_open_product, addend=addend)
            replies.append(await key.product(vector, prepared, multiply))
        products = tuple(reply.ciphertext for reply in replies)
        message = EncryptedStep(step.index, products, scale + SCALE_OFFSET)
        await party.channel.send(key.owner_name, message)
        return np.stack([reply.mask for reply in replies], axis=1)


class OneTripLabelSide:
    """The label party's side: owns the keys."""

    def __init__(
        self, party: Party, gathering: Gathering, key: OwnKey, lookahead: Lookahead
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._key = key
        self._lookahead = lookahead
        self._modulus_bits = key.owner.modulus_bits
        self.in_flight: dict[str, FloatArray] = {}

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray:
        """Take predictions, unless they are there from the round before."""
        others = self.in_flight.pop(NEXT_SUM, None)
        if others is None:
            others = await self._gathering.take_sum(step, predictions.shape)
        return others

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Give encrypted residuals, decrypt masked products and the next predictions."""
        party, key = self._party, self._key
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        async with party.costs.compute("local"):
            residuals = party.loss.residuals(others + predictions, batch.labels)
        await key.send_encrypted(step, residuals, party.feature_parties, "residuals")
        upcoming = self._lookahead.next_batch(step.index)
        if upcoming is None:
            await key.decrypt_products(step, batch, party.feature_parties)
        else:
            self.in_flight[NEXT_SUM] = await self._decrypt_steps(step, batch, len(upcoming.rows))
        return PredictionsSignal(others, batch.labels)

    async def _decrypt_steps(self, step: Step, batch: Batch, next_rows: int) -> FloatArray:
        """Return masked products; Σ of the next predictions, in the parties' order."""
        party, key = self._party, self._key
        pending = list(party.feature_parties)
        found: dict[str, FloatArray] = {}
        while pending:
            sender, message = await party.channel.receive(pending, EncryptedStep, step.index)
            pending.remove(sender)
            if message.scale >= 2 * SCALE_OFFSET:
                raise MalformedMessage(f"{sender} scales by 2^{message.scale - SCALE_OFFSET}")
            columns = key.columns[sender]
            values = await key.decrypted(sender, message.products, columns + next_rows)
            await key.return_products(step, batch, sender, values[:columns])
            found[sender] = self._opened(values[columns:], message.scale - SCALE_OFFSET)
            record(party.channel, Learned(sender, step.index, "predictions", found[sender]))
        total = np.zeros((next_rows, party.loss.outputs))
        for name in party.feature_parties:
            total = total + found[name]
        return total

    def _opened(self, values: RingArray, scale: int) -> FloatArray:
        integers = unmask(values, np.zeros_like(values), self._modulus_bits)
        return np.ldexp(decode(integers, self._key.product_format.product_fraction_bits), -scale)
