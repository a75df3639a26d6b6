"""What one party sees: every message it receives and every value it decrypts, in order.

Attacks replay views, and leakage tables are asserted on them; nothing else may feed an attack.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.wire.codec import Message


@dataclass(frozen=True, eq=False)
class Received:
    """A message as it came out of the codec."""

    sender: str
    message: Message


@dataclass(frozen=True, eq=False)
class Decrypted:
    """Values that the party decrypted with its own key from the sender's ciphertexts."""

    sender: str
    step: int
    values: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Learned:
    """Numbers in clear that no message shows as they are.

    A party's own gradient once its masks are off, or predictions that were meant for it.
    """

    sender: str
    step: int
    values: NDArray[np.float64]


@dataclass
class View:
    """The recorded view of one party."""

    party: str
    entries: list[Received | Decrypted | Learned] = field(default_factory=list)

    def received(self, kind: type[Message] | None = None) -> list[Received]:
        """The received messages, or those of one kind, in order."""
        return [
            entry
            for entry in self.entries
            if isinstance(entry, Received) and (kind is None or isinstance(entry.message, kind))
        ]

    def decrypted(self) -> list[Decrypted]:
        """The decrypted values, in order."""
        return [entry for entry in self.entries if isinstance(entry, Decrypted)]

    def learned(self) -> list[Learned]:
        """The numbers in clear beside the messages, in order."""
        return [entry for entry in self.entries if isinstance(entry, Learned)]
