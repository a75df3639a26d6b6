"""X from a factor F: X up to a rotation, or up to the affine map below hidden units.

*Known rows* (orthogonal Procrustes): exact as soon as they span the range, which rank X rows in
general position do.

*Independent columns* (FastICA): the least Gaussian directions undo a rotation of independent
columns, unless these are Gaussian. Columns come back in arbitrary order, without sign and scale.

*Columns of two values*, standardized or not, are vectors with entries in {0, 1} in the span of F
and a constant. That of generic numbers contains none, so categorical data are recovered exactly.
Whatever spans the same will do for F, such as predictions of many rounds. Sparse columns are the
sparsest vectors of the span: minimize ‖Fw‖₁ with one row held at 1 (ER-SpUD, Spielman, Wang and
Wright 2012), by reweighted least squares. Other columns are found by alternating projections onto
the span and onto {0, 1}, starting from independent components cut in two and from random directions
cut anywhere. Unions of columns are 0/1 as well; their smallest parts are kept.

*Hidden units* are an activation of XW + b. If the activation can be inverted and there are at least
as many units as columns, its argument is X up to an affine map. As many known rows as this map has
dimensions fix it; W need not be known.
"""

import warnings
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.least_squares import ridge_solution

BoolArray = NDArray[np.bool_]
INDEPENDENT = 1e-3
ICA_ITERATIONS = 400
# The search for 0/1 columns: accepted distance from {0, 1} over the root of the number of ones, the
# most rows searched, how many of them are held at 1, how many random directions are cut, and the
# iterations of both methods.
TOLERANCE, SEARCHED, STARTS, DENSE_STARTS = 0.05, 1024, 400, 1000
REWEIGHTINGS, PROJECTIONS = 30, 100
# Least distance of a unit from its bounds, and relative size of singular values that are rounding.
LEAST, RANK_TOLERANCE = 1e-12, 1e-9


def features_from_anchors(factor: FloatArray, rows: IntArray, features: FloatArray) -> FloatArray:
    """X, shape (N, P): F with FFᵀ = XXᵀ, rotated to fit known rows; unrotated if there are none."""
    missing = features.shape[1] - factor.shape[1]
    padded = np.pad(factor, ((0, 0), (0, max(missing, 0))))
    if not len(rows):
        return padded[:, : features.shape[1]]
    return np.asarray(padded @ orthogonal_procrustes(padded[rows], features)[0])


def spread_anchors(factor: FloatArray, count: int, generator: np.random.Generator) -> IntArray:
    """Random rows, as many as possible of the first ones independent in F; shape (count,)."""
    chosen: list[int] = []
    rest: list[int] = []
    basis = np.empty((0, factor.shape[1]))
    for row in generator.permutation(len(factor)):
        vector = factor[row]
        left = vector - basis.T @ (basis @ vector)
        length, whole = float(np.linalg.norm(left)), float(np.linalg.norm(vector))
        if len(basis) < factor.shape[1] and length > INDEPENDENT * whole:
            basis = np.vstack([basis, left / length])
            chosen.append(int(row))
        else:
            rest.append(int(row))
    return np.array((chosen + rest)[:count], dtype=np.int64)


def independent_components(factor: FloatArray, seed: int) -> FloatArray:
    """The most independent directions of F, scaled to variance 1, shape (N, rank at most)."""
    centred = factor - factor.mean(axis=0)
    basis, scales, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int(np.sum(scales > 1e-6 * scales[0]))
    whitened: FloatArray = basis[:, :rank] * np.sqrt(len(factor))
    if rank == 0:
        return whitened
    search = FastICA(
        whiten=False, fun="logcosh", max_iter=ICA_ITERATIONS, tol=1e-4, random_state=seed
    )
    with warnings.catch_warnings():  # Gaussian directions never converge, as expected
        warnings.simplefilter("ignore", ConvergenceWarning)
        found: FloatArray = search.fit_transform(whitened)
    return found


