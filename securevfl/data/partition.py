"""Which rows make a batch: fixed per data set, so that later rounds show no new sums of labels.

The order comes from raw PCG64 output and a stable sort, whose streams NumPy guarantees across
versions and machines, so parties need not agree on more than the fingerprint.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError

KEPT_EPOCHS = 8


def fixed_partition(rows: int, batch_size: int, fingerprint: str) -> list[NDArray[np.int64]]:
    """Part rows into floor(rows / batch_size) batches, every row in exactly one.

    The remainder is spread, so sizes differ by at most one and are at least `batch_size`.
    The job's seed plays no part: two jobs on the same data use the same batches (FedBCD's
    assumption A2).

    Args:
        rows: N.
        batch_size: S, from 1 to N.
        fingerprint: The data set's.

    Returns:
        Read-only index arrays, each sorted.

    Raises:
        ConfigError: S < 1 or S > N.
    """
    _check_sizes(rows, batch_size)
    return _part(rows, batch_size, f"partition|{fingerprint}|{rows}|{batch_size}")


@dataclass(eq=False)
class BatchSchedule:
    """The batch of every round, the same at every party.

    Attributes:
        rows: N.
        batch_size: S, from 1 to N.
        fingerprint: The data set's.
        seed: The job's.
        sampling: "partition" draws uniformly among the fixed batches; "shuffle" parts the rows
            afresh every epoch.

    Raises:
        ConfigError: S < 1, S > N, or an unknown sampling.
    """

    rows: int
    batch_size: int
    fingerprint: str
    seed: int
    sampling: Literal["partition", "shuffle"] = "partition"
    _batches: list[NDArray[np.int64]] = field(init=False, repr=False)
    _epochs: dict[int, list[NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.sampling not in ("partition", "shuffle"):
            raise ConfigError(f"sampling: {self.sampling!r}, expected 'partition' or 'shuffle'")
        self._batches = fixed_partition(self.rows, self.batch_size, self.fingerprint)

    @property
    def batches(self) -> int:
        """How many batches there are: floor(N / S)."""
        return self.rows // self.batch_size

    @property
    def repeats(self) -> bool:
        """Whether batches come again: those of a fixed partition, and the full batch."""
        return self.sampling == "partition" or self.batches == 1

    def batch(self, round_number: int) -> NDArray[np.int64]:
        """Row numbers of a round's batch, sorted and read-only; rounds count from 0.

        Raises:
            ConfigError: A negative round.
        """
        key = self.batch_key(round_number)
        if self.repeats:
            return self._batches[key]
        epoch, index = divmod(round_number, self.batches)
        if epoch not in self._epochs:
            if len(self._epochs) == KEPT_EPOCHS:  # parties need not be in the same one
                self._epochs.pop(min(self._epochs))
            seed = f"shuffle|{self.fingerprint}|{self.rows}|{self.batch_size}|{self.seed}|{epoch}"
            self._epochs[epoch] = _part(self.rows, self.batch_size, seed)
        return self._epochs[epoch][index]

    def batch_key(self, round_number: int) -> int:
        """What tells distinct batches apart: the batch's index, or the round where none repeats.

        Raises:
            ConfigError: A negative round.
        """
        if round_number < 0:
            raise ConfigError(f"round: {round_number}, expected at least 0")
        if not self.repeats:
            return round_number
        draw = _generator(f"draw|{self.fingerprint}|{self.seed}|{round_number}").random_raw()
        return int(draw) % self.batches


def _part(rows: int, batch_size: int, seed: str) -> list[NDArray[np.int64]]:
    order = np.argsort(_generator(seed).random_raw(rows), kind="stable").astype(np.int64)
    batches = [np.sort(batch) for batch in np.array_split(order, rows // batch_size)]
    for batch in batches:
        batch.setflags(write=False)
    return batches


def _generator(seed: str) -> np.random.PCG64:
    return np.random.PCG64(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))


def _check_sizes(rows: int, batch_size: int) -> None:
    if not 1 <= batch_size <= rows:
        raise ConfigError(f"batch_size: {batch_size}, expected 1 to {rows} (the training rows)")
