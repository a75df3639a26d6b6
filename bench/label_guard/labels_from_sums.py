"""Labels from sums over batches, basisᵀy: what gradients would tell were all predictions known.

A visit shows basisᵀ(s − y) of a batch, s being what all parties predict together. Whoever knew s,
by collusion or by a better guess than any here, would have basisᵀy, the same numbers whatever the
rounds between. So this bounds attacks that treat s as given: no step size, number of epochs or
luck of training makes gradients tell more of y by themselves.

To an attacker that believes P(yᵢ = 1) = pᵢ, r = y − p is noise of variance D = p(1 − p), of which
it sees z = basisᵀr, nearly Gaussian where a sum runs over many rows. The logarithm of the odds of
yᵢ moves by eᵢᵀΣᵢ⁻¹z + (pᵢ − ½)·eᵢᵀΣᵢ⁻¹eᵢ, eᵢ the row of the basis, Σᵢ = basisᵀD·basis without that
row. On average over P equations of S rows that is worth a squared separation of P/(S·v),
v = π(1 − π) (docs/decisions/0016-label-guard-by-person.md).
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.row_spaces import RowSpace, stacked

# What an own model is sure of may still be otherwise; rounding; the most that a row can weigh.
LEAST, NOISE, ALONE = 1e-4, 1e-6, 1 - 1e-6
ITERATIONS = 200


Batch = tuple[IntArray, RowSpace]
"""The row numbers of a batch, shape (S,), and the row space of the attacker's columns in it."""


def labels_from_sums(
    sums: Sequence[FloatArray], batches: Sequence[Batch], own_model: FloatArray
) -> LabelEstimate:
    """The odds of every label, given basisᵀy of every distinct batch, shapes (rank, C).

    y is one column of 0 and 1 or one for each class, `own_model` probabilities of every row by the
    best model of the attacker's columns, shape (N, 1) for class 1 or (N, C).
    """
    own = np.clip(own_model, LEAST, 1 - LEAST)
    matrix = stacked(len(own), [(rows, space.basis) for rows, space in batches])
    seen = np.concatenate(list(sums)) - matrix @ own
    scores = np.log(own / (1 - own))
    for column, spread in enumerate((own * (1 - own)).T):
        weighted = LinearOperator(
            (matrix.shape[0], matrix.shape[0]),
            matvec=lambda vector, spread=spread: (
                matrix @ (spread * (matrix.T @ vector)) + NOISE * vector
            ),
            dtype=np.float64,
        )
        pulls = matrix.T @ cg(weighted, seen[:, column], rtol=1e-4, maxiter=ITERATIONS)[0]
        told = _told(batches, spread)
        # Σ without row i, by Sherman and Morrison.
        left = 1 - np.minimum(told * spread, ALONE)
        scores[:, column] += (pulls + (own[:, column] - 0.5) * told) / left
    return LabelEstimate(np.arange(len(own)), scores)


def _told(batches: Sequence[Batch], spread: FloatArray) -> FloatArray:
    """eᵢᵀΣ⁻¹eᵢ of every row, shape (N,): those of its batches add up, as if they shared one row."""
    told = np.zeros_like(spread)
    for rows, space in batches:
        basis = space.basis
        inner = (basis.T * spread[rows]) @ basis + NOISE * np.eye(space.rank)
        told[rows] += np.einsum("ij,ji->i", basis, np.linalg.solve(inner, basis.T))
    return told
