"""The objective of federated transfer learning, each party's gradient of it, and local steps.

Notation: u_A and u_B are the units of the label party A and the feature party B, y ∈ {−1, +1}; A
has N_A rows, and a batch has S of the common rows.

    Φ = (1/N_A) Σ y_i u_i^A over all of A's rows,  φ_i = Φ·u_i^B,
    L = (1/S) Σ [log 2 − ½ y_i φ_i + ⅛ φ_i²] + (g/S) Σ ‖u_i^A − u_i^B‖² + ½λ(‖θ_A‖² + ‖θ_B‖²).

A party's gradient is affine in S·w + w² numbers of the other party, its `Components`. As y² = 1,
one matrix serves all rows:

    B from A's v_i = ½ y_i Φ + 2g u_i^A and Ψ = ΦΦᵀ:  ∂L/∂u_i^B = (¼ Ψ u_i^B + 2g u_i^B − v_i)/S,
    A from B's v_j = u_j^B and Ψ = (1/S) Σ u_j u_jᵀ:  ∂L/∂Φ = ¼ Ψ Φ − ½ (1/S) Σ y_j v_j,
                                                     ∂L/∂u_j^A = 2g (u_j^A − v_j)/S beside Φ.

Unit a of a dense layer depends on column a of v and row a of Ψ only. So the gradient of its weights
is the party's own `constant` plus its own (P, S + w) matrix times (v_·a, Ψ_a·), which an encrypted
product can compute (`Affine`).
Source: Liu, Chen, Yang (2018), section 3, with a mean over the overlap for their sum, no weight on
it, and g for their alignment; docs/decisions/0019-transfer-learning.md.

`exact` steps follow the party's own changes through the network and through Φ, with the other's
components as exchanged (equation (7) of FedBCD). A gradient under encryption only allows
`linearized` steps: G⁰ plus the party's own curvature along the linearization at θ⁰, with a public
bound in place of the other's matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import frexp

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.job import FtlSettings
from securevfl.models.layers import LARGEST_SLOPE, DenseLayer
from securevfl.protocols.exchange import IN_CLEAR, Outgoing
from securevfl.protocols.plan import Plan


def settings_of(plan: Plan) -> FtlSettings:
    """The section, with defaults where the job says nothing."""
    return plan.job.section(FtlSettings, plan.algorithm.name)


LEAST_EXPONENT = -64


@dataclass(frozen=True)
class Components:
    """Input of one party's gradient from the other: v, shape (S, w), and F, where Ψ = FᵀF."""

    rows: FloatArray
    factor: FloatArray

    @cached_property
    def matrix(self) -> FloatArray:
        """Ψ, shape (w, w)."""
        product: FloatArray = self.factor.T @ self.factor
        return product

    @property
    def largest(self) -> int:
        """The least e such that all eigenvalues of Ψ are below 2^e; or `LEAST_EXPONENT`."""
        eigenvalue = float(np.linalg.eigvalsh(self.matrix)[-1])
        return max(frexp(max(eigenvalue, 2.0**LEAST_EXPONENT / 2))[1], LEAST_EXPONENT)

    @property
    def by_unit(self) -> FloatArray:
        """Column a of v over row a of Ψ, shape (S + w, w)."""
        return np.concatenate([self.rows, self.matrix])


@dataclass(frozen=True)
class Affine:
    """A gradient as a function of the other's components, at fixed weights.

    `constant` is of shape (P, w); `matrices` are by unit, shape (w, S + w, P).
    """

    constant: FloatArray
    matrices: FloatArray


