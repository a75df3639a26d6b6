"""What the components of transfer learning tell in clear.

The label party sends V_i = ½y_iΦ + 2gu_i^A of every row of a batch, and Φ. As ½|Φ|² is far larger
than what 2gu_i^A·Φ can make of it, the sign of V_i·Φ is the label. With the label, what is left of
V_i is 2gu_i^A.
"""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.errors import ConfigError


def labels_from_components(
    components: Sequence[tuple[FloatArray, FloatArray]], batches: Sequence[IntArray]
) -> LabelEstimate:
    """Read labels off V_i·Φ/(½|Φ|²), the mean over a row's visits.

    Args:
        components: V, shape (S, w), and Φ, shape (w,), one a round.
        batches: their row numbers.

    Raises:
        ConfigError: components that do not fit the batches, or none.
    """
    sums: dict[int, list[float]] = {}
    if not components:
        raise ConfigError("components: none were received")
    for (values, phi), rows in zip(components, batches, strict=True):
        if values.shape != (len(rows), len(phi)):
            raise ConfigError(f"components of shape {values.shape}, expected {len(rows)} rows")
        for row, share in zip(rows.tolist(), values @ phi / (phi @ phi / 2), strict=True):
            sums.setdefault(row, []).append(share)
    visited = np.array(sorted(sums), dtype=np.int64)
    return LabelEstimate(visited, np.array([[np.mean(sums[row])] for row in visited.tolist()]))


def units_from_components(values: FloatArray, phi: FloatArray, alignment: float) -> FloatArray:
    """u^A of a batch, once its labels are read, shape (S, w).

    Args:
        values: V, shape (S, w).
        phi: Φ, shape (w,).
        alignment: g.

    Raises:
        ConfigError: g = 0, so that u^A does not travel.
    """
    if not alignment:
        raise ConfigError("alignment = 0: the label party's units do not travel")
    signs = np.where(values @ phi > 0, 1.0, -1.0)
    return (values - np.outer(signs / 2, phi)) / (2 * alignment)
