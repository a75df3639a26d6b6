"""Network lines as a model: one-way latency and bandwidth; cheap to import for reading jobs."""

from dataclasses import dataclass
from math import inf

from securevfl.errors import ConfigError


@dataclass(frozen=True)
class Line:
    """A party's line to the network, with the same figures in both directions.

    Attributes:
        latency_ms: one-way delay of the first bit.
        bandwidth_mbit: 10⁶ bits per second, for all that a party sends, and for all that it
            receives.
    """

    latency_ms: float
    bandwidth_mbit: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency_ms < inf:
            raise ConfigError(f"latency_ms = {self.latency_ms}: expected 0 or more, and finite")
        if not self.bandwidth_mbit > 0:
            raise ConfigError(f"bandwidth_mbit = {self.bandwidth_mbit}: expected more than 0")

    @property
    def latency_seconds(self) -> float:
        """One-way delay in seconds."""
        return self.latency_ms / 1e3

    def transfer_seconds(self, size: int) -> float:
        """Seconds that `size` bytes occupy a line."""
        return size * 8 / (self.bandwidth_mbit * 1e6)


@dataclass(frozen=True)
class LinkCosts:
    """What a message costs at its two ends besides its line, half of it at each.

    Attributes:
        message_seconds: for any message.
        byte_seconds: for each byte of it.
    """

    message_seconds: float = 0.0
    byte_seconds: float = 0.0

    def seconds(self, size: int) -> float:
        """Seconds for a message of `size` bytes, both ends together."""
        return self.message_seconds + size * self.byte_seconds


PRESETS = {
    "lan": Line(latency_ms=0.5, bandwidth_mbit=1000),
    "wan": Line(latency_ms=20, bandwidth_mbit=100),
    "intercontinental": Line(latency_ms=150, bandwidth_mbit=20),
}
