"""Columns of X from X up to a rotation, where they are independent (FastICA).

A rotation of independent columns is undone by looking for the directions that are least Gaussian;
Gaussian columns have none. Columns come back in no order, without sign or scale.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from securevfl.arrays import FloatArray

ITERATIONS = 400


@dataclass(frozen=True)
class IndependenceKnowledge:
    """Side knowledge: that columns are independent and not Gaussian.

    Attributes:
        seed: of the search.
    """

    seed: int = 0


def independent_components(factor: FloatArray, knowledge: IndependenceKnowledge) -> FloatArray:
    """Directions of F that are as independent as can be, of deviation 1.

    Args:
        factor: X up to a rotation, shape (N, rank).
        knowledge: see there.

    Returns:
        Shape (N, rank of the centred F).
    """
    centred = factor - factor.mean(axis=0)
    basis, scales, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int(np.sum(scales > 1e-6 * scales[0]))
    whitened: FloatArray = basis[:, :rank] * np.sqrt(len(factor))
    if rank == 0:
        return whitened
    search = FastICA(
        whiten=False, fun="logcosh", max_iter=ITERATIONS, tol=1e-4, random_state=knowledge.seed
    )
    with warnings.catch_warnings():  # Gaussian directions never settle, which is the point
        warnings.simplefilter("ignore", ConvergenceWarning)
        found: FloatArray = search.fit_transform(whitened)
    return found
