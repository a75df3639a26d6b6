"""What the strategy tells a client beside the model: which round, who it is, what it uploads."""

import hashlib
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from typing import Self

import numpy as np
from flwr.app import ConfigRecord

from securevfl.arrays import IntArray
from securevfl.errors import MalformedMessage
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.uploads import Coding

NAME = "securevfl"
MODEL, CONFIG, CONTROL, UPLOAD, REFUSED = "arrays", "config", "control", "upload", "refused"
"""Names of records in a message; the first two are those of Flower's own strategies."""


@dataclass(frozen=True)
class Orders:
    """One client's part of a round.

    Attributes:
        agreed: digest of what both ends have to agree on, see `agreed_on`.
        round_index: counted from 0.
        client: its number.
        block: of its group.
        counted: its last round whose upload counted, or −1.
        own: first entry of each run of entries of its block, and the entry after its last, in turn.
        shared: the same of the shared block.
    """

    agreed: bytes
    round_index: int
    client: int
    block: int
    counted: int
    own: list[int]
    shared: list[int]

    def record(self) -> ConfigRecord:
        """As it travels."""
        return ConfigRecord(asdict(self))

    @classmethod
    def of(cls, record: ConfigRecord) -> Self:
        """What arrived.

        Raises:
            MalformedMessage: other fields or types.
        """
        if record.keys() != cls.__dataclass_fields__.keys():
            raise MalformedMessage(f"orders hold {', '.join(record)}")
        orders = cls(**record)  # type: ignore[arg-type]  # checked next
        if not isinstance(orders.agreed, bytes):
            raise MalformedMessage("orders without a digest")
        whole = orders.round_index, orders.client, orders.block, orders.counted
        runs = orders.own, orders.shared
        if not (
            all(isinstance(each, list) for each in runs)
            and all(isinstance(each, int) for each in chain(whole, *runs))
        ):
            raise MalformedMessage("orders hold other things than whole numbers")
        return orders


def agreed_on(federation: Federation, coding: Coding) -> bytes:
    """Of method, settings, blocks and coding, 32 bytes."""
    return hashlib.sha256(federation.digest + coding.terms.encode()).digest()


def runs_of(entries: IntArray) -> list[int]:
    """Ascending entries as runs: starts and ends in turn."""
    if not len(entries):
        return []
    gaps = np.flatnonzero(np.diff(entries) > 1)
    starts = entries[np.concatenate([[0], gaps + 1])]
    ends = entries[np.concatenate([gaps, [len(entries) - 1]])] + 1
    return [int(each) for each in np.column_stack([starts, ends]).ravel()]


def entries_of(runs: list[int], parameters: int) -> IntArray:
    """The inverse.

    Raises:
        MalformedMessage: runs that are not ascending within a model of so many parameters.
    """
    ascending = all(before < after for before, after in pairwise(runs))
    if len(runs) % 2 or not ascending or (runs and not 0 <= runs[0] < runs[-1] <= parameters):
        raise MalformedMessage(f"blocks that do not fit a model of {parameters} parameters")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return np.concatenate([np.arange(0), *(np.arange(start, end) for start, end in pairs)])
