"""What server and clients of one federation agree on: method, settings and blocks."""

import hashlib
from dataclasses import dataclass

import numpy as np

from securevfl.errors import ConfigError
from securevfl.protocols.horizontal.blocks import Blocks
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.settings import Settings


@dataclass(frozen=True)
class Assignment:
    """A client that takes part in a round, and the block that its group uploads."""

    client: int
    block: int


@dataclass(frozen=True, eq=False)
class Federation:
    """A method with its settings on a model with its blocks.

    Attributes:
        method: of everyone.
        settings: of everyone.
        blocks: that clients upload: one of everything where the method is not blockwise, whatever
            was given.

    Raises:
        ConfigError: b does not divide m.
    """

    method: Method
    settings: Settings
    blocks: Blocks

    def __post_init__(self) -> None:
        if not self.method.blockwise:
            object.__setattr__(self, "blocks", Blocks.whole(self.blocks.parameters))
        taking_part, blocks = self.settings.taking_part, len(self.blocks)
        if taking_part % blocks:
            fits = [n for n in range(1, taking_part + 1) if taking_part % n == 0]
            raise ConfigError(
                f"blocks = {blocks}: groups of one size need a divisor of taking_part = "
                f"{taking_part}, one of {', '.join(map(str, fits))}"
            )

    @property
    def digest(self) -> bytes:
        """Of all that server and clients must agree on, 32 bytes: the job hash of envelopes."""
        said = hashlib.sha256(repr((self.method, self.settings)).encode())
        for entries in (*self.blocks.own, self.blocks.shared):
            said.update(np.int64(len(entries)).tobytes() + entries.astype("<i8").tobytes())
        return said.digest()

    @property
    def group_size(self) -> int:
        """Clients that upload the same block, m/b: the paper's K."""
        return self.settings.taking_part // len(self.blocks)

    def assignments(self, round_index: int) -> tuple[Assignment, ...]:
        """Who takes part in a round: m of M without replacement, cut into groups, one a block.

        Source: FedBCGD, algorithm 1.
        """
        clients = self.settings.clients
        # Where a client's own draws have its number stands one that no client has.
        generator = np.random.default_rng((self.settings.seed, round_index, clients))
        drawn = generator.choice(clients, self.settings.taking_part, replace=False)
        return tuple(
            Assignment(int(client), place // self.group_size) for place, client in enumerate(drawn)
        )
