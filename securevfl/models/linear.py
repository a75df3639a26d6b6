"""The linear local model H_k = X_k θ_k and its gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel, PullBack
from securevfl.sparse import Matrix, SameRows

LEAST_SPREAD = 1e-9
Rule = Callable[[FloatArray, FloatArray], FloatArray]
"""Maps θ and the intended step ηG to the actual step; may be stateful."""


@dataclass
class LinearModel:
    """One party's part of a (generalized) linear model, with θ_k of shape (P, C).

    The last row of θ_k may belong to a constant column of ones, which L2 excludes. `signs`, shape
    (P,), are -1 or 1 where exact steps keep a weight from the other sign, and 0 elsewhere.
    """

    weights: FloatArray
    intercept: bool = False
    is_linear: bool = True
    signs: FloatArray | None = None

    def inputs(self, features: SameRows) -> SameRows:
        """X as the weights expect it: features (S, P) plus the constant column, if any."""
        if not self.intercept:
            return features
        if isinstance(features, np.ndarray):
            return np.hstack([features, np.ones((len(features), 1))])
        return features.with_constant()

    def predict(self, inputs: Matrix) -> FloatArray:
        """Local predictions H_k, shape (S, C)."""
        return inputs @ self.weights

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """Xθ, and d ↦ Xᵀd."""

        def pull_back(residuals: FloatArray) -> FloatArray:
            return inputs.T @ residuals

        return self.predict(inputs), pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], Matrix]:
        """X, for every θ."""
        return lambda: inputs

    def state(self) -> None:
        """None: θ is the whole state."""

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without the intercept, shape (P, C)."""
        gradient = l2 * self.weights
        if self.intercept:
            gradient[-1] = 0.0
        return gradient


def soft_threshold(model: LocalModel, weights: FloatArray, amount: float) -> FloatArray:
    """The proximal step of amount·‖θ‖₁ from θ of shape (P, C), excluding the intercept.

    `amount` is λ₁ times the step size of the preceding gradient step.
    """
    shrunk: FloatArray = np.sign(weights) * np.maximum(np.abs(weights) - amount, 0.0)
    if model.intercept:
        shrunk[-1] = weights[-1]
    return shrunk


def random_start(
    features: Matrix,
    outputs: int,
    intercept: bool,
    generator: np.random.Generator,
    *,
    deviation: float = 1.0,
    data_independent: bool = False,
    signs: FloatArray | None = None,
) -> LinearModel:
    """A private random θ⁰ with std(H⁰) = `deviation` over the rows, which hides the first d.

    At θ⁰ = 0 every residual is ±½, and a gradient alone reveals labels (decision 0005); where row
    offsets hide them, a small start suffices (decision 0022). The intercept starts at 0. If
    `data_independent`, as end-to-end differential privacy requires, the deviation is exact only for
    standardized, uncorrelated columns.
    """
    columns = features.shape[1]
    weights = generator.standard_normal((columns + int(intercept), outputs))
    if intercept:
        weights[-1] = 0.0
    if signs is not None:
        weights = np.where(signs[:, None] == 0, weights, np.abs(weights) * signs[:, None])
    predictions = features @ weights[:columns]
    spread = np.std(predictions, axis=0)
    # Predictions from constant columns vary by rounding only.
    spread[spread < LEAST_SPREAD * np.abs(predictions).max(axis=0)] = 0.0
    if data_independent:
        spread = np.linalg.norm(weights, axis=0)
    weights = deviation * weights / np.where(spread > 0, spread, 1.0)
    return LinearModel(weights, intercept, signs=signs)


def zero_start(columns: int, outputs: int, intercept: bool) -> LinearModel:
    """θ⁰ = 0."""
    return LinearModel(np.zeros((columns, outputs)), intercept)


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
    """A linear model with the same θ⁰ under a rule."""
    return RuledModel(model.weights, model.intercept, rule=rule)
