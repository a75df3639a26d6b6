"""How far to go along the sum of all parties' directions, from the common predictions alone.

F(ω, ψ) = f(H + ω·D + ψ·M) + Σ_k penalty_k(ω, ψ) for the new direction D and, with momentum, the
last step M: the label party has H, D and M, and the penalties as sums for a grid of (ω, ψ). First
the ω of Armijo's rule at ψ = 0, F(ω, 0) ≤ F(0, 0) + σωp with p = ∇f(H)·D + penalty(1, 0) −
penalty(0, 0); then any neighbour on the grid that is better still.
Source: DBCD (Mahajan, Keerthi, Sundararajan, JMLR 2017), whose search is that along D alone; p is
Tseng and Yun's (Math. Program. 117, 2009).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from securevfl.arrays import FloatArray

SUFFICIENT = 0.01
STEPS: FloatArray = np.append(0.0, 2.0 ** (np.arange(4, -25, -1) / 2))
"""ω: none, then from 4 down to 2⁻¹²."""
NO_LAST: FloatArray = np.zeros(1)
LASTS: FloatArray = np.append(0.0, 2.0 ** (np.arange(-6, 3) / 2))
"""ψ: none, then from ⅛ up to 2."""
WHOLE = int(np.flatnonzero(STEPS == 1)[0])
"""Where STEPS has ω = 1."""


@dataclass
class LineSearch:
    """One round's search.

    Attributes:
        loss: f at predictions.
        start: H, shape (N, 1).
        ahead: D, the same shape.
        last: M, the same shape.
        table: penalties by step, shape (A, B).
        lasts: the ψ that there are, shape (B,).
        slope: ∇f(H)·D.
    """

    loss: Callable[[FloatArray], float]
    start: FloatArray
    ahead: FloatArray
    last: FloatArray
    table: FloatArray
    lasts: FloatArray
    slope: float
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def objective(self, place: tuple[int, int]) -> float:
        """F at a place of the grid."""
        if place not in self._known:
            there = self.predictions(place)
            self._known[place] = self.loss(there) + float(self.table[place])
        return self._known[place]

    def predictions(self, place: tuple[int, int]) -> FloatArray:
        """H after the step of a place."""
        step, last = place
        there: FloatArray = self.start + STEPS[step] * self.ahead + self.lasts[last] * self.last
        return there

    def best(self) -> tuple[int, int]:
        """The place to go to; (0, 0), which is where it starts, if nothing is lower."""
        place = (self._armijo(), 0)
        if place == (0, 0):
            return place
        while True:
            step, last = place
            beside = [(step, each) for each in range(len(self.lasts))]
            beside += [(each, last) for each in range(max(1, step - 2), min(step + 3, len(STEPS)))]
            best = min(beside, key=self.objective)
            if self.objective(best) >= self.objective(place):
                return place
            place = best

    def _armijo(self) -> int:
        """The step of least F among those of sufficient decrease, from the longest down."""
        start = self.objective((0, 0))
        decrease = self.slope + float(self.table[WHOLE, 0] - self.table[0, 0])
        found = 0
        for step in range(1, len(STEPS)):
            objective = self.objective((step, 0))
            if found and objective >= self.objective((found, 0)):
                break
            if objective < start and objective <= start + SUFFICIENT * STEPS[step] * decrease:
                found = step
        return found
