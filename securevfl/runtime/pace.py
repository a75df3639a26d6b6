"""How fast a party computes in a simulation: stragglers and pauses, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass

from securevfl.errors import ConfigError

Pace = Callable[[float, float], float]
"""From a party's time and the measured seconds of a computation to the seconds it takes there."""


def steady(now: float, seconds: float) -> float:
    """As measured."""
    del now
    return seconds


@dataclass(frozen=True)
class Slower:
    """So many times slower than measured, all the time or in turns.

    Attributes:
        factor: 1 is as measured.
        period: seconds of a turn; 0 makes it last.
        turn: which of the turns is this party's, from 0.
        turns: how many there are.

    Raises:
        ConfigError: numbers that cannot be.
    """

    factor: float
    period: float = 0.0
    turn: int = 0
    turns: int = 1

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.period >= 0 and 0 <= self.turn < self.turns):
            raise ConfigError(f"pace {self}: expected a positive factor and a turn of `turns`")

    def __call__(self, now: float, seconds: float) -> float:
        """What begins in the party's own turn takes longer."""
        if self.period > 0 and int(now / self.period) % self.turns != self.turn:
            return seconds
        return seconds * self.factor


@dataclass
class Pausing:
    """Stands still again and again.

    Attributes:
        every: seconds between pauses.
        pause: seconds of one.

    Raises:
        ConfigError: numbers that cannot be.
    """

    every: float
    pause: float

    def __post_init__(self) -> None:
        if not (self.every > 0 and self.pause >= 0):
            raise ConfigError(f"pace {self}: expected positive seconds")
        self._next = self.every

    def __call__(self, now: float, seconds: float) -> float:
        """A computation during which a pause falls due ends after it."""
        taken = seconds
        while now + seconds >= self._next:
            taken += self.pause
            self._next += self.every + self.pause
        return taken
