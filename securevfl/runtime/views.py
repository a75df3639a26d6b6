"""What one party sees: every message that it receives and every value that it decrypts, in order.

If values stay in shares, the party's own shares belong to its view, as messages are combined with
them.

Attacks replay views, and leakage tables are tested on them; attacks have no other input. Programs
and channels behave the same without recording.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.wire.codec import Message, Shows, Stage, StepMessage


@dataclass(frozen=True, eq=False)
class Received:
    """A decoded message."""

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
    """Numbers in clear that no message contains as they are.

    Examples are a party's own gradient after unmasking, and predictions of its rows.

    Attributes:
        sender: the party that they came from.
        step: of the job.
        shows: what they are, see `wire.codec.Message`.
        values: the numbers.
    """

    sender: str
    step: int
    shows: Shows
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Share:
    """A party's share or pad; another party holds the rest.

    Attributes:
        owner: the party with the parameters.
        what: the name of the shared quantity.
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
        """The party's shares of a quantity, by round."""
        return {
            entry.step: entry.values
            for entry in self.entries
            if isinstance(entry, Share) and (entry.owner, entry.what) == (owner, what)
        }

    def learned(self) -> list[Learned]:
        """The numbers in clear besides the messages, in order."""
        return [entry for entry in self.entries if isinstance(entry, Learned)]


class Sees(Protocol):
    """A channel whose party's view may be recorded."""

    @property
    def view(self) -> View | None:
        """What the party has seen so far; None if this is not recorded."""


def record(channel: Sees, entry: Entry) -> None:
    """Add an entry to a party's view, if it is recorded."""
    if channel.view is not None:
        channel.view.entries.append(entry)
