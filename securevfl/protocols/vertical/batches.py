"""A party's own rows, round by round."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from securevfl.arrays import Labels
from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyData
from securevfl.sparse import Matrix, SparseRows

KEPT_BYTES = 1 << 28
"""Of what is made of sparse rows' batches and kept; beyond it they are cut out anew every time."""
CONVERTED, CONVERTED_VALUE = 6, 12
"""Bytes of a stored cell, and of its value if it has one, that a kept batch takes."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """The batches of rounds one after another at one party, cut out together.

    Attributes:
        inputs: X of all their rows, round after round, shape (ΣS, P).
        labels: of these, shape (ΣS,).
        parts: of these rows, those of each round.
    """

    inputs: Matrix
    labels: Labels
    parts: tuple[slice, ...]

    def of(self, part: slice) -> tuple[Matrix, Labels]:
        """X and labels of one round."""
        if len(self.parts) == 1:
            return self.inputs, self.labels
        return self.inputs[part], self.labels[part]


class PartyBatches:
    """One party's rows of every round; those that repeat are cut out once."""

    def __init__(self, plan: Plan, data: PartyData, inputs: Matrix) -> None:
        self._schedule = plan.schedule
        self._inputs = inputs
        self._labels = data.train_labels
        self._repeats = plan.schedule.repeats and _are_worth_keeping(plan, inputs)
        self._kept: dict[int, Batch] = {}

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""
        key = self._schedule.batch_key(round_index)
        if key in self._kept:
            return self._kept[key]
        rows = self._schedule.batch(round_index)
        labels = None if self._labels is None else self._labels[rows]
        # Rows are sorted, so that all of them are the table itself.
        inputs = self._inputs if len(rows) == len(self._inputs) else self._inputs[rows]
        batch = Batch(key, self._repeats, rows, inputs, labels)
        if self._repeats:
            self._kept[key] = batch
        return batch

    def stretch(self, first: int, length: int) -> Stretch:
        """So many rounds from one on, at a party that holds the labels."""
        assert self._labels is not None  # noqa: S101
        if length == 1:
            batch = self.at(first)
            assert batch.labels is not None  # noqa: S101
            return Stretch(batch.inputs, batch.labels, (slice(None),))
        several = [self._schedule.batch(index) for index in range(first, first + length)]
        rows = np.concatenate(several)
        ends = pairwise(accumulate(map(len, several), initial=0))
        parts = tuple(slice(start, end) for start, end in ends)
        return Stretch(self._inputs[rows], self._labels[rows], parts)


def _are_worth_keeping(plan: Plan, inputs: Matrix) -> bool:
    """Whether all batches together, as products take them, are no more than is kept."""
    if not isinstance(inputs, SparseRows):
        return True
    if plan.exchange.encrypts:
        rows, columns = inputs.shape
        return 8 * rows * columns <= KEPT_BYTES
    cell = CONVERTED + CONVERTED_VALUE * (inputs.values is not None)
    return cell * inputs.nnz <= KEPT_BYTES
