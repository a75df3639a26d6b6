"""Rotations that a party's messages cannot tell: Lemma 1, and the whole stabilizer it is from.

An orthogonal U with Uᵀθ⁰ = θ⁰ makes X and XU the same to everyone who sees predictions, since all
gradients rotate along (Theorem 1 of Liu et al. 2019). Such U are the identity on the span of what
they fix, and any orthogonal V on its complement of dimension n: the group O(n), of dimension
n(n − 1)/2. A column known to others, a constant say, has to stay as well, which takes one more
dimension away.
"""

import numpy as np
from scipy.linalg import null_space
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError


def lemma_rotation(start: FloatArray, inner: FloatArray) -> FloatArray:
    """U = P·diag(1, V)·P of Lemma 1, which fixes θ⁰.

    P is the Householder reflection that maps θ⁰ to ±‖θ⁰‖e₁, with the sign that does not cancel.

    Args:
        start: θ⁰, shape (d,), not zero.
        inner: V, orthogonal, shape (d − 1, d − 1).

    Raises:
        ConfigError: θ⁰ = 0, or a V of another shape.
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
    """An orthonormal basis of what may turn: the complement of the fixed columns, shape (d, n)."""
    basis: FloatArray = null_space(fixed.T) if fixed.shape[1] else np.eye(len(fixed))
    return basis


def freedom(fixed: FloatArray) -> tuple[int, int]:
    """n, and the dimension n(n − 1)/2 of the group O(n) of rotations that fix some columns.

    n = 0 leaves no other data, n = 1 exactly one (a reflection), more infinitely many.
    """
    free = free_directions(fixed).shape[1]
    return free, free * (free - 1) // 2


def stabilizer_rotation(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A Haar draw from the orthogonal matrices U ≠ I with U·f = f for every fixed column f.

    Args:
        fixed: θ⁰, C columns of it for C outputs, and what else others know; shape (d, m), m ≥ 0.
        generator: draws V.

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
