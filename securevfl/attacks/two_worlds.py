"""Which of two neighbouring data sets was used: likelihood ratios from noisy releases.

Scores below 0 favour the first world, above 0 the second.

The weights of a training run are a hidden state: gradient noise moves them, and noisy predictions
reveal them. The adversary tracks this state in each world with a Kalman filter (Kalman, 1960). The
party's own steps are the transition, which the residuals sent by the label party determine. Clipped
predictions count as linear where they are not clipped (the extended filter). The score is the
difference of the two log-likelihoods. Without gradient noise the weights of both worlds are known,
and the releases are compared with the predictions of both. Networks with too many weights for a
covariance matrix are treated as if they had no gradient noise.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel
from securevfl.privacy.mechanisms import GradientNoise, Mechanism
from securevfl.privacy.streams import KEY_BYTES, NoiseStream
from securevfl.protocols.local_steps import LocalSteps, ResidualSignal
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.vertical.private_gradients import with_private_gradients
from securevfl.sparse import dense

MOST_WEIGHTS = 300


@dataclass(frozen=True, eq=False)
class WorldRound:
    """What the label party has from one round on all rows."""

    predictions: FloatArray  # as the party released them, shape (N, C)
    residuals: FloatArray | None  # its answer, in the same shape, if any
    decision: Decision  # of early stopping


@dataclass(frozen=True, eq=False)
class GuessedWorld:
    """Side knowledge: everything that a party has in one of the worlds, except its noise."""

    model: LocalModel  # its model at θ⁰
    inputs: FloatArray  # X, shape (N, P)
    steps: Callable[[LocalModel], LocalSteps]  # makes its steps from a model at θ⁰
    mechanism: Mechanism  # noise on predictions
    gradients: GradientNoise | None  # noise on gradient steps, if any


def world_score(
    seen: Sequence[WorldRound], first: GuessedWorld, second: GuessedWorld, *, skipped: int = 0
) -> float:
    """The log-likelihood of the second world minus that of the first, without the first rows."""
    return log_likelihood(seen, second, skipped) - log_likelihood(seen, first, skipped)


def log_likelihood(seen: Sequence[WorldRound], world: GuessedWorld, skipped: int = 0) -> float:
    """The log-likelihood of a run's releases in a world, up to what all worlds share."""
    model, inputs, mechanism = deepcopy(world.model), world.inputs, world.mechanism
    noise, moved = world.gradients, model
    if noise is not None:
        silent = replace(noise, noise_multiplier=0.0)
        moved = with_private_gradients(model, silent, NoiseStream(bytes(KEY_BYTES)))
    steps = world.steps(moved)
    variance = mechanism.scale**2 * (1 if mechanism.name == "gaussian" else 2)
    size = model.weights.size
    covariance = None
    if noise is not None and size <= MOST_WEIGHTS:
        covariance = np.zeros((size, size))
    total = 0.0
    for index, each in enumerate(seen):
        steps.begin(index, len(inputs))
        predicted = model.predict(inputs)
        clipped = np.clip(predicted, -mechanism.clip, mechanism.clip)
        off = (each.predictions - clipped)[skipped:]
        total -= 0.5 * float(np.sum(off**2)) / variance
        if covariance is not None:
            # A clipped prediction does not depend on the weights.
            free = (predicted == clipped)[skipped:]
            tangent = _tangent(model, inputs, predicted.shape)[skipped:]
            gained, move, covariance = _update(off[free], tangent[free], covariance, variance)
            total += gained
            model.weights = model.weights + move.reshape(model.weights.shape)
        if each.residuals is None:
            steps.follow(each.decision)
            continue
        predicted, signal = model.predict(inputs), ResidualSignal(each.residuals)
        steps.take(each.decision, inputs, predictions=predicted, signal=signal)
        if noise is not None and covariance is not None:
            # Damping by the steps' own curvature is left out: it shrinks noise and signal alike.
            drawn = steps.step_size(inputs) / len(inputs) * noise.noise_multiplier * 2 * noise.clip
            covariance = covariance + steps.rule.local_steps * drawn**2 * np.eye(size)
    return total


def _tangent(model: LocalModel, inputs: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    tangent = dense(model.tangent(inputs)())
    if model.is_linear:
        tangent = np.einsum("sp,ck->scpk", tangent, np.eye(shape[1]))
    return tangent.reshape(*shape, -1)


def _update(
    off: FloatArray, tangent: FloatArray, covariance: FloatArray, variance: float
) -> tuple[float, FloatArray, FloatArray]:
    """The log-likelihood gained by the filter's update, the weights' move and their covariance."""
    information = tangent.T @ tangent / variance
    pull = tangent.T @ off / variance
    spread = np.eye(len(covariance)) + covariance @ information
    left = np.linalg.solve(spread, covariance).astype(np.float64)
    move = left @ pull
    _, log_spread = np.linalg.slogdet(spread)
    return float(pull @ move - log_spread) / 2, move, left


def gaussian_scores(releases: FloatArray) -> FloatArray:
    """Log-likelihood ratios of ±β under Gaussian noise, up to a factor; releases (ν, canaries)."""
    return np.asarray(releases.sum(axis=0))


def laplace_scores(releases: FloatArray, mechanism: Mechanism) -> FloatArray:
    """Log-likelihood ratios of ±β under Laplace noise; see `gaussian_scores`."""
    clip = mechanism.clip
    ratios: FloatArray = np.abs(releases + clip) - np.abs(releases - clip)
    return np.asarray(ratios.sum(axis=0) / mechanism.scale)
