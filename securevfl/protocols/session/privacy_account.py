"""The privacy guarantee of a job's noise, and the number of equations that its gradients reveal.

*Guarantee*: ε before a job starts, after any number of rounds, and in its result. The plan alone
determines how often each sample is released, so the account reads no message.

*Equations*: a gradient of a batch gives a peer P·C linear equations in the N·C residuals. The
*leakage ratio* divides the number of distinct equations, of all peers together since they may
collude, by the number of unknowns. A network's Jacobian changes with θ, so every visit of a batch
adds equations; where local steps repeat products (`he_per_step`), so does every product. The label
guard has limits of its own, see `person_record`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf, isfinite, isinf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError
from securevfl.job import PrivacySettings
from securevfl.privacy.accounting import (
    LocalNoise,
    PrivacySpent,
    calibrated_multiplier,
    require_budget,
    require_release_budget,
    spent,
)
from securevfl.privacy.mechanisms import GradientNoise, Mechanism
from securevfl.privacy.streams import NoiseKey

FRESH = "fresh noise: ChaCha20, keyed by the operating system's generator"
NO_PROMISE = "noise from a fixed seed: an experiment, which promises nothing"
NOT_COVERED = "selection of features, tuning, and earlier jobs on the same rows"
EXACT_STEPS = "infinite: no noise on the party's own gradient steps"
NO_NOISE = "infinite: no noise on predictions"


@dataclass(frozen=True)
class Visits:
    """How often one visit of a batch uses a sample.

    Attributes:
        releases: of its prediction, at the party that releases most.
        residuals: releases of its residual.
        steps: gradient steps of a party that follow.
        every_round: releases per round of a mean over all samples, whatever the batch.
        outputs: numbers in a release, where it is not a sample's predictions.
    """

    releases: int
    residuals: int
    steps: int
    every_round: int = 0
    outputs: int | None = None


@dataclass(frozen=True)
class Noise:
    """One party's noise, each kind from its own stream of the key; None adds none.

    Attributes:
        predictions: on H_k, at feature parties.
        residuals: on d, at the label party.
        gradients: on gradient steps, at feature parties.
    """

    predictions: Mechanism
    residuals: Mechanism | None
    gradients: GradientNoise | None
    key: NoiseKey


@dataclass(frozen=True)
class Promise:
    """The guarantee for one sample, at the party that released it most often; None is infinite.

    Attributes:
        mechanism: gaussian or laplace.
        noise_multiplier: z.
        clip: β.
        delta: δ.
        releases: ν, of a training sample's prediction.
        epsilon_release: ε of these releases for a given model.
        epsilon_end_to_end: ε of the adversary's whole view.
        epsilon_end_to_end_text: the same in words.
        gradient_clip: β_g, and None without noise on gradients.
        gradient_noise_multiplier: z_g.
        held_out_releases: of a held-out sample's prediction, by scoring.
        epsilon_held_out: ε of these releases.
        label_noise_multiplier: z of residuals.
        label_releases: of a training sample's residual.
        epsilon_label: ε of its label.
    """

    mechanism: str
    noise_multiplier: float
    clip: float
    delta: float
    releases: int
    epsilon_release: float | None
    epsilon_end_to_end: float | None
    epsilon_end_to_end_text: str
    gradient_clip: float | None
    gradient_noise_multiplier: float | None
    held_out_releases: int
    epsilon_held_out: float | None
    label_noise_multiplier: float
    label_releases: int
    epsilon_label: float | None
    noise: str
    not_covered: str = NOT_COVERED

    def row(self) -> dict[str, Any]:
        """The fields of a result row."""
        return asdict(self)


@dataclass(frozen=True)
class PrivacyAccount:
    """The account of a job under the `dp` exchange.

    Attributes:
        batch: the rows of a round, counted from 0.
        total_rows: N.
        scorings: maps rounds done to how often held-out rows were scored.
        outputs: C, residuals per sample.
        given: numbers per sample in a release: its C predictions, or its w units.
        labels_are_known: whether all parties hold the labels, so that they need no protection.
        label_change: the most that one label moves one output's d at fixed H.
        fitted: by party that adds noise, what it fits to its own rows before it trains, so that no
            ε covers the whole view; empty if nothing.
    """

    settings: PrivacySettings
    visits: Visits
    rounds: int
    batch: Callable[[int], NDArray[np.int64]]
    total_rows: int
    scorings: Callable[[int], int]
    outputs: int = 1
    given: int = 1
    labels_are_known: bool = False
    label_change: float = 1.0
    fitted: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def mechanism(self) -> Mechanism:
        """The noise on predictions, calibrated to the budget if no multiplier is given.

        Raises:
            ConfigError: neither a multiplier nor a budget, or a budget that no multiplier meets.
        """
        settings = self.settings
        multiplier = settings.noise_multiplier
        if multiplier is None:
            multiplier = self._calibrated()
        return Mechanism(settings.mechanism, multiplier, settings.clip, self.given)

    @cached_property
    def gradients(self) -> GradientNoise | None:
        """The noise on feature parties' gradients; a ConfigError if settings are incomplete."""
        settings = self.settings
        if settings.gradient_clip is None:
            if settings.gradient_noise_multiplier is not None:
                raise ConfigError("gradient_noise_multiplier needs gradient_clip, its unit")
            return None
        multiplier = settings.gradient_noise_multiplier
        if multiplier is None:
            if settings.budget is None:
                raise ConfigError("gradient_clip needs gradient_noise_multiplier, or a budget")
            multiplier = self._half(self.visits.steps)
        return GradientNoise(multiplier, settings.gradient_clip)

    @property
    def label_noise(self) -> Mechanism | None:
        """The noise on residuals, in units of the most that one label moves d."""
        multiplier = self.settings.label_noise_multiplier
        if multiplier == 0:
            return None
        if isinf(self.label_change):
            raise ConfigError(
                "label_noise_multiplier: a label moves this loss's residuals without bound, so "
                "that no noise hides it; use loss = 'logistic', 'squared' or 'hinge'"
            )
        name = self.settings.mechanism
        # Another class moves two outputs: √2 in Euclidean length, 2 in the sum of absolute values.
        length = 1.0 if self.outputs == 1 else sqrt(2) if name == "gaussian" else 2.0
        return Mechanism(name, multiplier, clip=self.label_change * length / 2)

    def noise_at(self, party: int) -> Noise:
        """The noise of the party with this number: secret, or from an experiment's seed."""
        seed = self.settings.noise_seed
        key = NoiseKey.generate() if seed is None else NoiseKey.of_experiment(seed, party)
        return Noise(self.mechanism, self.label_noise, self.gradients, key)

    def after(self, rounds: int) -> Promise:
        """The guarantee after this many rounds."""
        settings, gradients, fitted = self.settings, self.gradients, self._fitted
        own = self._training(rounds)
        scored = self.scorings(rounds)
        shown = 0 if self.labels_are_known else self._most_visits(rounds) * self.visits.residuals
        text = f"{own.end_to_end:.4g}" if isfinite(own.end_to_end) else EXACT_STEPS
        if gradients and fitted:
            others = ", ".join(repr(name) for name, what in self.fitted.items() if not what)
            text = f"infinite: {fitted}" + (f" ({text} at {others})" if others else "")
        return Promise(
            mechanism=settings.mechanism,
            noise_multiplier=self.mechanism.noise_multiplier,
            clip=settings.clip,
            delta=settings.delta,
            releases=own.releases,
            epsilon_release=_finite(own.release),
            epsilon_end_to_end=None if fitted else _finite(own.end_to_end),
            epsilon_end_to_end_text=text if isfinite(own.release) else NO_NOISE,
            gradient_clip=gradients.clip if gradients else None,
            gradient_noise_multiplier=gradients.noise_multiplier if gradients else None,
            held_out_releases=scored,
            epsilon_held_out=_finite(spent(self.mechanism, scored, settings.delta).release),
            label_noise_multiplier=settings.label_noise_multiplier,
            label_releases=shown,
            epsilon_label=_finite(
                spent(self.label_noise, shown, settings.delta).release
                if self.label_noise is not None
                else inf
            ),
            noise=FRESH if settings.noise_seed is None else NO_PROMISE,
        )

    def require_budget(self) -> None:
        """Check the whole job against its privacy budgets, before it starts.

        Raises:
            BudgetExhausted: it would spend more on a training or held-out sample.
            ConfigError: settings that do not fit together.
        """
        settings = self.settings
        _ = self.mechanism, self.gradients
        if settings.budget is not None and settings.gradient_clip is not None and self._fitted:
            raise ConfigError(
                f"budget: infinite end to end, as {self._fitted}; give all columns job.bounds, and "
                "drop [preprocess], or bound the releases alone by release_budget"
            )
        budgets = _budgets(settings)
        if not budgets:
            return
        scored = spent(self.mechanism, self.scorings(self.rounds), settings.delta)
        require_release_budget(scored, min(budgets), "a held-out sample (see eval_every)")
        own = self._training(self.rounds)
        if settings.release_budget is not None:
            require_release_budget(own, settings.release_budget)
        if settings.budget is not None:
            require_budget(own, settings.budget)

    @property
    def _fitted(self) -> str:
        return "; ".join(filter(None, self.fitted.values()))

    def _training(self, rounds: int) -> PrivacySpent:
        times, local = self._most_visits(rounds), None
        gradients = self.gradients
        if gradients is not None and gradients.noise_multiplier > 0:
            local = LocalNoise(gradients.noise_multiplier, times * self.visits.steps)
        return spent(self.mechanism, self._releases(rounds), self.settings.delta, local)

    def _releases(self, rounds: int) -> int:
        visits = self.visits
        return self._most_visits(rounds) * visits.releases + rounds * visits.every_round

    def _calibrated(self) -> float:
        settings = self.settings
        if settings.budget is not None:
            if settings.gradient_clip is None:
                raise ConfigError(
                    "budget: infinite end to end without gradient_clip; release_budget bounds the "
                    "releases alone"
                )
            return self._half(self.visits.releases)
        if settings.release_budget is None:
            raise ConfigError("noise: the exchange needs privacy.noise_multiplier, or a budget")
        most = max(self._releases(self.rounds), self.scorings(self.rounds))
        return calibrated_multiplier(
            settings.mechanism, settings.release_budget, most, settings.delta
        )

    def _half(self, times_a_visit: int) -> float:
        """The multiplier of noise that spends half of an end-to-end budget's 1/z²."""
        settings = self.settings
        if settings.mechanism != "gaussian":
            raise ConfigError("budget: noise is calibrated end to end for gaussian only")
        assert settings.budget is not None  # noqa: S101
        times = 2 * times_a_visit * self._most_visits(self.rounds)
        # 1 + 1e-9 covers rounding in the sum of both halves.
        return calibrated_multiplier("gaussian", settings.budget, times, settings.delta) * (
            1 + 1e-9
        )

    def _most_visits(self, rounds: int) -> int:
        """Visits of the sample that is visited most."""
        most, visits = self._visits
        for index in range(len(most) - 1, rounds):
            batch = self.batch(index)
            visits[batch] += 1
            most.append(max(most[-1], int(visits[batch].max(initial=0))))
        return most[rounds]

    @cached_property
    def _visits(self) -> tuple[list[int], NDArray[np.int64]]:
        """The most visits by rounds done, and every sample's so far."""
        return [0], np.zeros(self.total_rows, np.int64)


