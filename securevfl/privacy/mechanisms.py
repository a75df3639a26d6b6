"""Clipping and noise on shared values, fresh for every release (FDML: Hu et al., KDD 2019).

Neighbouring data sets differ in one sample's features at one party (replace-one), so a prediction
clipped to [−β, β] has sensitivity 2β.

Released values lie on a grid of β/2^20. In floating point, the low bits of value plus noise can
reveal the value (Mironov, CCS 2012; our own audit measured ε > 3 where Laplace noise should give
1). Here values and noise are first rounded to the grid, and their sum is exact. As ±β are on the
grid, this equals continuous noise on grid points with rounding afterwards, which keeps the
guarantee.
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
        noise_multiplier: z: the standard deviation of Gaussian noise and the scale of Laplace noise
            are z·2β. 0 adds no noise and guarantees nothing.
        outputs: predictions of one sample, each clipped by itself; all may change together.
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
        """Standard deviation or scale of the noise, in units of the released values."""
        # Gaussian noise is calibrated to the L2 norm, Laplace noise to the L1 norm.
        length = sqrt(self.outputs) if self.name == "gaussian" else self.outputs
        return self.noise_multiplier * 2 * self.clip * length

    def release(self, values: FloatArray, stream: NoiseStream) -> FloatArray:
        """Values clipped to [−β, β], plus fresh noise, in any shape.

        A DataError for NaN or infinity, which clipping would hide.
        """
        if not np.isfinite(values).all():
            count = int(np.sum(~np.isfinite(values)))
            raise DataError(f"predictions: {count} NaN or infinite values, expected finite ones")
        return self.perturb(np.clip(values, -self.clip, self.clip), stream)

    def perturb(self, values: FloatArray, stream: NoiseStream) -> FloatArray:
        """Values plus fresh noise; their sensitivity must be 2β."""
        if self.noise_multiplier == 0:
            return values
        unit = self.clip / GRID
        draw = stream.gaussian if self.name == "gaussian" else stream.laplace
        noise = np.rint(self.scale / unit * draw(values.shape))
        return (np.rint(values / unit) + noise) * unit


@dataclass(frozen=True)
class GradientNoise:
    """Gaussian noise on sums of clipped per-sample gradients (Abadi et al., CCS 2016).

    z_g is the noise's standard deviation divided by 2β_g, with β_g the largest norm of a gradient.
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
