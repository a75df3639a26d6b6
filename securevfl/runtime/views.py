"""What one party sees: every message it receives and every value it decrypts, in order.

Where values stay in shares, its own shares are part of it: they are what words are combined with.

Attacks replay views, and leakage tables are asserted on them; nothing else may feed an attack.
Programs and channels work the same where nothing is recorded.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.wire.codec import Message, Shows, Stage, StepMessage


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

    Attributes:
        sender: who they came from.
        step: of the job.
        shows: what they are, as of a message.
        values: the numbers.
    """

    sender: str
    step: int
    shows: Shows
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Share:
    """A party's share of something, or the pad that it drew: the other party has the rest.

    Attributes:
        owner: whose parameters it belongs to.
        what: of what.
        step: of which round.
        values: residues.
    """

    owner: str
    what: str
    step: int
    values: NDArray[np.uint64]


Entry = Received | Decrypted | Learned | Share


@dataclass
class View:
    """The recorded view of one party."""

    party: str
    entries: list[Entry] = field(default_factory=list)

    def received(self, kind: type[Message] | None = None) -> list[Received]:
        """The received messages, or those of one kind, in order."""
        return [
            entry
            for entry in self.entries
            if isinstance(entry, Received) and (kind is None or isinstance(entry.message, kind))
        ]

    def showing(self, shows: Shows, stage: Stage = "round") -> list[tuple[str, StepMessage]]:
        """The received messages that show this, each with its sender, in order."""
        return [
            (entry.sender, entry.message)
            for entry in self.received(StepMessage)
            if isinstance(entry.message, StepMessage)
            and (entry.message.shows, entry.message.stage) == (shows, stage)
        ]

    def decrypted(self) -> list[Decrypted]:
        """The decrypted values, in order."""
        return [entry for entry in self.entries if isinstance(entry, Decrypted)]

    def shares(self, owner: str, what: str) -> dict[int, NDArray[np.uint64]]:
        """The party's shares of something, by round."""
        return {
            entry.step: entry.values
            for entry in self.entries
            if isinstance(entry, Share) and (entry.owner, entry.what) == (owner, what)
        }

    def learned(self) -> list[Learned]:
        """The numbers in clear beside the messages, in order."""
        return [entry for entry in self.entries if isinstance(entry, Learned)]


class Sees(Protocol):
    """A channel whose party's view may be recorded."""

    @property
    def view(self) -> View | None:
        """What the party has seen so far; None where that is not recorded."""


def record(channel: Sees, entry: Entry) -> None:
    """Put an entry into a party's view, where one is recorded."""
    if channel.view is not None:
        channel.view.entries.append(entry)
