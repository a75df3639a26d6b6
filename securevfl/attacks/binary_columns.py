"""0/1 columns of X from X up to a rotation.

A column is a vector in the span of F with entries in {0, 1}, of which a rotation of generic numbers
has none: so categorical data come back whole. Sparse ones are the sparsest vectors of the span:
minimize ‖Fw‖₁ with one row held at 1 (ER-SpUD, Spielman, Wang and Wright 2012), by reweighted least
squares. For others projections onto the span and onto {0, 1} take turns, from independent
components cut in two and from random directions cut anywhere. Of unions of columns, which are 0/1
as well, the smallest parts stay.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.attacks.components import IndependenceKnowledge, independent_components

BoolArray = NDArray[np.bool_]
ITERATIONS = 30
PROJECTIONS = 100


@dataclass(frozen=True)
class BinaryKnowledge:
    """Side knowledge: that columns hold 0 and 1 alone.

    Attributes:
        tolerance: distance from {0, 1} of what is taken for a column, over the root of its ones.
        rows: how many rows to search in at most.
        starts: how many rows are held at 1.
        dense_starts: how many random directions sign iteration starts from.
        seed: of the choice of rows.
    """

    tolerance: float = 0.05
    rows: int = 1024
    starts: int = 400
    dense_starts: int = 1000
    seed: int = 0


def binary_columns(factor: FloatArray, knowledge: BinaryKnowledge) -> BoolArray:
    """The 0/1 columns found, shape (N, found).

    A column or its complement: the one with fewer ones.

    Args:
        factor: X up to a rotation, shape (N, rank).
        knowledge: see there.
    """
    generator = np.random.default_rng(knowledge.seed)
    basis, scales, _ = np.linalg.svd(factor, full_matrices=False)
    span = basis[:, scales > 1e-6 * scales[0]] * np.sqrt(len(factor))
    rows = generator.permutation(len(span))[: knowledge.rows]
    part = span[rows]
    starts = part[generator.permutation(len(part))[: knowledge.starts]]
    with_ones = np.hstack([np.ones((len(span), 1)), span])
    candidates = [span @ _sparsest(part, start) for start in starts]
    heights = with_ones[rows] @ generator.standard_normal(
        (with_ones.shape[1], knowledge.dense_starts)
    )
    places = generator.integers(len(rows) // 2, len(rows), knowledge.dense_starts)
    cuts = np.sort(heights, axis=0)[places, np.arange(knowledge.dense_starts)]
    candidates += _two_valued(with_ones, rows, heights > cuts)
    components = independent_components(factor, IndependenceKnowledge(knowledge.seed))
    middles = (components.min(axis=0) + components.max(axis=0)) / 2
    candidates += _two_valued(with_ones, np.arange(len(span)), components > middles)
    found: dict[bytes, BoolArray] = {}
    for values in candidates:
        ones = values > 0.5  # noqa: PLR2004
        size = min(int(ones.sum()), int((~ones).sum()))
        if size and np.linalg.norm(values - ones) <= knowledge.tolerance * sqrt(size):
            fewer = ones if size == ones.sum() else ~ones
            found[fewer.tobytes()] = fewer
    return _minimal(list(found.values()), len(factor))


def _sparsest(span: FloatArray, held: FloatArray) -> FloatArray:
    """The w with heldᵀw = 1 and ‖span·w‖₁ small: iteratively reweighted least squares."""
    size = span.shape[1]
    weights = np.ones(len(span))
    solution = np.zeros(size)
    for step in range(ITERATIONS):
        gram = (span * weights[:, None]).T @ span
        direction = np.linalg.solve(gram + 1e-10 * np.trace(gram) * np.eye(size), held)
        solution = direction / max(float(held @ direction), 1e-300)
        values = np.abs(span @ solution)
        weights = 1 / np.maximum(values, 10.0 ** -(1 + step / 6))
    return solution


def _two_valued(span: FloatArray, rows: NDArray[np.int64], ones: BoolArray) -> list[FloatArray]:
    """Vectors of the span that are nearly 0/1: projections onto both in turn.

    Args:
        span: shape (N, rank + 1), with the constant.
        rows: what to search in.
        ones: where to start, shape (rows, n).
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
    """Those that are no disjoint unions of smaller ones, smallest supports first.

    Of a group of categories the one that most rows have is known by its complement, which is the
    union of all others: the largest of the unions stays, unless its complement is one, too.
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