Bend = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class FeatureObjective:
    """B's side: its layer, X of the batch, shape (S, P), and g."""

    model: DenseLayer
    inputs: FloatArray
    alignment: float

    def components(self, release: Outgoing = IN_CLEAR) -> Components:
        """Its units and their second moments."""
        return feature_components(release.units(self.model.predict(self.inputs)))

    def gradient(self, given: Components) -> FloatArray:
        """Through its units alone."""
        units, pull_back = self.model.linearize(self.inputs)
        by_unit = units @ given.matrix / 4 + 2 * self.alignment * units - given.rows
        return pull_back(by_unit) / len(units)

    def affine(self) -> Affine:
        """Xᵀ(a′∘·) of the batch, with u for what multiplies Ψ."""
        units, slopes = self.model.with_slopes(self.inputs)
        tangents = np.einsum("sa,sf->asf", slopes, self.inputs) / len(units)
        of_matrix = np.einsum("sb,asf->abf", units, tangents) / 4
        constant = 2 * self.alignment * np.einsum("sa,asf->fa", units, tangents)
        return Affine(constant, np.concatenate([-tangents, of_matrix], axis=1))

    def bend(self, largest: int) -> Bend:
        """(¼·2^largest + 2g) JᵀJ/S."""
        _, slopes = self.model.with_slopes(self.inputs)
        weight = (2.0**largest / 4 + 2 * self.alignment) / len(slopes)
        return lambda delta: weight * (self.inputs.T @ (slopes**2 * (self.inputs @ delta)))

    def steepest(self, largest: int) -> float:
        """A bound for any slope that units can have."""
        return (2.0**largest / 4 + 2 * self.alignment) * _largest(self.model, self.inputs)


@dataclass
class LabelObjective:
    """A's side.

    Attributes:
        everything: X of all its rows, shape (N_A, P).
        signs: y of all its rows, ±1, shape (N_A,).
        batch: positions of the batch's rows among them, shape (S,).
        alignment: g.
    """

    model: DenseLayer
    everything: FloatArray
    signs: FloatArray
    batch: IntArray
    alignment: float
    _known: tuple[FloatArray, FloatArray, FloatArray] | None = field(
        default=None, init=False, repr=False
    )

    @cached_property
    def _inputs(self) -> FloatArray:
        return self.everything[self.batch]

    @cached_property
    def _labels(self) -> FloatArray:
        return self.signs[self.batch]

    def components(self, release: Outgoing = IN_CLEAR) -> Components:
        """½ y Φ + 2g u of the batch, and ΦΦᵀ."""
        phi, _ = self._phi_tangent()
        phi = release.phi(phi, len(self.everything))
        units = release.units(self.model.predict(self._inputs))
        rows = np.outer(self._labels / 2, phi) + 2 * self.alignment * units
        return Components(rows, phi[None])

    def gradient(self, given: Components) -> FloatArray:
        """Through Φ for all its rows, and through the alignment for those of the batch."""
        units, slopes = self.model.with_slopes(self.everything)
        phi = self.signs @ units / len(units)
        by_phi = given.matrix @ phi / 4 - self._labels @ given.rows / (2 * len(self.batch))
        by_unit = np.outer(self.signs / len(units), by_phi)
        by_unit[self.batch] += self._pull * (units[self.batch] - given.rows)
        return self.everything.T @ (slopes * by_unit)

    def affine(self) -> Affine:
        """∂Φ/∂θ of all rows, and Xᵀ(a′∘·) of the batch."""
        phi, by_phi = self._phi_tangent()
        units, slopes = self.model.with_slopes(self._inputs)
        tangents = self._pull * np.einsum("sa,sf->asf", slopes, self._inputs)
        by_label = np.einsum("s,fa->asf", self._labels, by_phi) / (2 * len(units))
        of_matrix = np.einsum("b,fa->abf", phi, by_phi) / 4
        constant = np.einsum("sa,asf->fa", units, tangents)
        return Affine(constant, np.concatenate([-by_label - tangents, of_matrix], axis=1))

    def bend(self, largest: int) -> Bend:
        """¼·2^largest ∂Φ/∂θᵀ∂Φ/∂θ + 2gJᵀJ/S."""
        _, by_phi = self._phi_tangent()
        inputs = self._inputs
        _, slopes = self.model.with_slopes(inputs)
        weight = 2.0**largest / 4

        def bent(delta: FloatArray) -> FloatArray:
            aligned = inputs.T @ (slopes**2 * (inputs @ delta))
            along: FloatArray = weight * by_phi * np.sum(by_phi * delta, axis=0)
            return along + self._pull * aligned

        return bent

    def steepest(self, largest: int) -> float:
        """A bound with the current ∂Φ/∂θ and any slope that units can have."""
        _, by_phi = self._phi_tangent()
        of_phi = 2.0**largest / 4 * float(np.max(np.sum(by_phi**2, axis=0)))
        return of_phi + 2 * self.alignment * _largest(self.model, self._inputs)

    @property
    def _pull(self) -> float:
        return 2 * self.alignment / len(self.batch)

    def _phi_tangent(self) -> tuple[FloatArray, FloatArray]:
        """Φ and what it changes with each weight, shapes (w,) and (P, w)."""
        # Used several times per exchange; steps replace the weights' array.
        if self._known is None or self._known[0] is not self.model.weights:
            units, slopes = self.model.with_slopes(self.everything)
            shares = self.signs / len(units)
            by_phi = self.everything.T @ (shares[:, None] * slopes)
            self._known = self.model.weights, shares @ units, by_phi
        return self._known[1:]


