"""Exchanges under homomorphic encryption: each party's side in each of the modes.

`hide = "residuals"` with two round trips, per round and feature party k. The label party K owns the
key:

1. k → K: H_k of the batch, in clear or as a masked sum.
2. K → k: Enc_K(d), the same ciphertexts to all.
3. k → K: Enc_K(X_kᵀd + r_k), r_k fresh, re-randomized.
4. K → k: X_kᵀd + r_k; k removes r_k.

One encrypted product serves a whole round, whatever the number of local steps Q.
Learns:
    label party: the predictions or sums that it gathers, and X_kᵀd + r_k, which is uniform.
    feature party: only G_k = X_kᵀd/S; with a network J_kᵀd/S, which reveals every d if there are as
        many parameters as rows (docs/decisions/0007-local-steps-of-networks.md).
Guarantees: against semi-honest parties. A malicious evaluator can have a crafted ciphertext
    decrypted; see SECURITY.md.
Messages per round of FedBCD-p: 4(K − 1).
Source: Liu et al. 2019, Algorithm 1 with encryption.

`he_per_step` reproduces, for benchmarks, the cost of federated transfer learning in FATE, to which
the encrypted table of Liu et al. 2019 refers. There a party receives encrypted components once per
round. In every local step it multiplies them with fresh values of its own, masks the product and
has it decrypted. So here steps 3 and 4 are repeated for each local step q of feature party k at
θ_q, on the same ciphertexts: J_qᵀd⁰ + r_q with fresh r_q and the Jacobian J_q at θ_q, or X for a
linear model. Party k removes r_q and adds c·J_qᵀ(H_k(θ_q) − H_k⁰), the rule of `ResidualSignal`.
The label party's own steps are in clear. For a linear model nothing is gained, as X is the same in
every step. A network steps by its own curvature rule in place of a linearization.
Learns: the party of a linear model nothing more; that of a network J_qᵀd⁰ at every θ_q. The label
    guard counts every product.
Messages per round of FedBCD-p: 2(Q + 1)(K − 1).

`round_trips = 1`, for linear local models. The next exchange takes place at b − A·G, with a vector
b and a matrix A that the feature party knows whatever local steps it takes
(`LocalSteps.next_point`). Q gradient steps from θ lead to θ − A·(G + λθ) with
A = η Σ_{j<Q} (I − η·curved)^j and curved = (c/S)XᵀX + (λ + μ)I; exact steps have
A = (γΓ + μI)⁻¹. So the party can compute its *next* predictions under encryption, on the next
batch X':

    H' = X'b + matrix·Enc(d), matrix = −X'·A·Xᵀ/S.

1. K → k: the masked X_kᵀd + r_k of the round before (`DecryptedProducts`), and Enc_K(d).
2. k → K: Enc_K(X_kᵀd + r_k) and Enc_K(H_k' + r'_k), both re-randomized, and r'_k.

Predictions travel in clear in the first round and after backtracking (`session.early_stopping`),
where no residuals precede them.
Learns: the label party H_k' per sample, as if sent in clear, and a power of two that scales the
    matrix; a feature party only G_k.
Messages per round of FedBCD-p: 3(K − 1), two of them at the same time.
Source: docs/decisions/0009-one-round-trip.md.

`hide = "both"`, for losses with affine residuals: d = c·ΣH + label part, so Xᵀd is a sum of one
product per party. Every party j owns a key. Per round:

1. j → k: Enc_j(v_j), v_j = c·H_j (+ label part at the label party), clipped to a public bound.
2. k → j: Enc_j(X_kᵀv_j + r_kj).
3. j → k: the decrypted masked value, plus, with three parties or more, a share s_jk with
   Σ_j s_jk = 0, agreed among the senders without k, so that k learns only the sum.
4. k adds its own X_kᵀv_k and removes its masks.

Learns:
    every party: only its own gradient G_k = X_kᵀd/S, and so at K = 2 also the other party's
        X_kᵀv_j. As key owner it decrypts X_kᵀv_j + r_kj, which is uniform.
    label party, when it scores: between two parties four sums over classes (`class_sums`); with
        `scores = "rows"` Σ_{k<K} H_k of every held-out row, which `feature_guard` counts.
Guarantees: against semi-honest parties. Clipping changes the gradient; clipped values are counted.
Messages per round of FedBCD-p: 3(K² − K), 2(K² − K) of them with ciphertexts.
Source: docs/decisions/0006-masked-products-modulo-2-64.md.
"""

