"""Columns of X from X up to a rotation, where they are independent (FastICA).

A rotation of independent columns is undone by looking for the directions that are least Gaussian;
Gaussian columns have none. Columns come back in no order, without sign or scale.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from securevfl.arrays import FloatArray

ITERATIONS = 400
TURNS = 5


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
        factor: X up to a rotation, shape (N, d).
        knowledge: see there.

    Returns:
        Shape (N, n), n the rank of the centred F.
    """
    centred = factor - factor.mean(axis=0)
    basis, scales, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int(np.sum(scales > 1e-6 * scales[0]))
    whitened = basis[:, :rank] * np.sqrt(len(factor))
    search = FastICA(
        whiten=False, fun="logcosh", max_iter=ITERATIONS, tol=1e-4, random_state=knowledge.seed
    )
    with warnings.catch_warnings():  # Gaussian directions never settle, which is the point
        warnings.simplefilter("ignore", ConvergenceWarning)
        found: FloatArray = search.fit_transform(whitened)
    return found


def matched_correlation(found: FloatArray, features: FloatArray) -> float:
    """Median over the columns of X of |correlation| with what was matched to each, one to one.

    Constant columns do not count; what cannot be matched counts as 0.
    """
    varied = features[:, features.std(axis=0) > 0]
    ours = found[:, found.std(axis=0) > 0]
    correlations = np.abs(np.corrcoef(ours.T, varied.T)[: ours.shape[1], ours.shape[1] :])
    places = linear_sum_assignment(-correlations)
    best = np.zeros(varied.shape[1])
    best[places[1]] = correlations[places]
    return float(np.median(best))


def rotated_correlation(factor: FloatArray, features: FloatArray, seed: int) -> float:
    """The same for F turned at random, without any search: mean over a few turns."""
    generator = np.random.default_rng([seed, 4])
    turns = [
        np.linalg.qr(generator.standard_normal((factor.shape[1], factor.shape[1])))[0]
        for _ in range(TURNS)
    ]
    return float(np.mean([matched_correlation(factor @ turn, features) for turn in turns]))
