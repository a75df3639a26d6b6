"""The `dp` exchange: clipped predictions with noise; residuals with or without are `plain`'s.

Learns:
    label party: clip(H_k) + noise per sample, of every feature party.
    feature party: d per sample, or d + noise. d without noise is every label and, through
        σ(ΣH), the sum of the others' noisy predictions with the label party's exact one.
Messages a round of FedBCD-p: 2(K − 1), as in clear.

What noise promises is counted by `privacy_account`. It hides single samples: whoever sees many
releases of one averages its noise away, which is what ε says.
Source: FDML (Hu et al., KDD 2019) for predictions; design privacy.md.
"""

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.session.gathering import ClearGathering, HeldOutPredictions, Predictions
from securevfl.protocols.session.party import Party, Step
from securevfl.runtime.costs import SCORING


class NoisyGathering(ClearGathering):
    """Every H_k clipped, with fresh noise at every release.

    A message that has to be sent again is the one that was sent: noise drawn twice would average.
    """

    def __init__(self, party: Party, mechanism: Mechanism, generator: np.random.Generator) -> None:
        super().__init__(party)
        self._mechanism = mechanism
        self._generator = generator
        self._last: Predictions | HeldOutPredictions | None = None

    @override
    async def give(self, step: Step, predictions: FloatArray) -> None:
        """Send H_k with noise if it is fresh."""
        if self._party.name in step.fresh:
            await self._send(Predictions, step.index, predictions, "encrypt")

    @override
    async def give_held_out(self, step: int, predictions: FloatArray) -> None:
        """Send the held-out predictions with noise: one more release of each."""
        await self._send(HeldOutPredictions, step, predictions, SCORING)

    async def _send(
        self,
        kind: type[Predictions] | type[HeldOutPredictions],
        step: int,
        predictions: FloatArray,
        phase: str,
    ) -> None:
        party, last = self._party, self._last
        if not (type(last) is kind and last.step == step):
            async with party.costs.compute(phase):
                last = kind(step, self._mechanism.release(predictions, self._generator))
            self._last = last
        await party.channel.send(party.label_party, last)