def feature_components(units: FloatArray) -> Components:
    """B's, of its units of a batch, shape (S, w)."""
    return Components(units, units / np.sqrt(len(units)))


def mean_units(model: DenseLayer, inputs: FloatArray, signs: FloatArray) -> FloatArray:
    """Φ, shape (w,)."""
    phi: FloatArray = signs @ model.predict(inputs) / len(inputs)
    return phi


def signs_of(labels: Labels) -> FloatArray:
    """±1 of classes 1 and 0, shape (S,)."""
    signs: FloatArray = np.where(labels == 1, 1.0, -1.0)
    return signs


def _largest(model: DenseLayer, inputs: FloatArray) -> float:
    """A bound on the largest eigenvalue of JᵀJ/S, wherever the weights are."""
    eigenvalue = float(np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1])
    return LARGEST_SLOPE[model.activation] ** 2 * eigenvalue


OwnObjective = FeatureObjective | LabelObjective
"""One party's side of the objective on a batch, at the weights now.

`components` are what the other's gradient needs; `gradient` is ∂L/∂θ without the penalty, shape
(P, w), and `affine` the same as a function of what is given. `bend` maps Δ to the change of the
gradient along the linearization, with 2^largest, which no eigenvalue of the other's Ψ exceeds, in
place of Ψ; `steepest` bounds its largest eigenvalue.
"""


@dataclass(frozen=True)
class OwnGradient:
    """A party's gradient, as the result of an exchange.

    Attributes:
        of: maps θ − θ⁰ to ∂L/∂θ without the penalty, shape (P, w).
        steepest: a bound on its curvature.
    """

    of: Callable[[FloatArray], FloatArray]
    steepest: float

    @classmethod
    def exact(cls, objective: OwnObjective, given: Components) -> "OwnGradient":
        """The gradient from components in clear, at the current weights."""
        return cls(lambda moved: objective.gradient(given), objective.steepest(given.largest))

    @classmethod
    def linearized(cls, value: FloatArray, objective: OwnObjective, largest: int) -> "OwnGradient":
        """G⁰ + bend(θ − θ⁰), at θ⁰, where no eigenvalue of the other's Ψ exceeds 2^largest."""
        bend = objective.bend(largest)
        return cls(lambda moved: value + bend(moved), objective.steepest(largest))


def take_steps(plan: Plan, model: DenseLayer, round_index: int, signal: OwnGradient) -> None:
    """Take Q gradient steps in place, or one of a signal for each.

    A derived step size is half of 1 over the curvature, as both parties may move at once.
    """
    start = model.weights
    rule = replace(plan.rule, local_steps=plan.rule.local_steps // plan.products)
    eta = plan.step_size.at(round_index)
    if plan.derives_steps:
        eta /= 2 * signal.steepest + rule.l2 + rule.proximal
    rule.descend(model, lambda: signal.of(model.weights - start), eta)
