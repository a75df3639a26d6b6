"""Clipping and noise on shared numbers, fresh at every release (FDML: Hu et al., KDD 2019).

Neighbours are two data sets in which one sample's features at one party differ (replace-one), so
that a prediction clipped to [−C, C] has sensitivity 2C. Noise is floating-point: its low bits tell
more than the theory allows (Mironov, CCS 2012), which sweeps accept and say.
"""

import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError, DataError

FloatArray = NDArray[np.float64]
MechanismName = Literal["gaussian", "laplace"]
SEED_BYTES = 32


@dataclass(frozen=True)
class Mechanism:
    """Clip, then add noise in proportion to the sensitivity.

    Attributes:
        name: gaussian or laplace.
        noise_multiplier: z: a Gaussian's deviation is z·2C, a Laplace's scale b·2C with b = z. 0
            adds nothing and promises nothing.
        clip: C.

    Raises:
        ConfigError: an unknown name, or a multiplier or bound that cannot be.
    """

    name: MechanismName
    noise_multiplier: float
    clip: float

    def __post_init__(self) -> None:
        if self.name not in ("gaussian", "laplace"):
            raise ConfigError(f"mechanism = {self.name!r}: expected 'gaussian' or 'laplace'")
        if not (np.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError(f"noise_multiplier = {self.noise_multiplier}: expected 0 or more")
        if not (np.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip = {self.clip}: expected a positive number")

    @property
    def scale(self) -> float:
        """The deviation or the scale of the noise, in units of what is released."""
        return self.noise_multiplier * 2 * self.clip

    def release(self, values: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Values clipped to [−C, C], plus fresh noise, in any shape.

        Raises:
            DataError: NaN or an infinity, which clipping would hide.
        """
        if not np.isfinite(values).all():
            count = int(np.sum(~np.isfinite(values)))
            raise DataError(f"predictions: {count} NaN or infinite values, expected finite ones")
        draw = generator.normal if self.name == "gaussian" else generator.laplace
        return np.clip(values, -self.clip, self.clip) + draw(0.0, self.scale, values.shape)


def secret_generator() -> np.random.Generator:
    """A generator that starts from the operating system's CSPRNG."""
    return np.random.default_rng(int.from_bytes(secrets.token_bytes(SEED_BYTES)))
