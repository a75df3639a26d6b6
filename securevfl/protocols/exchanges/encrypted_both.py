"""Homomorphic encryption of both sides (`hide = "both"`), for losses with affine residuals.

d = c·ΣH + label part, so every party's share of Xᵀd comes from a product under another's key.
Every party j owns a key. Per round:

1. j → k: Enc_j(v_j), v_j = c·H_j (+ label part at the label party), clipped to a public bound.
2. k → j: Enc_j(X_kᵀv_j + r_kj).
3. j → k: the decrypted masked value, plus, with three parties or more, a share s_jk with
   Σ_j s_jk = 0, agreed among the senders without k, so that k learns only the sum.
4. k adds its own X_kᵀv_k and removes its masks.

Learns:
    every party: only its own gradient G_k = X_kᵀd/S; at K = 2 therefore also X_kᵀv_j of the one
        other party. As key owner it decrypts X_kᵀv_j + r_kj, which is uniform.
    label party, when it scores: between two parties four sums over classes (`class_sums`). Among
        more Σ_{k<K} H_k of every held-out row: cross terms of two feature parties under a third
        one's key are more than one product. These scorings are counted (`held_out_guard`).
Guarantees: as in `encrypted`. Clipping changes the gradient; clipped values are counted.
Messages a round of FedBCD-p: 3(K² − K), 2(K² − K) of them with ciphertexts.
"""

import numpy as np

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.masks import PairwiseMasks
from securevfl.models.losses import QuadraticLoss
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey, Share
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import GradientSignal, Signal
from securevfl.runtime.views import Learned, record


class EncryptedBothSide:
    """Any party's side.

    Args:
        party: who it is.
        loss: the loss with affine residuals.
        value_bound: public bound on |v|; what is beyond is clipped and counted.
        own_key: this party's key.
        peer_keys: the others' keys, by name.
        masks: for zero shares; not used with two parties.
    """

    def __init__(
        self,
        party: Party,
        loss: QuadraticLoss,
        value_bound: float,
        *,
        own_key: OwnKey,
        peer_keys: dict[str, PeerKey],
        masks: PairwiseMasks,
    ) -> None:
        self._party = party
        self._loss = loss
        self._bound = value_bound
        self._own_key = own_key
        self._peer_keys = peer_keys
        self._masks = masks

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Nothing: predictions travel under encryption, and nobody sees their sum."""

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Serve the receivers with this party's values, and take the own gradient."""
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
        """Shares of zero towards one receiver, which all others agree on without it."""
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