from dataclasses import dataclass
from math import frexp

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, shifted, unmask
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import MalformedMessage, TrainingDiverged
from securevfl.models.losses import QuadraticLoss
from securevfl.protocols.exchange import Batch, GatheringSide, Lookahead
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey, Share
from securevfl.protocols.local_steps import GradientSignal, LocalSteps, PredictionsSignal, Signal
from securevfl.protocols.session.gathering import Gathering, Party, Step
from securevfl.runtime.views import Learned, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

SCALE_OFFSET = 64
NEXT_SUM = "sum of the next predictions"


@message_kind(7, stage="round", carries="ciphertexts", shows="gradients")
class EncryptedStep(StepMessage):
    """C products of [X | matrixᵀ]: the masked Xᵀv + r, and the sender's next predictions, open.

    The predictions, S' rows, are in fixed point times 2^(scale − SCALE_OFFSET): what the products
    decrypt to, minus `masks` of shape (S', C), modulo 2^64.
    """

    products: Blobs
    masks: RingArray
    scale: int


class EncryptedFeatureSide(GatheringSide):
    """A feature party evaluates products under the label party's key."""

    def __init__(self, party: Party, gathering: Gathering, key: PeerKey) -> None:
        super().__init__(party, gathering)
        self.key = key

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> GradientSignal | None:
        """The gradient, from a product with encrypted residuals."""
        del others
        party, key = self.party, self.key
        if party.name not in step.receivers:
            return None
        exponents = None
        if batch.jacobian is not None:
            async with party.costs.compute("local"):
                batch, exponents = key.within_bound(batch)
        mask = await self.multiply(step, batch, predictions.shape[1])
        masked = await key.take_decrypted(step, mask.shape)
        async with party.costs.compute("local"):
            gradient = key.unmasked(masked, mask) / len(batch.inputs)
            if exponents is not None:
                gradient = np.ldexp(gradient, -exponents[:, None])
        record(party.channel, Learned(party.label_party, step.index, "gradients", gradient))
        return GradientSignal(gradient)

    async def multiply(self, step: Step, batch: Batch, outputs: int) -> RingArray:
        """Send masked products with encrypted residuals; returns the masks, shape (P, C)."""
        return await self.key.multiply(step, batch, outputs, again=not step.fresh)


