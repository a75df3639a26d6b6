"""The arrays that everything here works on."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RingArray = NDArray[np.uint64]
"""Integers modulo 2^64."""
