"""A party's X from its hidden units of a batch, for who knows some of its rows.

Units are an activation of XW + b. Where that can be undone, and there are no fewer units than
columns, what it was applied to is X up to an affine map, which as many known rows as it has
dimensions fix: nothing of W has to be known.
"""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.anchors import AnchorKnowledge
from securevfl.attacks.ridge import ridge_solution

# What a unit may lack to its bound, and singular values below which there is rounding alone.
LEAST, RANK_TOLERANCE = 1e-12, 1e-9


@dataclass(frozen=True, eq=False)
class UnitsSeen:
    """Units of rows that one set of weights gave.

    Attributes:
        units: shape (S, w).
        activation: by name.
    """

    units: FloatArray
    activation: str

    def factor(self) -> FloatArray:
        """An orthogonal basis of what the units were made from, shape (S, rank); relu's as is."""
        undone = np.hstack([_undone(self.units, self.activation), np.ones((len(self.units), 1))])
        left, scales, _ = np.linalg.svd(undone, full_matrices=False)
        kept = scales > RANK_TOLERANCE * scales[0]
        basis: FloatArray = left[:, kept] * scales[kept]
        return basis


def features_from_units(factor: FloatArray, knowledge: AnchorKnowledge) -> FloatArray:
    """X of all rows, shape (S, P), by the map that takes known rows' factors to their features.

    Args:
        factor: shape (S, rank).
        knowledge: the known rows, with X of theirs.
    """
    known = factor[knowledge.rows]
    estimate: FloatArray = factor @ ridge_solution(known, knowledge.features)
    return estimate


def _undone(units: FloatArray, activation: str) -> FloatArray:
    if activation == "tanh":
        return np.arctanh(np.clip(units, LEAST - 1, 1 - LEAST))
    if activation == "sigmoid":
        inside = np.clip(units, LEAST, 1 - LEAST)
        return np.log(inside / (1 - inside))
    return units
