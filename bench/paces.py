"""Computers that are slower than this one."""

from dataclasses import dataclass

from securevfl.errors import ConfigError


@dataclass(frozen=True)
class Slower:
    """A computer that is slower by a factor, always or in turns.

    Attributes:
        factor: 1 is the measured speed.
        period: seconds of a turn; 0 means always.
        turn: this party's turn, from 0.
        turns: number of turns.

    Raises:
        ConfigError: a factor that is not positive, or an impossible turn.
    """

    factor: float
    period: float = 0.0
    turn: int = 0
    turns: int = 1

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.period >= 0 and 0 <= self.turn < self.turns):
            raise ConfigError(f"pace {self}: expected a positive factor and a turn of `turns`")

    def __call__(self, now: float, seconds: float) -> float:
        """Longer seconds if the section begins in the party's own turn."""
        if self.period > 0 and int(now / self.period) % self.turns != self.turn:
            return seconds
        return seconds * self.factor
