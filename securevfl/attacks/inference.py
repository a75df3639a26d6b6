"""A person's features from the joint model's scores at prediction time (equality solving).

With C classes the scores' log-ratios are C − 1 linear equations in the features (Luo et al., ICDE
2021). Who knows all weights and its own features solves for the others', exactly if the target's
block of weight differences has full column rank: P ≤ C − 1.
"""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class ModelKnowledge:
    """Side knowledge: the trained model, and what the adversary adds to predictions itself.

    Attributes:
        target_weights: of the party under attack, shape (P, C), or (P, 1) for two classes.
        own_predictions: the sum of all other parties' H, shape (rows, C) or (rows, 1).
    """

    target_weights: FloatArray
    own_predictions: FloatArray


def features_from_scores(scores: FloatArray, knowledge: ModelKnowledge) -> FloatArray:
    """The shortest x with the scores' log-ratios, shape (rows, P).

    Args:
        scores: probabilities of every class, shape (rows, C); of class 1, shape (rows, 1), for two.
        knowledge: see there.
    """
    tiny = np.finfo(np.float64).tiny
    if scores.shape[1] == 1:
        ratios = np.log(np.maximum(scores, tiny)) - np.log(np.maximum(1 - scores, tiny))
        weights, own = knowledge.target_weights, knowledge.own_predictions
        unknown = (ratios - own).T
    else:
        logs = np.log(np.maximum(scores, tiny))
        ratios = logs[:, 1:] - logs[:, :1]
        weights = knowledge.target_weights[:, 1:] - knowledge.target_weights[:, :1]
        own = knowledge.own_predictions
        unknown = (ratios - (own[:, 1:] - own[:, :1])).T
    return np.asarray(np.linalg.lstsq(weights.T, unknown, rcond=None)[0].T, np.float64)


def equations_and_unknowns(knowledge: ModelKnowledge) -> tuple[int, int]:
    """The rank of the target's weight differences, and d: solvable where they are equal."""
    weights = knowledge.target_weights
    if weights.shape[1] > 1:
        weights = weights[:, 1:] - weights[:, :1]
    return int(np.linalg.matrix_rank(weights)), len(weights)