def one_release(settings: PrivacySettings, outputs: int) -> Mechanism:
    """The noise on one release of each new row, with `outputs` numbers, within the job's budget.

    Without a multiplier it takes the least that keeps the budget.

    Raises:
        ConfigError: neither a multiplier nor a budget, or a budget with noise from a seed.
        BudgetExhausted: one release alone would spend more.
    """
    budgets = _budgets(settings)
    multiplier = settings.noise_multiplier
    if multiplier is None:
        if not budgets:
            raise ConfigError("noise: the exchange needs privacy.noise_multiplier, or a budget")
        multiplier = calibrated_multiplier(settings.mechanism, min(budgets), 1, settings.delta)
    mechanism = Mechanism(settings.mechanism, multiplier, settings.clip, outputs)
    if budgets:
        require_release_budget(spent(mechanism, 1, settings.delta), min(budgets), "a new row")
    return mechanism


def _budgets(settings: PrivacySettings) -> list[float]:
    """The ε budgets that the job sets; noise from a fixed seed cannot keep any."""
    budgets = [each for each in (settings.budget, settings.release_budget) if each is not None]
    if budgets and settings.noise_seed is not None:
        raise ConfigError("noise_seed promises nothing: drop it, or the budget")
    return budgets


def _finite(epsilon: float) -> float | None:
    return epsilon if isfinite(epsilon) else None


