"""Optimizers and penalties beside the product's gradient steps, for the scope of Theorem 1.

A rotation of X turns every gradient by Uᵀ. Rules that only add, scale by lengths or project on
balls commute with that; rules that treat coordinates one by one do not. No job trains with these:
they stand in for what somebody might add.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import LocalModel

Rule = Callable[[FloatArray, FloatArray], FloatArray]
"""From θ and the step ηG that was to be taken, the step that is; it may remember earlier ones."""

TINY = 1e-12
CLIP = 1e-3
DECAY = 0.9
SECOND_DECAY = 0.999


def momentum(*, nesterov: bool = False) -> Rule:
    """Heavy ball: the velocity v ← 0.9v + s, and a step of v; of 0.9v + s in Nesterov's form."""
    velocity: FloatArray | float = 0.0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal velocity
        velocity = DECAY * velocity + step
        return DECAY * velocity + step if nesterov else velocity

    return rule


def adam(rate: float = 0.02) -> Rule:
    """Adam (Kingma and Ba 2015), its rate such that a step is about as long as the one given."""
    first: FloatArray | float = 0.0
    second: FloatArray | float = 0.0
    steps = 0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal first, second, steps
        steps += 1
        first = DECAY * first + (1 - DECAY) * step
        second = SECOND_DECAY * second + (1 - SECOND_DECAY) * step**2
        mean = first / (1 - DECAY**steps)
        spread = np.sqrt(second / (1 - SECOND_DECAY**steps))
        return rate * mean / (spread + TINY)

    return rule


def adagrad(rate: float = 0.1, *, scalar: bool = False) -> Rule:
    """Adagrad by coordinate, s/√Σs², or AdaGrad-norm, one scalar for all."""
    total: FloatArray | float = 0.0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal total
        total = total + (np.sum(step**2) if scalar else step**2)
        return rate * step / np.sqrt(total + TINY)

    return rule


def sign_step(weights: FloatArray, step: FloatArray) -> FloatArray:
    """The signSGD step."""
    return 0.01 * np.sign(step)


def clip_coordinates(weights: FloatArray, step: FloatArray) -> FloatArray:
    """Each coordinate of the step clipped to ±CLIP."""
    return np.clip(step, -CLIP, CLIP)


def clip_length(weights: FloatArray, step: FloatArray) -> FloatArray:
    """The whole step clipped to length CLIP."""
    return step * min(1.0, CLIP / max(float(np.linalg.norm(step)), TINY))


def project_on_ball(weights: FloatArray, step: FloatArray) -> FloatArray:
    """θ projected on the ball of radius 1."""
    moved = weights - step
    return weights - moved * min(1.0, 1.0 / max(float(np.linalg.norm(moved)), TINY))


def lasso(strength: float) -> Rule:
    """A subgradient of λ‖θ‖₁ beside the loss: the step s + ηλ·sign(θ), ηλ its strength."""
    return lambda weights, step: step + strength * np.sign(weights)


@dataclass
class RuledModel(LinearModel):
    """A linear model whose steps a rule replaces."""

    rule: Rule | None = field(default=None, kw_only=True)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        rule = getattr(self, "rule", None)
        if name == "weights" and rule is not None:
            assert isinstance(value, np.ndarray)  # noqa: S101
            value = self.weights - rule(self.weights, self.weights - value)
        super().__setattr__(name, value)


def ruled(model: LocalModel, rule: Rule) -> RuledModel:
    """A linear model at the same θ⁰ under a rule."""
    return RuledModel(model.weights, model.intercept, rule=rule)
