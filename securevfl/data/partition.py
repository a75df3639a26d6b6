"""Which rows make a batch: fixed by row, so that later rounds reveal no new sums of labels.

A row's batch follows from its own digest and the number of batches. Adding or removing a row leaves
all other batches unchanged, unless their number changes. Draws use raw PCG64 output and a stable
sort, which NumPy guarantees across versions and machines.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.data.tables import rows_fingerprint
from securevfl.errors import ConfigError

Digests = NDArray[np.uint64]
RowNumbers = NDArray[np.unsignedinteger[Any]]


def fixed_partition(row_digests: Digests, batch_size: int) -> list[NDArray[np.int64]]:
    """Partition N rows into batches of about S rows, sorted and read-only.

    A row falls into one of floor(N / S) equal ranges of digests; a range with fewer than S/2 rows
    is merged with the next. Batch sizes therefore vary by about √S. The job's seed is not used: two
    jobs on the same data use the same batches (assumption A2 of FedBCD).

    Raises:
        ConfigError: S < 1 or S > N.
    """
    rows = len(row_digests)
    _check_sizes(rows, batch_size)
    ranges = np.uint64(rows // batch_size)
    places = ((row_digests >> np.uint64(32)) * ranges) >> np.uint64(32)
    order = np.argsort(places, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(places.astype(np.int64), minlength=int(ranges)))
    cuts = [0]
    for end in ends.tolist():
        if 2 * (end - cuts[-1]) >= batch_size:
            cuts.append(end)
    cuts[-1] = rows
    batches = [np.sort(order[start:end]) for start, end in pairwise(cuts)]
    for batch in batches:
        batch.setflags(write=False)
    return batches


@dataclass(eq=False)
class BatchSchedule:
    """The batch of every round, the same at every party, for N rows in batches of S.

    The sampling "partition" draws uniformly among the fixed batches; "shuffle" reshuffles the rows
    every epoch, and the orders of the `kept_epochs` last asked for are kept.

    Raises:
        ConfigError: S < 1, S > N, or an unknown sampling.
    """

    row_digests: Digests
    batch_size: int
    seed: int
    sampling: Literal["partition", "shuffle"] = "partition"
    kept_epochs: int = 1
    _epochs: dict[int, RowNumbers] = field(default_factory=dict, init=False, repr=False)
    _last_draw: tuple[int, int] = field(default=(-1, 0), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sampling not in ("partition", "shuffle"):
            raise ConfigError(f"sampling: {self.sampling!r}, expected 'partition' or 'shuffle'")
        _check_sizes(self.rows, self.batch_size)

    @cached_property
    def batches(self) -> int:
        """Number of batches, about floor(N / S)."""
        if self.sampling == "shuffle":
            return self.rows // self.batch_size
        return len(self.fixed)

    @cached_property
    def fixed(self) -> Sequence[NDArray[np.int64]]:
        """The batches of the fixed partition, by key."""
        return fixed_partition(self.row_digests, self.batch_size)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.row_digests)

    @property
    def most_rows(self) -> int:
        """Size of the largest batch."""
        if self.sampling == "shuffle":
            return -(-self.rows // self.batches)
        return max(map(len, self.fixed))

    @cached_property
    def repeats(self) -> bool:
        """Whether batches repeat, as in the fixed partition and for the full batch."""
        return self.sampling == "partition" or self.batches == 1

    def batch(self, round_number: int) -> NDArray[np.int64]:
        """Row numbers of a round's batch, sorted and read-only; rounds count from 0."""
        if self.repeats or round_number < 0:
            return self.fixed[self.batch_key(round_number)]
        epoch, part = self.place(round_number)
        rows = self.order(epoch)[part].astype(np.int64)
        rows.setflags(write=False)
        return rows

    def order(self, epoch: int) -> RowNumbers:
        """All rows, one batch of a shuffle's epoch after another."""
        found = self._epochs.pop(epoch, None)
        if found is None and len(self._epochs) == self.kept_epochs:
            self._epochs.pop(next(iter(self._epochs)))
        self._epochs[epoch] = self._shuffled(epoch) if found is None else found
        return self._epochs[epoch]

    def place(self, round_number: int) -> tuple[int, slice]:
        """The epoch of a shuffle's batch, and where in its order the batch lies."""
        epoch, index = divmod(round_number, self.batches)
        least, larger = divmod(self.rows, self.batches)
        start = index * least + min(index, larger)
        return epoch, slice(start, start + least + (index < larger))

    def size(self, round_number: int) -> int:
        """Number of rows of a round's batch; a shuffle's needs no order."""
        if self.repeats:
            return len(self.batch(round_number))
        part = self.place(round_number)[1]
        return int(part.stop - part.start)

    def batch_key(self, round_number: int) -> int:
        """What identifies a batch: its index, or the round where no batch repeats."""
        if round_number < 0:
            raise ConfigError(f"round: {round_number}, expected at least 0")
        if not self.repeats:
            return round_number
        if self.batches == 1:
            return 0
        # Cached, as all parties ask for the same round several times.
        last = self._last_draw
        if last[0] != round_number:
            draw = _generator(f"draw|{self._fingerprint}|{self.seed}|{round_number}").random_raw()
            self._last_draw = last = round_number, int(draw) % self.batches
        return last[1]

    @cached_property
    def _fingerprint(self) -> str:
        return rows_fingerprint(self.row_digests)

    def _shuffled(self, epoch: int) -> RowNumbers:
        """All rows in floor(N / S) batches whose sizes differ by at most one.

        Rows are ranked by random words, and equal words by row. Which batch a rank belongs to needs
        no sorting but among the words whose first bits are those of two batches.
        """
        rows, batches = self.rows, self.batches
        seed = f"shuffle|{self._fingerprint}|{self.batch_size}|{self.seed}|{epoch}"
        words = _generator(seed).random_raw(rows)
        bits = min(16, rows.bit_length())
        firsts = (words >> np.uint64(64 - bits)).astype(np.uint16)
        counts = np.bincount(firsts, minlength=1 << bits)
        sizes = rows // batches + (np.arange(batches) < rows % batches)
        by_rank = np.repeat(np.arange(batches, dtype=np.min_scalar_type(batches)), sizes)
        ends = np.cumsum(counts)
        lowest, highest = (by_rank.take(each, mode="clip") for each in (ends - counts, ends - 1))
        batch, is_split = lowest[firsts], lowest < highest
        unsure = np.flatnonzero(is_split[firsts])
        order = np.argsort(words[unsure], kind="stable")
        batch[unsure[order]] = by_rank[np.repeat(is_split, counts)]
        # For millions of rows the order takes much of a party's memory.
        return np.argsort(batch, kind="stable").astype(np.min_scalar_type(rows))


def _generator(seed: str) -> np.random.PCG64:
    return np.random.PCG64(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))


def _check_sizes(rows: int, batch_size: int) -> None:
    if not 1 <= batch_size <= rows:
        raise ConfigError(f"batch_size: {batch_size}, expected 1 to {rows} (the training rows)")
