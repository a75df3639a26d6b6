"""Which of two neighbouring data sets was used: likelihood ratios of what noise left to see.

Below 0 speaks for the first world, above 0 for the second.

Of a run that trains, nobody sees the weights: noise on gradients moves them, and predictions with
noise tell of them. In each world that is a state that is followed from what was seen: by Kalman's
filter (Kalman, 1960), through the party's own steps, which the residuals that the label party sent
determine, and with clipped predictions linear where they are not clipped (its extended form). The
score is the difference of the two likelihoods; without noise on gradients the weights of either
world are known, and it compares releases with the predictions of both. So it does for networks of
more weights than a covariance has room for, whose noise is left out.
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
from securevfl.protocols.vertical.private_gradients import PrivateGradients
from securevfl.sparse import dense

MOST_WEIGHTS = 300


@dataclass(frozen=True, eq=False)
class WorldRound:
    """What the label party has of one round on all rows."""

    predictions: FloatArray  # as the party released them, shape (N, C)
    # What it answered, in the same shape; None where it answered nothing
    residuals: FloatArray | None
    decision: Decision  # of early stopping


@dataclass(frozen=True, eq=False)
class GuessedWorld:
    """Side knowledge: everything of a party in one of two worlds but its noise."""

    model: LocalModel  # its model at θ⁰
    inputs: FloatArray  # X, shape (N, P)
    steps: Callable[[LocalModel], LocalSteps]  # makes its steps, of a model at θ⁰
    mechanism: Mechanism  # noise on predictions
    gradients: GradientNoise | None  # noise on gradient steps; None where they are exact


def world_score(
    seen: Sequence[WorldRound], first: GuessedWorld, second: GuessedWorld, *, skipped: int = 0
) -> float:
    """The logarithm of the likelihood ratio of the second world, the first rows skipped."""
    return log_likelihood(seen, second, skipped) - log_likelihood(seen, first, skipped)


def log_likelihood(seen: Sequence[WorldRound], world: GuessedWorld, skipped: int = 0) -> float:
    """Of the releases of a run in a world, up to what is the same in all worlds."""
    model, inputs, mechanism = deepcopy(world.model), world.inputs, world.mechanism
    noise, moved = world.gradients, model
    if noise is not None:
        silent = replace(noise, noise_multiplier=0.0)
        moved = PrivateGradients(model, silent, NoiseStream(bytes(KEY_BYTES)))
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
            # A prediction beyond the clip does not follow the weights.
            follows = (predicted == clipped)[skipped:]
            tangent = _tangent(model, inputs, predicted.shape)[skipped:]
            gained, move, covariance = _reading(
                off[follows], tangent[follows], covariance, variance
            )
            total += gained
            model.weights = model.weights + move.reshape(model.weights.shape)
        if each.residuals is None:
            steps.follow(each.decision)
            continue
        predicted, signal = model.predict(inputs), ResidualSignal(each.residuals)
        steps.take(each.decision, inputs, predictions=predicted, signal=signal)
        if noise is not None and covariance is not None:
            # Damping by the steps' own curvature is left out: it takes from noise and signal alike.
            drawn = steps.step_size(inputs) / len(inputs) * noise.noise_multiplier * 2 * noise.clip
            covariance = covariance + steps.rule.local_steps * drawn**2 * np.eye(size)
    return total


def _tangent(model: LocalModel, inputs: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    tangent = dense(model.tangent(inputs)())
    if model.is_linear:
        tangent = np.einsum("sp,ck->scpk", tangent, np.eye(shape[1]))
    return tangent.reshape(*shape, -1)


def _reading(
    off: FloatArray, tangent: FloatArray, covariance: FloatArray, variance: float
) -> tuple[float, FloatArray, FloatArray]:
    """What releases off by so much add to the likelihood, and the weights' move and covariance."""
    information = tangent.T @ tangent / variance
    pull = tangent.T @ off / variance
    spread = np.eye(len(covariance)) + covariance @ information
    left = np.linalg.solve(spread, covariance).astype(np.float64)
    move = left @ pull
    _, log_spread = np.linalg.slogdet(spread)
    return float(pull @ move - log_spread) / 2, move, left


def gaussian_scores(releases: FloatArray) -> FloatArray:
    """The likelihood ratio of ±β under Gaussian noise, up to a factor; releases (ν, canaries)."""
    return np.asarray(releases.sum(axis=0))


def laplace_scores(releases: FloatArray, mechanism: Mechanism) -> FloatArray:
    """The logarithm of the likelihood ratio of ±β under Laplace noise; see `gaussian_scores`."""
    clip = mechanism.clip
    ratios: FloatArray = np.abs(releases + clip) - np.abs(releases - clip)
    return np.asarray(ratios.sum(axis=0) / mechanism.scale)
