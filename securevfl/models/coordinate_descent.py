"""Coordinate descent for an L1-penalized quadratic over one party's columns."""

import numpy as np

from securevfl.arrays import FloatArray

MOST_PASSES = 1000
FORCING = 1e-2


def violations(gradient: FloatArray, weights: FloatArray, penalties: FloatArray) -> FloatArray:
    """Distance of each coordinate from 0 ∈ ∂(f + Σ_j λ_j|θ_j|), all of shape (P,)."""
    at_zero = np.maximum(np.abs(gradient) - penalties, 0.0)
    return np.where(weights != 0, np.abs(gradient + penalties * np.sign(weights)), at_zero)


def minimized(
    bends: FloatArray,
    gradient: FloatArray,
    weights: FloatArray,
    penalties: FloatArray,
    passes: int | None = None,
) -> FloatArray:
    """The θ + δ that approximately minimizes gᵀδ + ½δᵀAδ + Σ_j λ_j|θ_j + δ_j|, with exact zeros.

    A (`bends`) is positive semidefinite, of shape (P, P); all others have shape (P,). Coordinates
    go to their own minima one after another while the gradient is updated (the covariance updates
    of Friedman, Hastie, Tibshirani, J. Stat. Softw. 33, 2010). Coordinates without curvature stay.
    Without a number of `passes` over all coordinates, passes continue, mostly over nonzero
    coordinates, until one changes the gradient by at most `FORCING` times the largest initial
    violation, `MOST_PASSES` at most.
    """
    enough = FORCING * np.max(violations(gradient, weights, penalties), initial=0.0)
    point, slopes = weights.tolist(), gradient.copy()
    diagonal, columns = np.diagonal(bends).tolist(), list(bends.T)
    limits = penalties.tolist()
    everything = [j for j, bend in enumerate(diagonal) if bend > 0]
    todo = everything
    for _ in range(passes or MOST_PASSES):
        moved = 0.0
        for j in todo:
            bend, limit, before = diagonal[j], limits[j], point[j]
            pull = bend * before - slopes.item(j)
            after = (pull - limit if pull > limit else min(pull + limit, 0.0)) / bend
            if after != before:
                slopes += columns[j] * (after - before)
                moved = max(moved, bend * abs(after - before))
                point[j] = after
        if passes is not None:
            continue
        if moved <= enough and todo is everything:
            break
        todo = everything if moved <= enough else [j for j in everything if point[j] != 0]
    return np.array(point)