Revealed = dict[str, dict[str, int]]


def batch_digest(rows: NDArray[np.int64]) -> str:
    """A name of a batch that depends on its rows, not on their order."""
    return hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()[:24]


@dataclass
class LeakageCount:
    """Distinct batches whose products were decrypted for each peer.

    Attributes:
        rows: N, training rows.
        outputs: C.
        columns: P of every peer.
        revealed: the number of values that a peer learned, by peer and batch.
        nonlinear: the peers for which every product of a batch counts.
    """

    rows: int
    outputs: int
    columns: Mapping[str, int]
    revealed: Revealed = field(default_factory=dict)
    nonlinear: frozenset[str] = frozenset()

    def add(self, peer: str, rows: NDArray[np.int64]) -> None:
        """Count a product of these rows for a peer: the first only, or each if it is nonlinear."""
        seen, batch = self.revealed.setdefault(peer, {}), batch_digest(rows)
        before = seen.get(batch, 0) if peer in self.nonlinear else 0
        seen[batch] = before + self.columns[peer] * self.outputs

    @property
    def ratio(self) -> float:
        """Values revealed to all peers together, divided by the number of unknowns.

        Class probabilities sum to one, so C > 1 outputs hold N·(C − 1) unknowns.
        """
        values = sum(sum(batches.values()) for batches in self.revealed.values())
        return values / (self.rows * max(self.outputs - 1, 1))
