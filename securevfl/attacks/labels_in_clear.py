"""Labels from messages about single rows: residuals, or the components of transfer learning.

*Residuals.* For logistic loss d = σ(H) − y is at most 0 where y = 1 and at least 0 where y = 0,
whatever the model: one residual reveals the label. A multinomial residual is negative only in the
column of the row's class. A hinge loss has residuals on the label's side within the margin and 0
beyond it, so one visit within the margin is enough. Noise on d averages out over the visits of a
row.

*A selection matrix in place of X.* The owner that decrypts Xᵀd + r cannot see what X was. If the
columns of X are columns of the identity, every visit of a batch reveals as many residuals as the
cheater has columns, and the next visit takes the next rows. A guard that counts distinct batches
sees only one.

*Components.* The label party of transfer learning sends V_i = ½y_iΦ + 2gu_i^A for each row of a
batch, and Φ. As ½|Φ|² is far larger than 2gu_i^A·Φ, the sign of V_i·Φ is the label. Subtracting
the label's part from V_i leaves 2gu_i^A.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.errors import ConfigError


def labels_from_residuals(
    residuals: Sequence[FloatArray],
    batches: Sequence[IntArray],
    rows: int,
    *,
    zeros_tell: bool = True,
) -> LabelEstimate:
    """Read labels off the signs of residuals, one array per round, of shapes (S, C).

    With `zeros_tell` a residual of 0 means class 1, as it does for logistic losses.
    """
    if not residuals or len(residuals) > len(batches):
        raise ConfigError(f"residuals: {len(residuals)} rounds, expected 1 to {len(batches)}")
    sums = np.zeros((rows, residuals[0].shape[1]))
    visits = np.zeros(rows)
    for batch, values in zip(batches, residuals, strict=False):
        if values.shape != (len(batch), sums.shape[1]):
            raise ConfigError(
                f"residuals of shape {values.shape}, expected {(len(batch), sums.shape[1])}"
            )
        sums[batch] += values
        visits[batch] += 1
    seen = np.flatnonzero(visits)
    means = sums[seen] / visits[seen, None]
    if not zeros_tell:
        nonzero = means.any(axis=1)
        return LabelEstimate(seen[nonzero], -means[nonzero])
    # σ(H) − 1 rounds to 0 from H = 37 on, σ(H) only below H = −745: a zero means y = 1.
    return LabelEstimate(seen, np.where(means == 0, np.finfo(np.float64).tiny, -means))


def chosen(rows: int, columns: int, visit: int) -> IntArray:
    """The next places within a batch of S rows, at most P of them, that a visit reads."""
    return (visit * columns + np.arange(min(rows, columns))) % rows


def selection(shape: tuple[int, int], visit: int, entry: int) -> IntArray:
    """A visit's selection matrix, shape (S, P): column j has `entry` at the j-th chosen row."""
    matrix = np.zeros(shape, np.int64)
    places = chosen(*shape, visit)
    matrix[places, np.arange(len(places))] = entry
    return matrix


def rows_read(batches: Iterable[IntArray], columns: int) -> list[IntArray]:
    """The row numbers that each visit reads, one array per round.

    The first visit of a batch starts at the place given by the batch's number, so that batches
    that are visited once do not all read the same places.
    """
    visits: dict[bytes, int] = {}
    found = []
    for rows in batches:
        visit = visits.setdefault(rows.tobytes(), len(visits))
        found.append(rows[chosen(len(rows), columns, visit)])
        visits[rows.tobytes()] += 1
    return found


def labels_from_selections(
    gradients: Sequence[FloatArray],
    batches: Sequence[IntArray],
    own_model: FloatArray,
    entry: float,
    resolution: float,
) -> LabelEstimate:
    """Labels of all chosen rows, by the signs of the residuals received in place of Xᵀd/S.

    Args:
        gradients: what the cheater received, one per round.
        batches: the row numbers of each round.
        own_model: probabilities by the best model of the cheater's columns, shape (N, 1) for class
            1 or (N, C), used where no sign shows.
        entry: the selection matrices' entry in place of 1.
        resolution: the largest absolute residual whose sign means nothing: 0 for exact schemes.
    """
    read = rows_read(batches, len(gradients[0]) if gradients else 0)
    expected = (0.5 - own_model) * np.finfo(np.float64).tiny
    residuals = []
    for gradient, places, rows in zip(gradients, read, batches, strict=False):
        seen = gradient[: len(places)] * (len(rows) / entry)
        residuals.append(np.where(np.abs(seen) <= resolution, expected[places], seen))
    return labels_from_residuals(residuals, read, len(expected))


def labels_from_components(
    components: Sequence[tuple[FloatArray, FloatArray]], batches: Sequence[IntArray]
) -> LabelEstimate:
    """Read labels off V_i·Φ/(½|Φ|²), V of shape (S, w) and Φ (w,); the mean over a row's visits."""
    if not components:
        raise ConfigError("components: none were received")
    shares = []
    for (values, phi), rows in zip(components, batches, strict=True):
        if values.shape != (len(rows), len(phi)):
            raise ConfigError(f"components of shape {values.shape}, expected {len(rows)} rows")
        shares.append(values @ phi / (phi @ phi / 2))
    return mean_scores(batches, shares)


def mean_scores(batches: Sequence[IntArray], shares: Sequence[FloatArray]) -> LabelEstimate:
    """The mean of a row's scores over its visits, which have shapes (S,)."""
    rows, places = np.unique(np.concatenate(batches), return_inverse=True)
    sums = np.bincount(places, np.concatenate(shares))
    return LabelEstimate(rows, (sums / np.bincount(places))[:, None])


def units_from_components(values: FloatArray, phi: FloatArray, alignment: float) -> FloatArray:
    """u^A of a batch, shape (S, w), from V, shape (S, w), Φ, shape (w,), and g; needs g ≠ 0."""
    if not alignment:
        raise ConfigError("alignment = 0: components do not contain the label party's units")
    signs = np.where(values @ phi > 0, 1.0, -1.0)
    return (values - np.outer(signs / 2, phi)) / (2 * alignment)