def binary_columns(factor: FloatArray, seed: int = 0, starts: int = STARTS) -> BoolArray:
    """The 0/1 columns found, shape (N, found), each as itself or its complement, the sparser one.

    Args:
        factor: X up to a rotation, or columns of the same span, shape (N, rank or more).
        seed: of random rows and directions.
        starts: how many rows are held at 1, one at a time.
    """
    generator = np.random.default_rng(seed)
    # Any column of two values is 0/1 once scaled and shifted.
    columns = np.hstack([factor[:, factor.any(axis=0)], np.ones((len(factor), 1))])
    columns /= np.linalg.norm(columns, axis=0)
    basis, scales, _ = np.linalg.svd(columns, full_matrices=False)
    span = basis[:, scales > RANK_TOLERANCE * scales[0]] * np.sqrt(len(factor))
    rows = generator.permutation(len(span))[:SEARCHED]
    part = span[rows]
    held = part[generator.permutation(len(part))[:starts]]
    candidates = [span @ _sparsest(part, start) for start in held]
    heights = part @ generator.standard_normal((span.shape[1], DENSE_STARTS))
    places = generator.integers(len(rows) // 2, len(rows), DENSE_STARTS)
    cuts = np.sort(heights, axis=0)[places, np.arange(DENSE_STARTS)]
    candidates += _two_valued(span, rows, heights > cuts)
    components = independent_components(span, seed)
    middles = (components.min(axis=0) + components.max(axis=0)) / 2
    candidates += _two_valued(span, np.arange(len(span)), components > middles)
    found: dict[bytes, BoolArray] = {}
    for values in candidates:
        ones = values > 0.5  # noqa: PLR2004
        size = min(int(ones.sum()), int((~ones).sum()))
        if size and np.linalg.norm(values - ones) <= TOLERANCE * sqrt(size):
            fewer = ones if size == ones.sum() else ~ones
            found[fewer.tobytes()] = fewer
    return _minimal(list(found.values()), len(factor))


def _sparsest(span: FloatArray, held: FloatArray) -> FloatArray:
    """The w with heldᵀw = 1 and least ‖span·w‖₁, by iteratively reweighted least squares."""
    size = span.shape[1]
    weights = np.ones(len(span))
    solution = np.zeros(size)
    for step in range(REWEIGHTINGS):
        gram = (span * weights[:, None]).T @ span
        direction = np.linalg.solve(gram + 1e-10 * np.trace(gram) * np.eye(size), held)
        solution = direction / max(float(held @ direction), 1e-300)
        values = np.abs(span @ solution)
        weights = 1 / np.maximum(values, 10.0 ** -(1 + step / 6))
    return solution


def _two_valued(span: FloatArray, rows: NDArray[np.int64], ones: BoolArray) -> list[FloatArray]:
    """Nearly 0/1 vectors of the span, by alternating projections.

    The span has shape (N, rank). Only `rows` are searched, starting from `ones`, shape (rows, n).
    """
    basis, scales, _ = np.linalg.svd(span[rows], full_matrices=False)
    directions = basis[:, scales > 1e-6 * scales[0]]
    for _ in range(PROJECTIONS):
        following = directions @ (directions.T @ ones.astype(np.float64)) > 0.5  # noqa: PLR2004
        if (following == ones).all():
            break
        ones = following
    coefficients = np.linalg.lstsq(span[rows], ones.astype(np.float64), rcond=1e-10)[0]
    return list((span @ coefficients).T)


def _minimal(columns: list[BoolArray], rows: int) -> BoolArray:
    """The columns that are no disjoint unions of smaller ones, smallest first.

    The most frequent of several categories shows as its complement, the union of all others. The
    largest union is therefore kept, unless its complement is a union, too.
    """
    kept = np.empty((rows, 0), dtype=np.bool_)
    unions: list[BoolArray] = []
    for column in sorted(columns, key=lambda ones: int(ones.sum())):
        if _is_union(column, kept):
            unions.append(column)
        else:
            kept = np.hstack([kept, column[:, None]])
    largest = [
        column
        for column in unions
        if not _is_union(~column, kept)
        and not any((other & column).sum() == column.sum() < other.sum() for other in unions)
    ]
    return np.hstack([kept, *(column[:, None] for column in largest)])


def _is_union(column: BoolArray, parts: BoolArray) -> bool:
    within = parts[:, ~(parts & ~column[:, None]).any(axis=0)]
    return bool((within.any(axis=1) == column).all())


def factor_of_units(units: FloatArray, activation: str) -> FloatArray:
    """An orthogonal basis, shape (S, rank), of the activation's argument, from units (S, w).

    The units of relu, which has no inverse, are used as they are.
    """
    undone = np.hstack([_undone(units, activation), np.ones((len(units), 1))])
    left, scales, _ = np.linalg.svd(undone, full_matrices=False)
    kept = scales > RANK_TOLERANCE * scales[0]
    return np.asarray(left[:, kept] * scales[kept])


def features_from_units(factor: FloatArray, rows: IntArray, features: FloatArray) -> FloatArray:
    """X of all rows, shape (S, P), by the linear map fitted to the known rows."""
    return np.asarray(factor @ ridge_solution(factor[rows], features))


def _undone(units: FloatArray, activation: str) -> FloatArray:
    if activation == "tanh":
        return np.arctanh(np.clip(units, LEAST - 1, 1 - LEAST))
    if activation == "sigmoid":
        inside = np.clip(units, LEAST, 1 - LEAST)
        return np.log(inside / (1 - inside))
    return units
