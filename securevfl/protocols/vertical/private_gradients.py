"""DP-SGD at a party: what its samples do to its weights is clipped, and noisy, at every step.

Source: Abadi et al., CCS 2016, without their amplification by sampling;
docs/decisions/0011-what-a-promise-covers.md.
"""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel, PullBack, StateDict
from securevfl.privacy.mechanisms import GradientNoise
from securevfl.privacy.streams import NoiseStream
from securevfl.sparse import Matrix, dense, lengths_of

# A Jacobian of more is not made: rows go back through the network one by one.
MOST_JACOBIAN_VALUES = 1 << 26


class PrivateGradients:
    """A local model whose gradients are sums of clipped ones, one a sample, plus noise.

    Only `linearize` differs from the model itself, which keeps θ; steps from a tangent alone, as
    encryption has them, are not private. Gradients of penalties depend on no sample.
    """

    def __init__(self, model: LocalModel, noise: GradientNoise, stream: NoiseStream) -> None:
        self._model = model
        self._noise = noise
        self._stream = stream
        self.is_linear = model.is_linear
        self.intercept = model.intercept

    @property
    def weights(self) -> FloatArray:
        """θ of the model."""
        return self._model.weights

    @weights.setter
    def weights(self, value: FloatArray) -> None:
        self._model.weights = value

    def inputs(self, features: Matrix) -> Matrix:
        """As the model."""
        return self._model.inputs(features)

    def predict(self, inputs: Matrix) -> FloatArray:
        """As the model."""
        return self._model.predict(inputs)

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s clip(J_sᵀd_s) + noise."""

        def pull_back(residuals: FloatArray) -> FloatArray:
            total = clipped_sum(self._model, inputs, residuals, self._noise.clip)
            return total + self._noise.noise(total.shape, self._stream)

        return self._model.predict(inputs), pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], Matrix]:
        """As the model."""
        return self._model.tangent(inputs)

    def state(self) -> StateDict | None:
        """As the model."""
        return self._model.state()

    def penalty_gradient(self, l2: float) -> FloatArray:
        """As the model."""
        return self._model.penalty_gradient(l2)


def clipped_sum(
    model: LocalModel, inputs: Matrix, residuals: FloatArray, clip: float
) -> FloatArray:
    """Σ_s J_sᵀd_s, in the shape of θ, each summand no longer than `clip` (Euclidean)."""
    if model.is_linear:  # x_s d_sᵀ is as long as x_s times d_s
        lengths = lengths_of(inputs) * np.linalg.norm(residuals, axis=1)
        return inputs.T @ (_factors(lengths, clip) * residuals)
    each = (slice(row, row + 1) for row in range(len(inputs)))
    if residuals.size * model.weights.size > MOST_JACOBIAN_VALUES:
        return sum(
            (_clipped(model, inputs[row], residuals[row], clip) for row in each),
            np.zeros(model.weights.shape),
        )
    jacobian = dense(model.tangent(inputs)()).reshape(*residuals.shape, -1)
    gradients: FloatArray = np.einsum("sc,scp->sp", residuals, jacobian)
    factors = _factors(np.linalg.norm(gradients, axis=1), clip)
    total: FloatArray = gradients.T @ factors
    return total


def _clipped(model: LocalModel, row: Matrix, residuals: FloatArray, clip: float) -> FloatArray:
    _, pull_back = model.linearize(row)
    gradient = pull_back(residuals)
    return _factors(np.linalg.norm(gradient, axis=0), clip) * gradient


def _factors(lengths: FloatArray, clip: float) -> FloatArray:
    """What to multiply by, shape (S, 1)."""
    factors: FloatArray = clip / np.maximum(lengths, clip)
    return factors[:, None]
