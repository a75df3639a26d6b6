"""What a party keeps from round to round, to go on from: its shares, and nothing made ahead.

A session that goes on has fresh keys and pads. Shares of ζ stay as they are: nobody has seen them,
and what was sent of the round that is taken again was under pads of which each is used once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import ConfigError, DataError
from securevfl.protocols.blind.ahead import Pads
from securevfl.protocols.blind.block import Block
from securevfl.protocols.blind.rounds import SharedWeights
from securevfl.protocols.session.state_seal import StateSeal

OWN, HELD = "own", "held "


@dataclass
class Shares:
    """A party's, of θ and of the exchanged point ζ; fills `memory.Remembers`.

    Attributes:
        own: of its own parameters, shape (2, P).
        held: of those whose links it holds, by owner, shape (2, P).
        seal: of states on disk; None where none is written.
    """

    own: RingArray
    held: dict[str, RingArray]
    seal: StateSeal | None

    def begin(self, own: SharedWeights) -> None:
        """As they are before the first round, where owners know θ."""
        self.own = own.shares
        if self.seal is not None:
            self.seal.renew()

    def after(self, index: int, own: SharedWeights, pads: Pads) -> None:
        """As they are after a round."""
        self.own = own.shares
        self.held = {name: held.path.pop(index) for name, held in pads.held.items()}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All of it, by name, or sealed."""
        arrays = {OWN: self.own, **{HELD + name: held for name, held in self.held.items()}}
        return arrays if self.seal is None else self.seal.seal(arrays)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put all of it back.

        Raises:
            DataError: shares of other sizes, or sealed ones whose key is gone.
        """
        found = arrays if self.seal is None else self.seal.open(arrays)
        due = {OWN: self.own, **{HELD + name: held for name, held in self.held.items()}}
        if {n: (a.shape, a.dtype) for n, a in found.items()} != {
            n: (a.shape, a.dtype) for n, a in due.items()
        }:
            raise DataError("session state: not the shares that this party keeps")
        self.own = np.array(found[OWN])
        self.held = {name: np.array(found[HELD + name]) for name in self.held}


def shares_of(block: Block) -> Shares:
    """Room for a party's shares.

    Raises:
        ConfigError: states are to be written, and there is no place for the key that seals them.
    """
    place, plan = block.training.workplace, block.training.plan
    agreement, seal = block.agreement, None
    if place.checkpoints is not None and place.pads is not None:
        seal = place.pads.state_seal(plan.hash.hex())
    elif place.checkpoints is not None and plan.job.output.checkpoint_every:
        raise ConfigError("checkpoints of shares are sealed: say where keys are kept (pads)")
    return Shares(
        _nothing(agreement.own_columns),
        {name: _nothing(agreement.columns[name]) for name in block.owners},
        seal,
    )


def _nothing(columns: int) -> RingArray:
    return np.zeros((2, columns), np.uint64)
