"""Features of held-out rows from what scoring shows of their predictions.

R scorings of linear models give H_test = X_test·[θ¹ … θ^R], and nobody needs a gradient, a step or
a start for what follows. As soon as the θ span the columns of X, H_test spans them too, and as many
known rows as X has rank give everyone else's by least squares. Of a masked sum, X is the parties'
columns side by side. With fewer scorings known rows still tell what goes with the predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

CLEAR_OF_ROUNDING = 8.0
PENALTIES = np.logspace(-10, 4, 57)


@dataclass(frozen=True, eq=False)
class HeldOutKnowledge:
    """Side knowledge: some people's features, and what the label party holds anyway.

    Attributes:
        rows: which held-out rows, shape (known,).
        features: their X at the parties under attack, shape (known, P).
        own: the label party's columns of all held-out rows, shape (rows, P_own).
        rank: of X: how many directions span it.
    """

    rows: IntArray
    features: FloatArray
    own: FloatArray
    rank: int


def held_out_features(space: FloatArray, knowledge: HeldOutKnowledge) -> FloatArray:
    """X of all held-out rows, shape (rows, P).

    Args:
        space: of the scorings, see `column_space`.
        knowledge: see there.
    """
    if knowledge.rank <= min(space.shape[1], len(knowledge.rows)):
        whole = space[:, : knowledge.rank]
        turned = np.linalg.lstsq(whole[knowledge.rows], knowledge.features, rcond=None)[0]
        estimate: FloatArray = whole @ turned
        return estimate
    return features_beside(np.hstack([space, knowledge.own]), knowledge)


def column_space(scorings: Sequence[FloatArray], rounding: float = 0.0) -> FloatArray:
    """What scorings span: orthogonal columns of mean square 1, the largest part first.

    Args:
        scorings: predictions of all held-out rows as they were seen, each of shape (rows, C).
        rounding: absolute error of every number; what is no larger is left out.

    Returns:
        Shape (rows, their rank).

    Raises:
        ConfigError: no scoring.
    """
    if not scorings:
        raise ConfigError("scorings: none in the view")
    seen = np.hstack(scorings)
    left, scales, _ = np.linalg.svd(seen, full_matrices=False)
    noise = max(rounding, np.finfo(np.float64).eps * scales[0]) * np.sqrt(max(seen.shape))
    basis: FloatArray = left[:, scales > CLEAR_OF_ROUNDING * noise] * np.sqrt(len(seen))
    return basis


def features_beside(columns: FloatArray, knowledge: HeldOutKnowledge) -> FloatArray:
    """What goes with columns that are known of all rows, learned from the known rows' X.

    Ridge regression, its penalty by leaving one out. From the label party's own columns alone it
    is what anyone reaches who has seen no scoring.

    Args:
        columns: shape (rows, columns).
        knowledge: see there.

    Returns:
        Shape (rows, P).
    """
    deviation = columns.std(axis=0)
    scaled = (columns - columns.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    matrix = np.hstack([scaled, np.ones((len(columns), 1))])
    target = knowledge.features
    left, scales, right = np.linalg.svd(matrix[knowledge.rows], full_matrices=False)
    projected = left.T @ target
    errors = []
    for penalty in PENALTIES:
        weights = scales**2 / (scales**2 + penalty)
        alone = 1 - np.einsum("ij,j,ij->i", left, weights, left)
        residuals = target - left @ (weights[:, None] * projected)
        errors.append(np.sum((residuals / np.maximum(alone, 1e-9)[:, None]) ** 2))
    shrunk = scales / (scales**2 + PENALTIES[np.argmin(errors)])
    estimate: FloatArray = matrix @ (right.T @ (shrunk[:, None] * projected))
    return estimate
