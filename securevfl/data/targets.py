"""Real targets of regression: the label party's scale of them.

Its mean and deviation are its own: other parties learn neither, and its model file keeps both, so
that predictions come out in the targets' units. Inside a job y has mean 0 and mean square 1, and
bounds on predictions, noise and the start at random mean the same whatever is predicted.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import DataError


@dataclass(frozen=True)
class TargetScaling:
    """Targets are `mean` + `scale`·y.

    Attributes:
        mean: of the training targets; 0 for a model without intercept.
        scale: their population deviation from it, positive.
    """

    mean: float
    scale: float

    @classmethod
    def fit(cls, train: FloatArray, *, centered: bool) -> Self:
        """Learn both from training targets, shape (N,), which are not all the same.

        Raises:
            DataError: values too large for a finite deviation.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(train.mean()) if centered else 0.0
            scale = float(np.sqrt(np.mean((train - mean) ** 2)))
        if not (np.isfinite(mean) and np.isfinite(scale) and scale > 0):
            raise DataError("targets have no finite mean and standard deviation")
        return cls(mean, scale)

    def apply(self, targets: Labels) -> FloatArray:
        """Targets in units of the job, shape (N,)."""
        scaled: FloatArray = (targets.astype(np.float64) - self.mean) / self.scale
        return scaled
