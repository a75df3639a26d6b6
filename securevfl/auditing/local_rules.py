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


@dataclass
class Momentum:
    """Heavy ball, or Nesterov's form of it."""

    nesterov: bool = False
    velocity: FloatArray | float = 0.0

    def __call__(self, weights: FloatArray, step: FloatArray) -> FloatArray:
        """The velocity v ← 0.9v + s; the step is v, or 0.9v + s."""
        self.velocity = DECAY * self.velocity + step
        return DECAY * self.velocity + step if self.nesterov else self.velocity


@dataclass
class AdamRule:
    """Adam (Kingma and Ba 2015), its rate such that a step is about as long as the one given."""

    rate: float = 0.02
    first: FloatArray | float = 0.0
    second: FloatArray | float = 0.0
    steps: int = 0

    def __call__(self, weights: FloatArray, step: FloatArray) -> FloatArray:
        """m̂/√v̂ by coordinate."""
        self.steps += 1
        self.first = DECAY * self.first + (1 - DECAY) * step
        self.second = SECOND_DECAY * self.second + (1 - SECOND_DECAY) * step**2
        mean = self.first / (1 - DECAY**self.steps)
        spread = np.sqrt(self.second / (1 - SECOND_DECAY**self.steps))
        return self.rate * mean / (spread + TINY)


@dataclass
class Adagrad:
    """Adagrad by coordinate, or AdaGrad-norm, one scalar for all."""

    rate: float = 0.1
    scalar: bool = False
    total: FloatArray | float = 0.0

    def __call__(self, weights: FloatArray, step: FloatArray) -> FloatArray:
        """s/√Σs²."""
        self.total = self.total + (np.sum(step**2) if self.scalar else step**2)
        return self.rate * step / np.sqrt(self.total + TINY)


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


@dataclass
class Lasso:
    """A subgradient of λ‖θ‖₁ beside the loss.

    Attributes:
        strength: ηλ.
    """

    strength: float

    def __call__(self, weights: FloatArray, step: FloatArray) -> FloatArray:
        """The step s + ηλ·sign(θ)."""
        return step + self.strength * np.sign(weights)


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
