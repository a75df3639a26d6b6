"""What a party keeps from round to round, to go on from: its shares, and nothing made ahead.

A session that goes on has fresh keys and pads. Shares of ζ stay as they are: nobody has seen them,
and what was sent of the round that is taken again was under pads of which each is used once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import ConfigError, DataError
from securevfl.protocols.blind.ahead import Pads
from securevfl.protocols.blind.block import Whitening
from securevfl.protocols.blind.links import owners_held_by
from securevfl.protocols.blind.rounds import SharedWeights
from securevfl.protocols.session.state_seal import StateSeal
from securevfl.protocols.vertical.program import Training

OWN, HELD, INTO, OUT = "own", "held ", "into", "out"


class Shares:
    """A party's, of θ and of the exchanged point ζ, with the basis; fills `memory.Remembers`.

    Args:
        columns: P of this party.
        owners: whose links it holds.
        seal: of states on disk; None where none is written.
    """

    def __init__(self, columns: int, owners: Sequence[str], seal: StateSeal | None) -> None:
        self._columns, self._owners, self._seal = columns, owners, seal
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def own(self) -> RingArray:
        """Of its own parameters, shape (2, P)."""
        return self._arrays[OWN]

    @property
    def held(self) -> Mapping[str, RingArray]:
        """Of those whose links it holds, by owner, shape (2, P of the owner); once it goes on."""
        return {n.removeprefix(HELD): a for n, a in self._arrays.items() if n.startswith(HELD)}

    @property
    def whitening(self) -> Whitening:
        """That shares of its own parameters are in."""
        return self._arrays[INTO], self._arrays[OUT]

    def begin(self, own: SharedWeights, whitening: Whitening) -> None:
        """As they are before the first round, where owners know θ."""
        self._arrays = dict(zip((OWN, INTO, OUT), (own.shares, *whitening), strict=True))
        if self._seal is not None:
            self._seal.renew()

    def after(self, index: int, own: SharedWeights, pads: Pads) -> None:
        """As they are after a round."""
        self._arrays[OWN] = own.shares
        for name, held in pads.held.items():
            self._arrays[HELD + name] = held.path.pop(index)

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All of it, by name, or sealed."""
        return dict(self._arrays) if self._seal is None else self._seal.seal(self._arrays)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put all of it back.

        Raises:
            DataError: not what a party like this keeps, or sealed under a key that is gone.
        """
        found = dict(arrays) if self._seal is None else self._seal.open(arrays)
        held = {HELD + name for name in self._owners}
        square = self._columns, self._columns
        shapes = {OWN: (2, self._columns), INTO: square, OUT: square}
        if found.keys() - held != shapes.keys() or any(
            found[name].shape != shape for name, shape in shapes.items()
        ):
            raise DataError("session state: not the shares that this party keeps")
        self._arrays = {name: np.array(values) for name, values in found.items()}


def shares_of(training: Training) -> Shares:
    """Room for a party's shares.

    Raises:
        ConfigError: states are to be written, and there is no place for the key that seals them.
    """
    place, plan, seal = training.workplace, training.plan, None
    if place.checkpoints is not None and place.pads is not None:
        seal = place.pads.state_seal(plan.hash.hex())
    elif place.checkpoints is not None and plan.job.output.checkpoint_every:
        raise ConfigError("checkpoints of shares are sealed: say where keys are kept (pads)")
    return Shares(len(training.model.weights), owners_held_by(training.party), seal)
