"""How long and with what steps a federation trains, whatever its method."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from operator import index
from typing import SupportsFloat, SupportsIndex, cast

import numpy as np

from securevfl.arrays import IntArray
from securevfl.errors import ConfigError

WHOLE = "clients", "taking_part", "rounds", "epochs", "batch_size", "seed"
REAL = "learning_rate", "decay", "weight_decay"


@dataclass(frozen=True)
class Settings:
    """Of a federation of M clients, of which m take part in a round.

    Attributes:
        clients: M, numbered from 0.
        taking_part: m, a multiple of the number of blocks.
        rounds: R.
        learning_rate: η0 of clients.
        decay: η of round i is η0·decay^i.
        weight_decay: times θ, added to every gradient.
        epochs: E, a client's passes over its own rows in a round.
        batch_size: rows of a client's step; the last step of an epoch takes what is left.
        seed: of who takes part when, and of the order of rows.

    Raises:
        ConfigError: a value that cannot be.
    """

    clients: int
    taking_part: int
    rounds: int
    learning_rate: float
    decay: float = 0.998
    weight_decay: float = 0.0
    epochs: int = 5
    batch_size: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        # Python's own types: a federation's digest is of how they are written.
        for name in WHOLE:
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in REAL:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        self._require_range()

    def _require_range(self) -> None:
        for name in WHOLE[:-1]:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected at least 1")
        if self.taking_part > self.clients:
            raise ConfigError(f"taking_part = {self.taking_part}: there are {self.clients} clients")
        if not (self.learning_rate > 0 and isfinite(self.learning_rate)):
            raise ConfigError(f"learning_rate = {self.learning_rate}: expected more than 0")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay = {self.decay}: expected more than 0, at most 1")
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"weight_decay = {self.weight_decay}: expected 0 or more")
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}: expected 0 or more")

    def step_size(self, round_index: int) -> float:
        """η of a round, counted from 0."""
        return self.learning_rate * self.decay**round_index

    def batches(self, client: int, rows: int, round_index: int) -> Sequence[IntArray]:
        """The rows of each of a client's steps in a round: E random orders, cut into batches."""
        generator = np.random.default_rng((self.seed, round_index, client))
        cuts = range(self.batch_size, rows, self.batch_size)
        return [
            batch
            for _ in range(self.epochs)
            for batch in np.split(generator.permutation(rows), cuts)
        ]


def whole(name: str, value: object) -> int:
    """What counts something, as Python's own integer.

    Raises:
        ConfigError: it is no whole number.
    """
    try:
        return index(cast(SupportsIndex, value))
    except TypeError as error:
        raise ConfigError(f"{name} = {value!r}: expected a whole number") from error


def number(name: str, value: object) -> float:
    """A number of Python or NumPy, or a tensor that holds one, as Python's own float.

    Raises:
        ConfigError: it is text, or no single number.
    """
    try:
        if not isinstance(value, str | bytes):  # which float would read
            return float(cast(SupportsFloat, value))
    except (OverflowError, RuntimeError, TypeError, ValueError):
        pass
    raise ConfigError(f"{name} = {value!r}: expected a number")
