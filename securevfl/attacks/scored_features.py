"""Features of rows from their predictions.

*Scorings.* R scorings of linear models give H_test = X_test·[θ¹ … θ^R], which needs no knowledge
about gradients, steps or starts. As soon as the θ span the columns of X, H_test spans them too, and
as many known rows as the rank of X give all other rows by least squares. For a masked sum, X is all
parties' columns side by side. With fewer scorings the features are regressed on the predictions.

*Equality solving.* With C classes the joint model's scores have C − 1 log-ratios, which are linear
equations in the features (Luo et al., ICDE 2021). A party that knows all weights and its own
features can solve for those of another, exactly if the target's weight differences have full column
rank, which needs P ≤ C − 1.
"""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

CLEAR_OF_ROUNDING = 8.0
PENALTIES = np.logspace(-10, 4, 57)


def held_out_features(
    space: FloatArray, own: FloatArray, rows: IntArray, features: FloatArray, rank: int
) -> FloatArray:
    """X of all held-out rows at the parties under attack, shape (rows, P), from known rows.

    Args:
        space: the scorings' `column_space`.
        own: the label party's columns of all held-out rows.
        rows: the known rows.
        features: X of the known rows.
        rank: the rank of X.
    """
    if rank <= min(space.shape[1], len(rows)):
        whole = space[:, :rank]
        turned = np.linalg.lstsq(whole[rows], features, rcond=None)[0]
        return np.asarray(whole @ turned)
    return features_beside(np.hstack([space, own]), rows, features)


def column_space(scorings: Sequence[FloatArray], rounding: float = 0.0) -> FloatArray:
    """The span of scorings as orthogonal columns of mean square 1, largest first.

    Scorings are predictions of all held-out rows, shapes (rows, C), each with the absolute error
    `rounding`; directions within that error are left out.
    """
    if not scorings:
        raise ConfigError("scorings: none in the view")
    seen = np.hstack(scorings)
    left, scales, _ = np.linalg.svd(seen, full_matrices=False)
    noise = max(rounding, np.finfo(np.float64).eps * scales[0]) * np.sqrt(max(seen.shape))
    return np.asarray(left[:, scales > CLEAR_OF_ROUNDING * noise] * np.sqrt(len(seen)))


def features_beside(columns: FloatArray, rows: IntArray, features: FloatArray) -> FloatArray:
    """X, shape (rows, P), regressed on columns of all rows, fitted to the known rows.

    Ridge regression with a leave-one-out penalty. On the label party's own columns this is the bar:
    what it reaches without any scoring.
    """
    deviation = columns.std(axis=0)
    scaled = (columns - columns.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    matrix = np.hstack([scaled, np.ones((len(columns), 1))])
    left, scales, right = np.linalg.svd(matrix[rows], full_matrices=False)
    projected = left.T @ features
    errors = []
    for penalty in PENALTIES:
        weights = scales**2 / (scales**2 + penalty)
        alone = 1 - np.einsum("ij,j,ij->i", left, weights, left)
        residuals = features - left @ (weights[:, None] * projected)
        errors.append(np.sum((residuals / np.maximum(alone, 1e-9)[:, None]) ** 2))
    shrunk = scales / (scales**2 + PENALTIES[np.argmin(errors)])
    return np.asarray(matrix @ (right.T @ (shrunk[:, None] * projected)))


def features_from_scores(scores: FloatArray, weights: FloatArray, own: FloatArray) -> FloatArray:
    """The shortest x with the scores' log-ratios, shape (rows, P).

    Scores are probabilities of all classes, shape (rows, C), or of class 1, shape (rows, 1).
    Weights are those of the party under attack, shape (P, C) or (P, 1). `own` is the adversary's
    part of the predictions: the sum of all other parties' H.
    """
    tiny = np.finfo(np.float64).tiny
    if scores.shape[1] == 1:
        ratios = np.log(np.maximum(scores, tiny)) - np.log(np.maximum(1 - scores, tiny))
        unknown = ratios - own
    else:
        logs = np.log(np.maximum(scores, tiny))
        unknown = logs[:, 1:] - logs[:, :1] - (own[:, 1:] - own[:, :1])
    equations = _differences(weights).T
    return np.asarray(np.linalg.lstsq(equations, unknown.T, rcond=None)[0].T, np.float64)


def equations_and_unknowns(weights: FloatArray) -> tuple[int, int]:
    """The rank of the target's weight differences, and P: X is exact if they are equal."""
    return int(np.linalg.matrix_rank(_differences(weights))), len(weights)


def _differences(weights: FloatArray) -> FloatArray:
    """Differences between each other class and the first; a single column for two classes."""
    return weights if weights.shape[1] == 1 else weights[:, 1:] - weights[:, :1]
