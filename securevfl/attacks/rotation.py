"""Rotations that a party's messages cannot tell: Lemma 1, and the whole stabilizer it is from.

An orthogonal U with Uᵀθ⁰ = θ⁰ makes X and XU the same to everyone who sees predictions, since all
gradients rotate along (Theorem 1 of Liu et al. 2019). Such U are the identity on the span of what
they fix, and any orthogonal matrix on its complement, whose dimension is `free`: a group of
dimension free·(free − 1)/2. A column known to others, a constant say, has to stay as well, which
takes one more dimension away.
"""

import numpy as np
from scipy.linalg import null_space
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError


def lemma_rotation(start: FloatArray, inner: FloatArray) -> FloatArray:
    """U = reflection·diag(1, inner)·reflection of Lemma 1, which fixes θ⁰.

    The reflection is Householder's that maps θ⁰ to ±‖θ⁰‖e₁, with the sign that does not cancel.

    Args:
        start: θ⁰, shape (P,), not zero.
        inner: orthogonal, shape (P − 1, P − 1).

    Raises:
        ConfigError: θ⁰ = 0, or `inner` of another shape.
    """
    size = len(start)
    length = float(np.linalg.norm(start))
    if length == 0:
        raise ConfigError("start: theta0 = 0 has no direction; every orthogonal matrix fixes it")
    if inner.shape != (size - 1, size - 1):
        raise ConfigError(f"inner: shape {inner.shape}, expected {(size - 1, size - 1)}")
    axis = start / length
    axis[0] += np.copysign(1.0, axis[0])
    reflection = np.eye(size) - 2 * np.outer(axis, axis) / (axis @ axis)
    middle = np.eye(size)
    middle[1:, 1:] = inner
    rotation: FloatArray = reflection @ middle @ reflection
    return rotation


def free_directions(fixed: FloatArray) -> FloatArray:
    """An orthonormal basis of what may turn, the fixed columns' complement: shape (P, free)."""
    basis: FloatArray = null_space(fixed.T) if fixed.shape[1] else np.eye(len(fixed))
    return basis


def freedom(fixed: FloatArray) -> tuple[int, int]:
    """How many dimensions are free, and that of the group of rotations that fix some columns.

    No free dimension leaves no other data, one exactly one (a reflection), more infinitely many.
    """
    free = free_directions(fixed).shape[1]
    return free, free * (free - 1) // 2


def stabilizer_rotation(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A Haar draw from the orthogonal matrices U ≠ I with U·f = f for every fixed column f.

    Args:
        fixed: θ⁰, C columns of it for C outputs, and what else others know, if
            anything; shape (P, fixed).
        generator: draws it.

    Raises:
        ConfigError: nothing is free to turn.
    """
    basis = free_directions(fixed)
    free = basis.shape[1]
    if free == 0:
        raise ConfigError(
            f"no rotation but the identity fixes {len(fixed)} independent columns: the data have "
            "no twin"
        )
    inner = ortho_group.rvs(free, random_state=generator) if free > 1 else -np.eye(1)
    rotation: FloatArray = np.eye(len(fixed)) + basis @ (inner - np.eye(free)) @ basis.T
    return rotation
