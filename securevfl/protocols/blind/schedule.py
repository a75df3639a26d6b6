"""A party's steps as matrices of integers, for all rounds of a job before the first.

Parameters are shared as φ = W⁺θ, in which all directions of the owner's data bend alike
(`Curvature.whitening`): fixed point then errs by as much in predictions H = XWφ whatever the
columns, their units and how they are correlated. In a round φ⁺ = ζ − N·[Eζ; d] from the exchanged
point ζ: L2 has rows of its own, E = Λ^½·W with Λ = λ but 0 of an intercept, beside those of the
batch, and N = W⁺T·[Λ^½ | Xᵀ/S], T of exact steps or of Q gradient steps (`LocalSteps.planned`):
whatever T, only the owner knows N. Where a batch comes again at the same pace, its rounds have the
same matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log2

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.crypto.fixed_point import encode
from securevfl.crypto.ring import Factor
from securevfl.errors import RangeExceeded
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

LEAST_ENTRY_BITS, LARGEST_SCALE = 8, 48


@message_kind(73, stage="setup")
class Scales(Message):
    """An owner's word to its holder: fraction bits of steps, and bits that bound its entries."""

    step_bits: int
    entry_bits: int

    @property
    def largest(self) -> int:
        """The larger of both."""
        return max(self.step_bits, self.entry_bits)


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
        steps: −N, with step fraction bits in products, shape (P, P + S).
        features: [E; XW], shape (P + S, P).
    """

    steps: IntArray
    features: IntArray

    def prepare(self) -> None:
        """Bring both into the form that rounds multiply by."""
        _ = self.of_residuals, self.of_features

    @cached_property
    def of_residuals(self) -> Factor:
        """−N."""
        return Factor(self.steps)

    @cached_property
    def of_features(self) -> Factor:
        """[E; XW]."""
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

    def blocks(self, first: int, size: int | None) -> list[Sequence[Round]]:
        """What is made together of all rounds from one on.

        Args:
            first: the first to come.
            size: rounds of a block; None for all at once.
        """
        rounds = self.rounds[first:]
        size = size or len(rounds)
        return [rounds[at : at + size] for at in range(0, len(rounds), size)]

    def members(self, rounds: Sequence[Round]) -> dict[int, list[Round]]:
        """By group, which of these rounds are in it."""
        found: dict[int, list[Round]] = {}
        for each in rounds:
            found.setdefault(each.group, []).append(each)
        return found

    def scales(self, widths: Widths) -> Scales:
        """What this party tells its holder of its matrices.

        Raises:
            RangeExceeded: steps so small or so many that truncations are likely to go wrong, or so
                large that they do not fit.
        """
        of_rows, of_pulls = (
            max(float(np.max(np.abs(matrix), initial=0.0)) for matrix in matrices)
            for matrices in zip(*(self._steps(*group) for group in self._groups), strict=True)
        )
        values = len(self.rounds) * len(self._penalty)
        step_bits = widths.weight_bits
        if of_rows > 0:
            for entry_bits in range(ENTRY_BITS, LEAST_ENTRY_BITS - 1, -1):
                finest = floor(entry_bits - log2(of_rows)) + widths.residual_bits
                step_bits = max(widths.weight_bits, finest)
                if widths.step_failure(step_bits, values) <= ACCEPTED_FAILURE:
                    break
        require_rare(widths.step_failure(step_bits, values), "steps", len(self.rounds))
        entries = max(
            of_rows * 2.0 ** (step_bits - widths.residual_bits),
            of_pulls * 2.0 ** (step_bits - widths.pull_bits),
        )
        scales = Scales(step_bits, bits_above(entries + 1))
        if scales.largest >= LARGEST_SCALE:
            raise RangeExceeded(
                f"blind: steps of {scales.largest} bits in fixed point, fewer than {LARGEST_SCALE} "
                "expected: take a smaller learning_rate, or 'auto'"
            )
        return scales

    def matrices(self, widths: Widths, scales: Scales) -> dict[int, Matrices]:
        """By group, in fixed point."""
        return {
            group: self._fixed(batch, planned, widths, scales)
            for group, (batch, planned) in enumerate(self._groups)
        }

    def _fixed(self, batch: Batch, planned: Planned, widths: Widths, scales: Scales) -> Matrices:
        of_rows, of_pulls = self._steps(batch, planned)
        bits = np.repeat([widths.pull_bits, widths.residual_bits], [len(of_pulls), len(batch.rows)])
        steps = np.ldexp(-np.hstack([of_pulls, of_rows]), scales.step_bits - bits)
        into, _ = self._whitening
        features = np.vstack([np.sqrt(self._penalty)[:, None] * into, batch.inputs @ into])
        largest = float(np.max(np.abs(features), initial=0.0))
        return Matrices(
            encode(steps, 0, 2.0**scales.entry_bits, "steps"),
            encode(features, widths.feature_bits, largest, "features"),
        )

    def _steps(self, batch: Batch, planned: Planned) -> tuple[FloatArray, FloatArray]:
        """N of the batch's rows and of those of E, shapes (P, S) and (P, P)."""
        moves = self._whitening[1] @ planned.matrix
        return moves @ batch.inputs.T / len(batch.inputs), moves * np.sqrt(self._penalty)
