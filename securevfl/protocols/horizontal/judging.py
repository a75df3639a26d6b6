"""Whether training has helped, by the rows that clients train on.

In a simulation all of them are at hand. No server of real clients can compute it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import IntArray, RealArray
from securevfl.protocols.horizontal.problem import ClientProblem, JudgedProblem

MOST_ROWS = 100
"""Of each client, evenly from all."""
SIMPSON = ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))


@dataclass(frozen=True)
class Losses:
    """The mean over clients of their mean losses, without weight decay.

    Attributes:
        start: at θ before the first round.
        end: at θ after the last one.
        constant: of the best constant prediction; None where the loss is no cross entropy of
            classes.
    """

    start: float
    end: float
    constant: float | None


def losses(problems: Sequence[ClientProblem], start: RealArray, end: RealArray) -> Losses | None:
    """What training came to; None where a client's problem tells no loss.

    Args:
        problems: of all clients.
        start: θ before the first round, shape (p,).
        end: θ after the last one.
    """
    told = [each for each in problems if isinstance(each, JudgedProblem)]
    if len(told) < len(problems):
        return None

    def at(weights: RealArray) -> float:
        return float(np.mean([each.loss(weights, _rows(each)) for each in told]))

    return Losses(at(start), at(end), _constant([each.labels(_rows(each)) for each in told]))


def loss_change(problems: Sequence[ClientProblem], start: RealArray, end: RealArray) -> float:
    """How much more the mean loss is at the end than at the start, by gradients alone.

    Simpson's rule for the integral of the mean gradient from θ⁰ to θ: exact for losses up to the
    fourth degree in θ, as squares of a linear model are. Not finite where gradients are not.
    """
    change = np.subtract(end, start, dtype=np.float64)
    found = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for place, share in SIMPSON:
            weights = (start + place * change).astype(start.dtype)
            slopes = [each.gradient(weights, _rows(each)) @ change for each in problems]
            found += share * float(np.mean(slopes))
    return found


def _rows(problem: ClientProblem) -> IntArray:
    most = min(problem.rows, MOST_ROWS)
    return np.linspace(0, problem.rows - 1, most).astype(np.int64)


def _constant(labels: Sequence[IntArray | None]) -> float | None:
    """The entropy of classes, of which every client counts the same."""
    known = [each for each in labels if each is not None]
    if len(known) < len(labels):
        return None
    classes = 1 + max(int(each.max()) for each in known)
    shares = np.mean([np.bincount(each, minlength=classes) / len(each) for each in known], 0)
    return float(-np.sum(shares * np.log(np.maximum(shares, np.finfo(float).tiny))))
