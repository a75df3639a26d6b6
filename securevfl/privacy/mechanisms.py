"""Clipping and noise on shared numbers, fresh at every release (FDML: Hu et al., KDD 2019).

Neighbours are two data sets in which one sample's features at one party differ (replace-one), so
that a prediction clipped to [−β, β] has sensitivity 2β.

Released numbers lie on a grid of β/2^20. In floating point, a sum of value and noise has low bits
that tell one from the other (Mironov, CCS 2012; an audit of ours read ε > 3 where Laplace noise
claimed 1). Here values and noise are rounded to the grid first, and their sum is exact: as ±β are
on the grid, that is continuous noise on grid points, rounded after, and keeps its guarantee.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.privacy.streams import NoiseStream

MechanismName = Literal["gaussian", "laplace"]
GRID = 2.0**20


@dataclass(frozen=True)
class Mechanism:
    """Clip to β, then add noise in proportion to the sensitivity.

    Attributes:
        noise_multiplier: z: a Gaussian's deviation and a Laplace's scale are z·2β. 0 adds
            nothing and promises nothing.
        outputs: predictions of one sample, each clipped by itself; all may change at once.
    """

    name: MechanismName
    noise_multiplier: float
    clip: float
    outputs: int = 1

    def __post_init__(self) -> None:
        if self.name not in ("gaussian", "laplace"):
            raise ConfigError(f"mechanism = {self.name!r}: expected 'gaussian' or 'laplace'")
        _require_noise("", self.noise_multiplier, self.clip)

    @property
    def scale(self) -> float:
        """The deviation or the scale of the noise, in units of what is released."""
        # In the norm that the mechanism's guarantee is stated in: Euclidean, or absolute values.
        length = sqrt(self.outputs) if self.name == "gaussian" else self.outputs
        return self.noise_multiplier * 2 * self.clip * length

    def release(self, values: FloatArray, stream: NoiseStream) -> FloatArray:
        """Values clipped to [−β, β], plus fresh noise, in any shape.

        DataError for NaN or an infinity, which clipping would hide.
        """
        if not np.isfinite(values).all():
            count = int(np.sum(~np.isfinite(values)))
            raise DataError(f"predictions: {count} NaN or infinite values, expected finite ones")
        return self.perturb(np.clip(values, -self.clip, self.clip), stream)

    def perturb(self, values: FloatArray, stream: NoiseStream) -> FloatArray:
        """Values as they are, plus fresh noise; their sensitivity has to be 2β."""
        if self.noise_multiplier == 0:
            return values
        unit = self.clip / GRID
        draw = stream.gaussian if self.name == "gaussian" else stream.laplace
        noise = np.rint(self.scale / unit * draw(values.shape))
        return (np.rint(values / unit) + noise) * unit


@dataclass(frozen=True)
class GradientNoise:
    """Gaussian noise on sums of clipped gradients, one a sample (Abadi et al., CCS 2016).

    z_g is the deviation on the sum over 2β_g, β_g the largest Euclidean length of one gradient.
    """

    noise_multiplier: float
    clip: float

    def __post_init__(self) -> None:
        _require_noise("gradient_", self.noise_multiplier, self.clip)

    def noise(self, shape: tuple[int, ...], stream: NoiseStream) -> FloatArray:
        """Fresh noise for a sum of clipped gradients."""
        return self.noise_multiplier * 2 * self.clip * stream.gaussian(shape)


def _require_noise(of: str, noise_multiplier: float, clip: float) -> None:
    if not (np.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ConfigError(f"{of}noise_multiplier = {noise_multiplier}: expected 0 or more")
    if not (np.isfinite(clip) and clip > 0):
        raise ConfigError(f"{of}clip = {clip}: expected a positive number")
