"""A party's steps as matrices of integers, for all rounds of a job before the first.

Parameters are shared as φ = W⁺θ, in which all directions of the owner's data bend alike
(`Curvature.whitening`): fixed point then errs by as much in predictions H = XWφ whatever the
columns, their units and how they are correlated. In a round φ⁺ = ζ − N·d − Bζ from the exchanged
point ζ, N = W⁺TXᵀ/S and B = W⁺TΛW, Λ = λ but 0 of an intercept, with T of exact steps or of Q
gradient steps (`LocalSteps.planned`): whatever T, only the owner knows it. Where a batch comes
again at the same pace, its rounds have the same matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log2

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.crypto.fixed_point import encode
from securevfl.crypto.ring import Factor
from securevfl.protocols.blind.widths import (
    ACCEPTED_FAILURE,
    ENTRY_BITS,
    Widths,
    bits_above,
    require_rare,
)
from securevfl.protocols.exchange import Batch
from securevfl.protocols.local_steps import LocalSteps, Planned
from securevfl.wire.codec import Message, message_kind

LEAST_ENTRY_BITS = 8
# What L2 may be off by: on a weight over the whole job, or as a part of λ.
PULL_BITS, PULL_PRECISION_BITS = 10, 3


@message_kind(73, stage="setup")
class Scales(Message):
    """An owner's word to its holder: fraction bits of steps, and bits that bound its entries."""

    step_bits: int
    entry_bits: int


@dataclass(frozen=True, eq=False)
class Round:
    """A round as all know it.

    Attributes:
        index: counted from 0.
        rows: S.
        beta: of the extrapolation after it.
        group: of rounds that have the same matrices.
    """

    index: int
    rows: int
    beta: float
    group: int


@dataclass(frozen=True, eq=False)
class Matrices:
    """One group's, at the owner.

    Attributes:
        steps: [−B | −N] with step fraction bits of the product, shape (P, P + S).
        features: XW, shape (S, P).
    """

    steps: IntArray
    features: IntArray

    @cached_property
    def of_residuals(self) -> Factor:
        """−N."""
        return Factor(self.steps[:, len(self.steps) :])

    @cached_property
    def of_weights(self) -> Factor:
        """−B."""
        return Factor(self.steps[:, : len(self.steps)])

    @cached_property
    def of_features(self) -> Factor:
        """XW."""
        return Factor(self.features)


class Schedule:
    """A job's rounds, and one party's step in each.

    Args:
        batches: by round.
        steps: this party's.
        whitening: W and W⁺ of its columns, each of shape (P, P).
        penalty: Λ, shape (P,).

    Attributes:
        rounds: as all know them.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        steps: LocalSteps,
        whitening: tuple[FloatArray, FloatArray],
        penalty: FloatArray,
    ) -> None:
        groups: dict[object, int] = {}
        rounds: list[Round] = []
        self._groups: list[tuple[Batch, Planned]] = []
        for index, batch in enumerate(batches):
            planned = steps.planned(index, batch.inputs)
            key = (batch.key, planned.pace) if batch.repeats else index
            if key not in groups:
                groups[key] = len(groups)
                self._groups.append((batch, planned))
            rounds.append(Round(index, len(batch.rows), planned.beta, groups[key]))
        self.rounds = tuple(rounds)
        self._whitening, self._penalty = whitening, penalty

    def members(self, rounds: Sequence[Round]) -> dict[int, list[Round]]:
        """By group, which of these rounds are in it."""
        found: dict[int, list[Round]] = {}
        for each in rounds:
            found.setdefault(each.group, []).append(each)
        return found

    def scales(self, widths: Widths) -> Scales:
        """What this party tells its holder of its matrices.

        Raises:
            RangeExceeded: steps so small or so many that truncations are likely to go wrong.
        """
        largest = max(float(np.max(np.abs(self._of_residuals(*g)))) for g in self._groups)
        pull = max(float(np.max(np.abs(self._pull(planned)))) for _, planned in self._groups)
        values = len(self.rounds) * len(self._penalty)
        step_bits = least = widths.weight_bits
        if pull > 0:
            whole_job = bits_above(len(self.rounds)) + PULL_BITS
            step_bits = least = least + min(whole_job, PULL_PRECISION_BITS + bits_above(1 / pull))
        if largest > 0:
            for entry_bits in range(ENTRY_BITS, LEAST_ENTRY_BITS - 1, -1):
                of_entries = floor(entry_bits - log2(largest)) + widths.residual_bits
                step_bits = max(least, of_entries)
                if widths.step_failure(step_bits, values) <= ACCEPTED_FAILURE:
                    break
        require_rare(widths.step_failure(step_bits, values), "steps")
        entries = max(
            largest * 2.0 ** (step_bits - widths.residual_bits),
            pull * 2.0 ** (step_bits - widths.weight_bits),
        )
        return Scales(step_bits, bits_above(max(entries, 1.0) + 1))

    def matrices(self, widths: Widths, scales: Scales) -> dict[int, Matrices]:
        """By group, in fixed point."""
        return {
            group: self._fixed(batch, planned, widths, scales)
            for group, (batch, planned) in enumerate(self._groups)
        }

    def _fixed(self, batch: Batch, planned: Planned, widths: Widths, scales: Scales) -> Matrices:
        def steps(matrix: FloatArray, bits: int) -> IntArray:
            scaled = np.ldexp(-matrix, scales.step_bits - bits)
            return encode(scaled, 0, 2.0**scales.entry_bits, "steps")

        of_residuals = steps(self._of_residuals(batch, planned), widths.residual_bits)
        of_weights = steps(self._pull(planned), widths.weight_bits)
        features = batch.inputs @ self._whitening[0]
        largest = float(np.max(np.abs(features), initial=0.0))
        return Matrices(
            np.hstack([of_weights, of_residuals]),
            encode(features, widths.feature_bits, largest, "features"),
        )

    def _of_residuals(self, batch: Batch, planned: Planned) -> FloatArray:
        """N."""
        return self._whitening[1] @ planned.matrix @ batch.inputs.T / len(batch.inputs)

    def _pull(self, planned: Planned) -> FloatArray:
        """B."""
        into, out = self._whitening
        return out @ (planned.matrix * self._penalty) @ into
