"""The `dp` exchange: predictions are clipped and noisy; residuals travel in clear or with noise.

d without noise reveals every label and, through σ(ΣH), the label party's exact prediction plus the
others' noisy ones. `privacy_account` computes the guarantee. Noise hides single samples: an
adversary that sees many releases of one sample averages its noise away, which ε accounts for.

Learns:
    label party: every feature party's clipped H_k + noise; with a head u_k + noise.
    feature party: d, or d + noise with `label_noise_multiplier`; with a head also its θ_k.
Source: FDML (Hu et al., KDD 2019) for predictions; docs/decisions/0011-what-a-promise-covers.md.
"""

from dataclasses import replace
from functools import partial

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.head import Head, HeadedModel
from securevfl.privacy.mechanisms import Mechanism
from securevfl.privacy.streams import NoiseKey, Purpose
from securevfl.protocols.exchange import Learns, Session, Shown
from securevfl.protocols.exchanges.plain import CLEAR_RESIDUALS, HEAD_LEARNS, InClear, Perturb
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import (
    ClearGathering,
    Gathering,
    HeldOutPredictions,
    Party,
    Predictions,
)
from securevfl.protocols.session.privacy_account import Noise, one_release
from securevfl.runtime.costs import SCORING


class NoisyGathering(ClearGathering):
    """Clips every H_k and adds fresh noise at each release.

    A repeated message is resent unchanged: two draws of noise would average out.
    """

    def __init__(
        self,
        party: Party,
        mechanism: Mechanism,
        key: NoiseKey,
        head: HeadedModel | Head | None = None,
    ) -> None:
        super().__init__(party, head)
        self._mechanism, self._key = mechanism, key
        self._last: Predictions | HeldOutPredictions | None = None

    @override
    async def _send(
        self, kind: type[Predictions | HeldOutPredictions], step: int, predictions: FloatArray
    ) -> None:
        party, last = self._party, self._last
        if not (type(last) is kind and last.step == step):
            purpose: Purpose = "predictions" if kind is Predictions else "held-out predictions"
            async with party.costs.compute("encrypt" if kind is Predictions else SCORING):
                last = kind(step, self._mechanism.release(predictions, self._key.stream(purpose)))
            self._last = last
        await party.channel.send(party.label_party, last)


class NoisyRelease:
    """Noise on a party's numbers; see `exchange.Outgoing`."""

    def __init__(self, noise: Noise, purpose: Purpose = "predictions") -> None:
        self._noise, self._purpose = noise, purpose

    def units(self, units: FloatArray) -> FloatArray:
        """Clipped, with fresh noise."""
        return self._noise.predictions.release(units, self._noise.key.stream(self._purpose))

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """With fresh noise. Units are within ±1, so one row changes Φ by at most 2/N_A.

        Φ is not on the noise's grid of 2^-20 of this bound, so rounding adds at most one step.
        """
        of_rows, clip = self._noise.predictions, (1 + 2.0**-20) / rows
        mechanism = Mechanism(of_rows.name, of_rows.noise_multiplier, clip, of_rows.outputs)
        return mechanism.perturb(phi, self._noise.key.stream("mean units"))


class NoisyExchange(InClear):
    """Clipped predictions with noise; everything else as in `plain`."""

    name = "dp"
    adds_noise = True
    repeats = False
    takes_head = True
    variants = ({}, {"privacy": {"label_noise_multiplier": 1.0}})

    @override
    def check(self, plan: Plan) -> None:
        if self.sums(plan.job.exchange):
            raise ConfigError("exchange 'dp' adds noise at each party: predictions = 'clear'")
        super().check(plan)

    @override
    def learns(self, job: Job) -> Learns:
        noisy = job.privacy.label_noise_multiplier > 0
        if job.job.head != "sum":
            return replace(
                HEAD_LEARNS,
                label_party="clipped u_k + noise, w numbers a row",
                label_party_not="u_k, up to what ε says",
                feature_party="d + noise, and θ_k" if noisy else HEAD_LEARNS.feature_party,
                feature_party_not="labels, up to what ε says" if noisy else "others' features",
                residuals="noisy" if noisy else "clear",
            )
        return Learns(
            label_party="clipped H_k + noise",
            label_party_not="H_k, up to what ε says",
            feature_party="d + noise" if noisy else CLEAR_RESIDUALS,
            feature_party_not="labels, up to what ε says" if noisy else "others' features",
            predictions="singly",
            residuals="noisy" if noisy else "clear",
            gradients=False,
        )

    @override
    def new_rows(
        self,
        job: Job,
        party: Party,
        masks: PairwiseMasks,
        *,
        shown: Shown,
        given: int,
        head: Head | None,
    ) -> Gathering:
        """One clipped and noisy release of each new row."""
        del masks, shown
        seed, index = job.privacy.noise_seed, party.names.index(party.name)
        key = NoiseKey.generate() if seed is None else NoiseKey.of_experiment(seed, index)
        return NoisyGathering(party, one_release(job.privacy, given), key, head)

    @override
    def protected(self, session: Session) -> tuple[Gathering, Perturb | None]:
        noise, perturb = session.noise, None
        assert noise is not None  # noqa: S101
        if noise.residuals is not None:
            perturb = partial(noise.residuals.perturb, stream=noise.key.stream("residuals"))
        return NoisyGathering(session.party, noise.predictions, noise.key, session.head), perturb

    def release(self, noise: Noise | None, purpose: Purpose = "predictions") -> NoisyRelease:
        """Clipped, with noise."""
        assert noise is not None  # noqa: S101
        return NoisyRelease(noise, purpose)


DESCRIPTIONS = (NoisyExchange(),)
