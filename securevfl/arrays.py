"""Types of the arrays used throughout."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
RealArray = NDArray[np.floating[Any]]
"""float32 or float64."""
IntArray = NDArray[np.int64]
Labels = NDArray[np.int64 | np.float64]
"""Class numbers or real targets."""


def is_real(labels: Labels) -> bool:
    """Whether labels are real targets."""
    return labels.dtype.kind == "f"


RingArray = NDArray[np.uint64]
"""Integers modulo 2^64."""
