"""One party's block of an L1-regularized problem: where it would go, and what it says of that.

For residuals d and f″ at the common H, a party minimizes over its own columns, or a working set W
of them, the quadratic that has their slopes and bends:
gᵀΔ + ½Δᵀ(X_Wᵀdiag(f″)X_W/N + (λ + μ)I)Δ + λ₁‖θ + Δ‖₁, with g = X_Wᵀd/N + λθ.
Source: DBCD (Mahajan, Keerthi, Sundararajan, JMLR 2017): a local approximation over a working set.
"""

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import TrainingDiverged
from securevfl.models.coordinate_descent import minimized, violations
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import BendingLoss

LEAST_BEND = 1e-6


class L1Block:
    """A party's columns, with what it keeps from round to round.

    Args:
        model: linear; moves change its weights, once a round.
        inputs: X of all rows, shape (N, P).
        loss: f.
        l2: λ of ½λ‖θ‖², which leaves the intercept alone as L1 does.
        proximal: μ.
        size: of the working set; None takes all columns.
        passes: of coordinate descent; None goes on until it has converged.

    Attributes:
        l1: λ₁.
        is_last: whether no other λ₁ follows.
    """

    def __init__(
        self,
        model: LocalModel,
        inputs: FloatArray,
        loss: BendingLoss,
        *,
        l2: float,
        proximal: float,
        size: int | None,
        passes: int | None,
    ) -> None:
        self._model, self._inputs, self._loss = model, inputs, loss
        self._l2, self._proximal, self._size, self._passes = l2, proximal, size, passes
        self._penalized = np.ones(inputs.shape[1])
        if model.intercept:
            self._penalized[-1] = 0.0
        self.l1, self.is_last = 0.0, True
        self._before = self._target = self._weights
        self._gradient = np.zeros_like(self._before)

    @property
    def _weights(self) -> FloatArray:
        weights: FloatArray = self._model.weights[:, 0]
        return weights

    def aim(self, residuals: FloatArray) -> FloatArray:
        """Predictions at the minimum of the local approximation, shape (N, 1).

        Args:
            residuals: d of all rows, shape (N, 1).

        Raises:
            TrainingDiverged: slopes that leave float64.
        """
        inputs, weights, rows = self._inputs, self._weights, len(self._inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = (inputs.T @ residuals)[:, 0] / rows
            self._gradient = slopes + self._l2 * self._penalized * weights
        penalties = self.l1 * self._penalized
        chosen = self._working_set(violations(self._gradient, weights, penalties))
        some = inputs[:, chosen]
        bends = np.maximum(self._loss.bends(residuals), LEAST_BEND * self._loss.curvature)
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = some.T @ (bends * some) / rows
        if not (np.isfinite(self._gradient).all() and np.isfinite(matrix).all()):
            raise TrainingDiverged(
                "training diverged: columns so large that their slopes or squares leave float64: "
                "standardize them"
            )
        matrix[np.diag_indices_from(matrix)] += self._proximal + self._l2 * self._penalized[chosen]
        self._target = weights.copy()
        self._target[chosen] = minimized(
            matrix, self._gradient[chosen], weights[chosen], penalties[chosen], self._passes
        )
        return inputs @ self._target[:, None]

    def predictions(self) -> FloatArray:
        """X_kθ_k, shape (N, 1)."""
        return self._inputs @ self._model.weights

    def _working_set(self, broken: FloatArray) -> IntArray | slice:
        if self._size is None:
            return slice(None)
        return np.sort(np.argsort(-broken, kind="stable")[: self._size])

    def penalties(self, steps: FloatArray, lasts: FloatArray) -> FloatArray:
        """λ₁‖θ‖₁ + ½λ‖θ‖² after a step ω to the target and ψ along the last one.

        Args:
            steps: the ω, shape (A,).
            lasts: the ψ, shape (B,).

        Returns:
            Shape (A, B).
        """
        weights = self._weights
        ahead = steps[:, None, None] * (self._target - weights)
        places = weights + ahead + lasts[None, :, None] * (weights - self._before)
        costs = self.l1 * np.abs(places) + 0.5 * self._l2 * places**2
        table: FloatArray = costs @ self._penalized
        return table

    def optimality(self) -> FloatArray:
        """What bounds how far the objective is above its least value, shape (2,).

        By convexity F(θ) − F* ≤ Σ_j(g_jθ_j + λ₁|θ_j|) + max_j(|g_j| − λ₁)₊·‖θ*‖₁, where λ₁‖θ*‖₁ ≤
        F(θ): the sum, and the maximum in units of λ₁, 1 at most. The intercept counts as if its θ*
        stayed below F/λ₁, too.
        """
        weights, gradient = self._weights, self._gradient
        slack = gradient @ weights + self.l1 * self._penalized @ np.abs(weights)
        beyond = np.abs(gradient) - self.l1 * self._penalized
        return np.array([slack, np.clip(np.max(beyond, initial=0.0) / self.l1, 0.0, 1.0)])

    def move(self, step: float, last: float, *, settled: bool) -> None:
        """Take the step; where training at this λ₁ ends with it, none is the last one any more.

        Where all training does, weights become those to be kept.
        """
        weights = self._weights
        moved = weights + step * (self._target - weights) + last * (weights - self._before)
        self._before = moved if settled else weights
        if settled and self.is_last:
            moved = np.where(self._target == 0, 0.0, moved)
        self._model.weights = moved[:, None]

    def with_zeros(self) -> FloatArray:
        """The weights, those 0 that the target has at 0: they come to it in the limit while ω ≠ 1.

        The label party's H does not follow, so that this is for models to be kept. Shape (P, 1).
        """
        return np.where(self._target == 0, 0.0, self._weights)[:, None]
