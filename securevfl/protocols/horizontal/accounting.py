"""What a federation costs: numbers up and down, as they travel and as papers count them.

Papers count the mean upload of a client a round, in multiples of the p numbers of a model: 1, or 2
with control variates, over b under blocks. Downloads and the shared block are free there. Here
stands beside it what does travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from securevfl.protocols.horizontal.federation import Federation
from securevfl.wire.codec import Message

FLOAT_BYTES = 4


@dataclass(frozen=True)
class RoundFloats:
    """Numbers that travel in a round, over its m clients together, without a coding.

    Attributes:
        paper: the mean upload of a client as papers count it, p/b, or 2p/b with control variates.
        own: up, changes of clients' own blocks.
        shared: up, changes of the shared block.
        control: up, changes of control variates.
        down: θ to every client.
        down_control: κ to every client.
    """

    paper: float
    own: int
    shared: int
    control: int
    down: int
    down_control: int

    @property
    def up(self) -> int:
        """All that clients upload."""
        return self.own + self.shared + self.control

    @property
    def all_down(self) -> int:
        """All that clients download."""
        return self.down + self.down_control


def floats_of_round(federation: Federation) -> RoundFloats:
    """What every round of a federation sends."""
    blocks, clients = federation.blocks, federation.settings.taking_part
    corrects = federation.method.corrects
    own = federation.group_size * (blocks.parameters - len(blocks.shared))
    shared = clients * len(blocks.shared)
    down = clients * blocks.parameters
    return RoundFloats(
        paper=(1 + corrects) * blocks.parameters / len(blocks),
        own=own,
        shared=shared,
        control=corrects * (own + shared),
        down=down,
        down_control=corrects * down,
    )


def floats_in(message: Message) -> float:
    """Numbers in a message: entries of its arrays, and its bytes in numbers of 32 bits."""
    floats = 0.0
    for each in fields(message):
        value = getattr(message, each.name)
        if isinstance(value, np.ndarray):
            floats += value.size
        elif isinstance(value, bytes):
            floats += len(value) / FLOAT_BYTES
        elif isinstance(value, tuple):
            floats += sum(map(len, value)) / FLOAT_BYTES
    return floats


@dataclass(frozen=True)
class Round:
    """What one round cost, over its m clients together, and what it came to.

    Attributes:
        clients: who took part.
        paper_floats: as papers count, see `RoundFloats`, times what a coding saves.
        up_floats: numbers that clients sent.
        down_floats: numbers that the server sent.
        up_bytes: bytes that clients sent.
        down_bytes: bytes that the server sent.
        gradients: single rows' gradients that clients took.
        ends_s: seconds on the virtual clock when the server was done.
        score: of θ after it, where it was scored.
    """

    clients: tuple[int, ...]
    paper_floats: float
    up_floats: float
    down_floats: float
    up_bytes: int
    down_bytes: int
    gradients: int
    ends_s: float
    score: float | None


@dataclass(frozen=True)
class Spent:
    """What rounds cost together.

    Attributes:
        rounds: how many.
        paper_floats: as papers count: of the mean client, uploads alone.
        up_floats: numbers up, over the clients of all rounds.
        down_floats: numbers down, likewise.
        up_bytes: bytes up.
        down_bytes: bytes down.
        gradients: single rows' gradients.
        virtual_s: seconds on the virtual clock.
    """

    rounds: int
    paper_floats: float
    up_floats: float
    down_floats: float
    up_bytes: int
    down_bytes: int
    gradients: int
    virtual_s: float


def spent(rounds: Sequence[Round]) -> Spent:
    """The first rounds of a run together."""
    return Spent(
        rounds=len(rounds),
        paper_floats=sum(each.paper_floats for each in rounds),
        up_floats=sum(each.up_floats for each in rounds),
        down_floats=sum(each.down_floats for each in rounds),
        up_bytes=sum(each.up_bytes for each in rounds),
        down_bytes=sum(each.down_bytes for each in rounds),
        gradients=sum(each.gradients for each in rounds),
        virtual_s=rounds[-1].ends_s if rounds else 0.0,
    )


def spent_to(rounds: Sequence[Round], target: float) -> Spent | None:
    """What it cost to the first score of at least `target`; None where none reached it."""
    for done, each in enumerate(rounds, 1):
        if each.score is not None and each.score >= target:
            return spent(rounds[:done])
    return None
