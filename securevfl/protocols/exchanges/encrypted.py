"""Homomorphic encryption of the residuals (`hide = "residuals"`).

Per round and feature party k; the label party K owns the keys:

1. k → K: H_k of the batch, in clear or as a masked sum.
2. K → k: Enc_K(d), the same ciphertexts to all.
3. k → K: Enc_K(X_kᵀd + r_k), r_k fresh, re-randomized.
4. K → k: X_kᵀd + r_k; k removes r_k.

One encrypted product serves a whole round, whatever the number of local steps Q.

Learns:
    label party: what its gathering tells, and X_kᵀd + r_k, which is uniform.
    feature party: only G_k = X_kᵀd/S; of a network J_kᵀd/S, which with as many parameters as rows
        tells every d (docs/decisions/0007-local-steps-of-networks.md).
Guarantees: against semi-honest parties. A malicious evaluator can have a crafted ciphertext
    decrypted; see SECURITY.md.
Messages a round of FedBCD-p: 4(K − 1).
"""

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey
from securevfl.protocols.session.gathering import Gathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import GradientSignal, PredictionsSignal, Signal
from securevfl.runtime.views import Learned, record


class EncryptedFeatureSide:
    """A feature party's side: evaluates under the label party's key."""

    def __init__(self, party: Party, gathering: Gathering, key: PeerKey) -> None:
        self._party = party
        self._gathering = gathering
        self._key = key

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Give predictions."""
        await self._gathering.give(step, predictions)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> GradientSignal | None:
        """Multiply encrypted residuals, take the gradient."""
        del others
        party = self._party
        if party.name not in step.receivers:
            return None
        exponents = None
        if batch.jacobian is not None:
            async with party.costs.compute("local"):
                batch, exponents = self._key.within_bound(batch)
        again = not step.fresh
        mask = await self._key.multiply(step, batch, predictions.shape[1], again=again)
        masked = await self._key.take_decrypted(step, mask.shape)
        async with party.costs.compute("local"):
            gradient = self._key.unmasked(masked, mask) / len(batch.inputs)
            if exponents is not None:
                gradient = np.ldexp(gradient, -exponents[:, None])
        record(party.channel, Learned(party.label_party, step.index, "gradients", gradient))
        return GradientSignal(gradient)


class EncryptedLabelSide:
    """The label party's side: owns the keys."""

    def __init__(self, party: Party, gathering: Gathering, key: OwnKey) -> None:
        self._party = party
        self._gathering = gathering
        self._key = key

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray:
        """Take predictions."""
        return await self._gathering.take_sum(step, predictions.shape)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Give encrypted residuals, decrypt masked products."""
        party = self._party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        receivers = [name for name in party.feature_parties if name in step.receivers]
        if receivers:
            if step.fresh:
                async with party.costs.compute("local"):
                    residuals = party.loss.residuals(others + predictions, batch.labels)
                await self._key.send_encrypted(step, residuals, receivers, "residuals")
            await self._key.decrypt_products(step, batch, receivers)
        if party.name not in step.receivers:
            return None
        return PredictionsSignal(others, batch.labels)
