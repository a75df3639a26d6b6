"""DP-SGD at a party: in every step each sample's gradient is clipped, and the sum gets noise.

Source: Abadi et al., CCS 2016, without their amplification by sampling;
docs/decisions/0011-what-a-promise-covers.md.
"""

from typing import Any, cast

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel, PullBack
from securevfl.privacy.mechanisms import GradientNoise
from securevfl.privacy.streams import NoiseStream
from securevfl.sparse import Matrix, dense, lengths_of

# Larger Jacobians are not built: rows go back through the network one by one.
MOST_JACOBIAN_VALUES = 1 << 26


class _PrivateGradients:
    def __init__(self, model: LocalModel, noise: GradientNoise, stream: NoiseStream) -> None:
        self._model, self._noise, self._stream = model, noise, stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._model, name)

    @property
    def weights(self) -> FloatArray:
        return self._model.weights

    @weights.setter
    def weights(self, value: FloatArray) -> None:
        self._model.weights = value

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        def pull_back(residuals: FloatArray) -> FloatArray:
            total = clipped_sum(self._model, inputs, residuals, self._noise.clip)
            return total + self._noise.noise(total.shape, self._stream)

        return self._model.predict(inputs), pull_back


def with_private_gradients(
    model: LocalModel, noise: GradientNoise, stream: NoiseStream
) -> LocalModel:
    """The model with `linearize` replaced: gradients are sums of clipped samples' plus noise.

    Weights are the model's own. Steps from a tangent alone, as under encryption, are not private;
    gradients of penalties depend on no sample.
    """
    return cast(LocalModel, _PrivateGradients(model, noise, stream))


def clipped_sum(
    model: LocalModel, inputs: Matrix, residuals: FloatArray, clip: float
) -> FloatArray:
    """Σ_s J_sᵀd_s, in the shape of θ, each summand clipped to Euclidean length `clip`."""
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
    factors: FloatArray = clip / np.maximum(lengths, clip)
    return factors[:, None]
