"""A party's own rows, round by round."""

from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyData
from securevfl.sparse import Matrix, SparseRows

KEPT_BYTES = 1 << 24
"""Sparse rows of more are cut out anew every time: what is kept of batches is more than they."""


class PartyBatches:
    """One party's rows of every round; those that repeat are cut out once."""

    def __init__(self, plan: Plan, data: PartyData, inputs: Matrix) -> None:
        self._schedule = plan.schedule
        self._inputs = inputs
        self._labels = data.train_labels
        self._repeats = plan.schedule.repeats
        self._keeps = self._repeats and (
            not isinstance(inputs, SparseRows) or inputs.nbytes <= KEPT_BYTES
        )
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
        if self._keeps:
            self._kept[key] = batch
        return batch
