"""Which of two neighbouring data sets was used: scores of what noise left to see.

Below 0 speaks for the first world, above 0 for the second.
"""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.privacy.mechanisms import Mechanism


@dataclass(frozen=True, eq=False)
class WorldsKnowledge:
    """Side knowledge: everything but which world it is.

    Attributes:
        first: what is seen of the first world without noise.
        second: of the second, in the same shape.
    """

    first: FloatArray
    second: FloatArray


def world_score(seen: FloatArray, knowledge: WorldsKnowledge) -> float:
    """How far what was seen lies from the middle towards the second world.

    Raises:
        ConfigError: worlds that send the same.
    """
    direction = knowledge.second - knowledge.first
    length = float(np.linalg.norm(direction))
    if length == 0:
        raise ConfigError("both worlds send the same messages of other records")
    return float(np.sum((seen - (knowledge.first + knowledge.second) / 2) * direction) / length)


def gaussian_scores(releases: FloatArray) -> FloatArray:
    """The likelihood ratio of ±β under Gaussian noise, up to a factor.

    Args:
        releases: shape (ν, canaries), ν of each canary.
    """
    total: FloatArray = releases.sum(axis=0)
    return total


def laplace_scores(releases: FloatArray, mechanism: Mechanism) -> FloatArray:
    """The logarithm of the likelihood ratio of ±β under Laplace noise; see `gaussian_scores`."""
    clip = mechanism.clip
    ratios: FloatArray = np.abs(releases + clip) - np.abs(releases - clip)
    total: FloatArray = ratios.sum(axis=0) / mechanism.scale
    return total