class EncryptedLabelSide(GatheringSide):
    """The label party, which owns the key."""

    def __init__(self, party: Party, gathering: Gathering, key: OwnKey) -> None:
        super().__init__(party, gathering)
        self.key = key

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Send encrypted residuals and decrypt masked products; its own signal is in clear."""
        party = self.party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        receivers = [name for name in party.feature_parties if name in step.receivers]
        if receivers:
            if step.fresh:
                async with party.costs.compute("local"):
                    residuals = party.loss.residuals(others + predictions, batch.labels)
                await self.key.send_encrypted(step, residuals, receivers, "residuals")
            await self.decrypt(step, batch, receivers)
        if party.name not in step.receivers:
            return None
        return PredictionsSignal(others, batch.labels)

    async def decrypt(self, step: Step, batch: Batch, receivers: list[str]) -> None:
        """Decrypt masked products and return them."""
        await self.key.decrypt_products(step, batch, receivers)


class PerStepFeatureSide(EncryptedFeatureSide):
    """A feature party evaluates a product in every local step.

    Args:
        curvature: c of the local rule, 0 where residuals stay frozen.
    """

    def __init__(self, party: Party, gathering: Gathering, key: PeerKey, curvature: float) -> None:
        super().__init__(party, gathering, key)
        self._curvature = curvature
        self._exchanged: FloatArray | None = None

    @override
    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> GradientSignal | None:
        if step.fresh:
            self._exchanged = predictions
        signal = await super().signal(step, batch, predictions, others)
        if signal is None or step.fresh:
            return signal
        assert self._exchanged is not None  # noqa: S101
        async with self.party.costs.compute("local"):
            moved = self._curvature * (predictions - self._exchanged)
            own = batch.tangent.T @ moved / len(batch.inputs)
        return GradientSignal(signal.value + own)


@dataclass(frozen=True)
class AffinePredictions:
    """H' = matrix·d + constant, of shapes (S', S) and (S', C)."""

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
    """H' as a function of d; TrainingDiverged where the steps leave float64."""
    moves, point = steps.next_point(now.inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = -(then.inputs @ moves @ now.inputs.T) / len(now.inputs)
        constant = then.inputs @ point
    if not (np.isfinite(matrix).all() and np.isfinite(constant).all()):
        raise TrainingDiverged("training diverged: use a smaller learning rate")
    return AffinePredictions(matrix, constant)


class OneTripFeatureSide(EncryptedFeatureSide):
    """A feature party's side in one round trip: evaluates one round affine."""

    def __init__(
        self, party: Party, gathering: Gathering, key: PeerKey, lookahead: Lookahead
    ) -> None:
        super().__init__(party, gathering, key)
        self._lookahead = lookahead
        self.in_flight: dict[str, FloatArray] = {}

    @override
    async def gather(self, step: Step, predictions: FloatArray) -> None:
        if self.in_flight.pop(NEXT_SUM, None) is None:
            await super().gather(step, predictions)

    @override
    async def multiply(self, step: Step, batch: Batch, outputs: int) -> RingArray:
        upcoming = self._lookahead.next_batch(step.index)
        if upcoming is None:
            return await super().multiply(step, batch, outputs)
        party, key, fmt = self.party, self.key, self.key.product_format
        async with party.costs.compute("local"):
            affine = next_predictions(self._lookahead.steps, batch, upcoming)
        async with party.costs.compute("evaluate"):
            bound = fmt.largest_product / fmt.summands * 2.0**-fmt.product_fraction_bits
            scale = affine.scale_bits(fmt.matrix_bound, bound)
            prepared = key.prepared(np.hstack([batch.tangent, np.ldexp(affine.matrix.T, scale)]))
            addends = encode(
                np.ldexp(affine.constant, scale), fmt.product_fraction_bits, bound, "predictions"
            )
        vectors = await key.take_encrypted(step, outputs)
        products, masks = await key.products(vectors, [prepared] * outputs)
        closed = batch.tangent.shape[1]
        opened = masks[closed:] - shifted(addends, key.evaluator.modulus_bits)
        message = EncryptedStep(step.index, products, opened, scale + SCALE_OFFSET)
        await party.channel.send(key.owner_name, message)
        self.in_flight[NEXT_SUM] = np.zeros(0)
        return masks[:closed]


class OneTripLabelSide(EncryptedLabelSide):
    """The label party in one round trip decrypts the next predictions."""

    def __init__(
        self, party: Party, gathering: Gathering, key: OwnKey, lookahead: Lookahead
    ) -> None:
        super().__init__(party, gathering, key)
        self._lookahead = lookahead
        self.in_flight: dict[str, FloatArray] = {}

    @override
    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray | None:
        others = self.in_flight.pop(NEXT_SUM, None)
        return await super().gather(step, predictions) if others is None else others

    @override
    async def decrypt(self, step: Step, batch: Batch, receivers: list[str]) -> None:
        """Return masked products, and add up the next predictions in the parties' order."""
        upcoming = self._lookahead.next_batch(step.index)
        if upcoming is None:
            await super().decrypt(step, batch, receivers)
            return
        party, key = self.party, self.key
        pending, found = list(receivers), dict[str, FloatArray]()
        while pending:
            sender, message = await party.channel.receive(pending, EncryptedStep, step.index)
            pending.remove(sender)
            if message.scale >= 2 * SCALE_OFFSET:
                raise MalformedMessage(f"{sender} scales by 2^{message.scale - SCALE_OFFSET}")
            columns = key.columns[sender]
            values = await key.decrypted(sender, message.products, columns + len(upcoming.rows))
            await key.return_products(step, batch, sender, values[:columns])
            if message.masks.shape != values[columns:].shape:
                raise MalformedMessage(f"{sender} sent masks of shape {message.masks.shape}")
            found[sender] = self._opened(
                values[columns:], message.masks, message.scale - SCALE_OFFSET
            )
            record(party.channel, Learned(sender, step.index, "predictions", found[sender]))
        total = np.zeros((len(upcoming.rows), party.loss.outputs))
        for name in party.feature_parties:
            total = total + found[name]
        self.in_flight[NEXT_SUM] = total

    def _opened(self, values: RingArray, masks: RingArray, scale: int) -> FloatArray:
        integers = unmask(values, masks, self.key.owner.modulus_bits)
        return np.ldexp(decode(integers, self.key.product_format.product_fraction_bits), -scale)


class EncryptedBothSide:
    """Any party with `hide = "both"`.

    Args:
        loss: the loss with affine residuals.
        own_key: this party's key; values beyond its bound are clipped and counted.
        peer_keys: the others' keys, by name.
        masks: for zero shares; not used with two parties.
    """

    def __init__(
        self,
        party: Party,
        loss: QuadraticLoss,
        own_key: OwnKey,
        peer_keys: dict[str, PeerKey],
        masks: PairwiseMasks,
    ) -> None:
        self._party, self._loss, self._masks = party, loss, masks
        self._bound = own_key.product_format.value_bound
        self._own_key, self._peer_keys = own_key, peer_keys

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Nothing to do: predictions travel encrypted in `signal`, and no party sees their sum."""

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Send encrypted values to the receivers; this party's own gradient if it is one."""
        del others
        party = self._party
        async with party.costs.compute("local"):
            values = self._loss.curvature * predictions
            if batch.labels is not None:
                values = values + self._loss.label_part(batch.labels)
            clipped = np.clip(values, -self._bound, self._bound)
            party.costs.count("clipped_values", int(np.count_nonzero(clipped != values)))
        receivers = [name for name in party.others if name in step.receivers]
        takes_part = party.name in step.receivers
        if receivers:
            await self._own_key.send_encrypted(step, clipped, receivers, "values")
        masks: dict[str, RingArray] = {}
        if takes_part:
            for name, key in self._peer_keys.items():
                masks[name] = await key.multiply(step, batch, predictions.shape[1])
        if receivers:
            await self._own_key.decrypt_products(step, batch, receivers, self._share(step))
        if not takes_part:
            return None
        shares = {
            name: await key.take_decrypted(step, masks[name].shape)
            for name, key in self._peer_keys.items()
        }
        any_key = next(iter(self._peer_keys.values()))
        async with party.costs.compute("local"):
            received = any_key.unmasked(_ring_sum(shares), _ring_sum(masks))
            gradient = (received + batch.inputs.T @ values) / len(batch.inputs)
        record(party.channel, Learned(party.name, step.index, "gradients", gradient))
        return GradientSignal(gradient)

    def _share(self, step: Step) -> Share | None:
        """Zero shares for a receiver, from masks that all other parties share."""
        if len(self._party.names) == 2:  # noqa: PLR2004
            return None

        def share(receiver: str, shape: tuple[int, ...]) -> RingArray:
            senders = [name for name in self._party.names if name != receiver]
            context = f"share {step.index} {receiver}"
            return self._masks.zero_share(senders, context, shape)

        return share


def _ring_sum(values: dict[str, RingArray]) -> RingArray:
    total: RingArray = np.add.reduce(list(values.values()), axis=0, dtype=np.uint64)
    return total
