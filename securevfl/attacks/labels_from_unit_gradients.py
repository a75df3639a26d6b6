"""Labels from the unlabelled party's own gradients in transfer learning, which it decrypts.

In each round it learns, for every hidden unit a,

    g_a = M_aᵀ(Φ_a(¼ UΦ − ½ y) + 2g(u_a − u_a^A)),   M_a = diag(a′_a) X / S,

P numbers per unit and w·P per round. It knows X, U, a′ and g, but not y (S numbers), Φ (w numbers)
and u^A. The slopes a′, and with them M_a, differ between units; y is the same at every visit of a
batch. Batches of far fewer rows than w·P are therefore overdetermined except for 2gu^A. The attack
fits y and Φ together (Levenberg–Marquardt), treats u^A as noise, and stays near the labels
predicted by the attacker's own model, which it is granted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.labels_in_clear import mean_scores

ITERATIONS, TRIALS, PRODUCTS = 25, 8, 20
SETTLED = 1e-4
# Assumed variance of a unit of the label party about its mean.
UNIT_VARIANCE = 3.0
# Other errors of an equation (fixed point, drift), as a share of |Φ|.
RELATIVE = 1e-4
LEAST_VARIANCE = 0.02  # of a label, however certain the own model is
RANK_TOLERANCE = 1e-12
DAMPING, LEAST_DAMPING = 1e-2, 1e-9


@dataclass(frozen=True, eq=False)
class UnitVisit:
    """What one visit of a batch shows."""

    rows: IntArray  # row numbers, shape (S,)
    inputs: FloatArray  # the attacker's X, shape (S, P)
    units: FloatArray  # its u in that round, shape (S, w)
    slopes: FloatArray  # a′, shape (S, w)
    gradient: FloatArray  # of its weights, without penalties, shape (P, w)


def labels_from_unit_gradients(
    visits: Sequence[UnitVisit], alignment: float, own_model: FloatArray
) -> LabelEstimate:
    """Read the labels of all visited rows off all gradients of a job, batch by batch.

    `alignment` is g; `own_model` is the own model's probability of class 1, shape (N, 1).
    """
    by_batch: dict[bytes, list[UnitVisit]] = {}
    for visit in visits:
        by_batch.setdefault(visit.rows.tobytes(), []).append(visit)
    batches = [same[0].rows for same in by_batch.values()]
    fits = [
        _Fit([_Equations.of(visit, alignment) for visit in same], own_model[rows, 0])
        for rows, same in zip(batches, by_batch.values(), strict=True)
    ]
    return mean_scores(batches, [fit.labels() for fit in fits])


@dataclass(frozen=True, eq=False)
class _Equations:
    """One visit's equations, rotated so that noise on rows is the same in all of them."""

    matrices: FloatArray  # M_aᵀ by unit, with orthonormal rows, shape (w, P, S)
    targets: FloatArray  # their values of Φ_a(¼ UΦ − ½ y), shape (w, P)
    units: FloatArray  # U, shape (S, w)
    noise: float  # standard deviation of 2gu^A in each

    @classmethod
    def of(cls, visit: UnitVisit, alignment: float) -> "_Equations":
        matrices = np.einsum("sa,sf->afs", visit.slopes, visit.inputs) / len(visit.rows)
        aligned = 2 * alignment * np.einsum("afs,sa->af", matrices, visit.units)
        targets = visit.gradient.T - aligned
        for unit, matrix in enumerate(matrices):
            squares, basis = np.linalg.eigh(matrix @ matrix.T)
            kept = squares > RANK_TOLERANCE * squares[-1]
            turn = np.zeros_like(basis)
            turn[: kept.sum()] = (basis[:, kept] / np.sqrt(squares[kept])).T
            matrices[unit], targets[unit] = turn @ matrix, turn @ targets[unit]
        return cls(matrices, targets, visit.units, 2 * alignment * np.sqrt(UNIT_VARIANCE))

    def seen(self, phi: FloatArray, labels: FloatArray) -> FloatArray:
        """The equations' values of ¼ UΦ − ½ y, shape (w, P)."""
        return np.asarray(self.matrices @ (self.units @ phi / 4 - labels / 2))

    def start(self, labels: FloatArray) -> FloatArray:
        """The Φ that fits these labels best, unit by unit."""
        phi = np.zeros(len(self.matrices))
        for _ in range(PRODUCTS):
            seen = self.seen(phi, labels)
            phi = np.sum(seen * self.targets, axis=1) / np.sum(seen**2, axis=1)
        return phi

    def missed(self, phi: FloatArray, labels: FloatArray) -> FloatArray:
        return (self.targets - phi[:, None] * self.seen(phi, labels)).ravel()

    def slopes(self, phi: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Derivatives of `missed` by Φ and by y, shapes (w·P, w) and (w·P, S)."""
        units, columns, rows = self.matrices.shape
        by_phi = np.einsum("a,afs,sb->afb", phi / 4, self.matrices, self.units)
        by_phi[np.arange(units), :, np.arange(units)] += self.seen(phi, labels)
        by_labels = phi[:, None, None] / 2 * self.matrices
        return -by_phi.reshape(-1, units), by_labels.reshape(units * columns, rows)


class _Fit:
    """Fits y and each visit's Φ, with y near 2p − 1 and the variance of probabilities p."""

    def __init__(self, visits: Sequence[_Equations], probabilities: FloatArray) -> None:
        self._visits = visits
        self._mean = 2 * probabilities - 1
        self._spread = np.sqrt(np.maximum(1 - self._mean**2, LEAST_VARIANCE))
        self._phis = [visit.start(self._mean) for visit in visits]
        self._scales = [  # standard deviations of an equation
            float(np.hypot(visit.noise, RELATIVE * np.abs(phi).mean()))
            for visit, phi in zip(visits, self._phis, strict=True)
        ]

    def labels(self) -> FloatArray:
        now, damping = np.concatenate([*self._phis, self._mean]), DAMPING
        missed = self._missed(now)
        for _ in range(ITERATIONS):
            slopes = self._slopes(now)
            squares, down = slopes.T @ slopes, slopes.T @ missed
            before = float(missed @ missed)
            for _ in range(TRIALS):
                step = np.linalg.solve(squares + damping * np.diag(np.diag(squares)), down)
                tried = self._missed(now - step)
                if float(tried @ tried) < before:
                    break
                damping *= 4
            else:
                break
            now, missed, damping = now - step, tried, max(damping / 5, LEAST_DAMPING)
            if before - float(missed @ missed) < SETTLED * before:
                break
        return self._parts(now)[1]

    def _parts(self, now: FloatArray) -> tuple[FloatArray, FloatArray]:
        units = len(self._phis[0])
        cut = units * len(self._phis)
        return now[:cut].reshape(-1, units), now[cut:]

    def _missed(self, now: FloatArray) -> FloatArray:
        phis, labels = self._parts(now)
        triples = zip(self._visits, phis, self._scales, strict=True)
        missed = [visit.missed(phi, labels) / scale for visit, phi, scale in triples]
        return np.concatenate([*missed, (labels - self._mean) / self._spread])

    def _slopes(self, now: FloatArray) -> FloatArray:
        phis, labels = self._parts(now)
        visits, units = phis.shape
        blocks = []
        for number, (visit, phi) in enumerate(zip(self._visits, phis, strict=True)):
            by_phi, by_labels = visit.slopes(phi, labels)
            block = np.zeros((len(by_phi), len(now)))
            block[:, number * units : (number + 1) * units] = by_phi
            block[:, units * visits :] = by_labels
            blocks.append(block / self._scales[number])
        near = np.zeros((len(labels), len(now)))
        near[:, units * visits :] = np.diag(1 / self._spread)
        return np.concatenate([*blocks, near])
