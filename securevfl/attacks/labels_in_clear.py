"""Labels from what tells them row by row: residuals, or the components of transfer learning.

For logistic loss d = σ(H) − y is at most 0 where y = 1 and at least 0 where y = 0, whatever the
model: one look tells the label. A multinomial residual is negative in the column of its class
alone. With noise on d, several visits of a row average it away. Those of hinges are on their
label's side too, or 0 beyond the margin: a row within it at one visit is told.

*A selection matrix in the place of X.* Nobody who decrypts Xᵀd + r can tell what X was. With rows
of the identity in its columns every visit of a batch hands out as many residuals as the cheater has
columns; the next visit can take the next rows. Who counts distinct batches sees one batch.

*Components.* The label party of transfer learning sends V_i = ½y_iΦ + 2gu_i^A of every row of a
batch, and Φ. As ½|Φ|² is far larger than what 2gu_i^A·Φ can make of it, the sign of V_i·Φ is the
label. With the label, what is left of V_i is 2gu_i^A.
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
    """Read labels off the signs of residuals, one a round, shapes (S, C).

    A residual of 0 is class 1's where `zeros_tell`, as it is of logistic losses.
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
        told = means.any(axis=1)
        return LabelEstimate(seen[told], -means[told])
    # σ(H) − 1 is exactly 0 from H = 37 on, σ(H) only below H = −745: a zero means y = 1.
    return LabelEstimate(seen, np.where(means == 0, np.finfo(np.float64).tiny, -means))


def chosen(rows: int, columns: int, visit: int) -> IntArray:
    """The places within a batch of S rows that a visit reads, at most P of them: the next ones."""
    return (visit * columns + np.arange(min(rows, columns))) % rows


def selection(shape: tuple[int, int], visit: int, entry: int) -> IntArray:
    """What a visit multiplies by: column j holds `entry` at the j-th chosen row, shape (S, P)."""
    matrix = np.zeros(shape, np.int64)
    places = chosen(*shape, visit)
    matrix[places, np.arange(len(places))] = entry
    return matrix


def rows_read(batches: Iterable[IntArray], columns: int) -> list[IntArray]:
    """The row numbers that each visit reads, one array a round.

    A batch starts where its number says, so that batches that never come again read other places.
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
    """Labels of all rows that were chosen, by the signs of residuals that came in place of Xᵀd/S.

    `own_model` is probabilities of all rows by the best model of the cheater's columns, shape (N,
    1) for class 1 or (N, C): for rows fitted so well that no sign shows. `entry` stood in place of
    1; residuals up to `resolution` have signs that mean nothing: 0, or an approximate scheme's.
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
    """Read labels off V_i·Φ/(½|Φ|²), shapes (S, w) and (w,), the mean over a row's visits."""
    if not components:
        raise ConfigError("components: none were received")
    shares = []
    for (values, phi), rows in zip(components, batches, strict=True):
        if values.shape != (len(rows), len(phi)):
            raise ConfigError(f"components of shape {values.shape}, expected {len(rows)} rows")
        shares.append(values @ phi / (phi @ phi / 2))
    return mean_scores(batches, shares)


def mean_scores(batches: Sequence[IntArray], shares: Sequence[FloatArray]) -> LabelEstimate:
    """An estimate of every row from what its visits said, shapes (S,)."""
    rows, places = np.unique(np.concatenate(batches), return_inverse=True)
    sums = np.bincount(places, np.concatenate(shares))
    return LabelEstimate(rows, (sums / np.bincount(places))[:, None])


def units_from_components(values: FloatArray, phi: FloatArray, alignment: float) -> FloatArray:
    """u^A of a batch, shape (S, w), from V, shape (S, w), Φ, shape (w,), and g; needs g ≠ 0."""
    if not alignment:
        raise ConfigError("alignment = 0: the label party's units do not travel")
    signs = np.where(values @ phi > 0, 1.0, -1.0)
    return (values - np.outer(signs / 2, phi)) / (2 * alignment)
