"""Only sums of uploads: each client adds pairwise masks that cancel within its group.

Blocks are summed within the group that uploads them, the shared block over everyone who takes part
(Bonawitz et al., CCS 2017, section 4: masks that cancel, without the shares that undo masks of
clients that drop out). A round:

1. A client that has *finished* its local training sends a fresh X25519 key (`Ready`).
2. After a deadline the server closes the *roster* of those that did and sends each all their keys
   (`Roster`). A client that is late or gone is not on it, and no mask is of it. A group with one
   client left is taken off too: a sum of one is that client's upload.
3. Each client on the roster sends its upload in fixed point plus masks modulo 2^64
   (`MaskedUpload`), once: its key agrees once, so there is no second sum of the same uploads.
4. If all came, the masks cancel, and everyone is told that the round counts. If one did not, the
   round is void and everyone is told so (`Closed`): nothing was learned, or, where the missing
   upload comes late, the sums that were meant to be. Starting over with the survivors would not be
   safe: the late upload would complete the first sum, and the difference of the two would be it.

Learns:
    server: per block the sum over its group, the sum of the shared block, who took part in which
        group, who was late. No upload, unless it has the keys of all others in a group; it hands on
        the keys, so a server that swaps them for its own sees everything: an honest one is assumed.
    clients: names, groups and keys of those that take part beside them. With the next θ a client in
        a group of two can take its own upload off the sum and has the other's.
    everybody who gets θ: what the sums tell, which no mask hides; see `privacy.clients`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, RealArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, from_ring, to_ring
from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import (
    ConfigError,
    PeerTimeout,
    PeerUnreachable,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.runtime.channel import Channel, expect_shape
from securevfl.runtime.costs import Costs
from securevfl.wire.codec import Blobs, StepMessage, message_kind

FRACTION_BITS = 40
# Sums of all that take part stay below 2^62, so that none can wrap.
_SUM_BOUND = 2.0 ** (62 - FRACTION_BITS)
_LEAST_GROUP = 2


@message_kind(90, stage="round")
class Ready(StepMessage):
    """Local training is done; the X25519 key of this round, 32 bytes."""

    key: bytes


@message_kind(91, stage="round")
class Roster(StepMessage):
    """Who takes part: names, keys and blocks, one each; without the receiver if it does not."""

    names: Blobs
    keys: Blobs
    blocks: RingArray


@message_kind(92, stage="round", carries="shares", shows="updates")
class MaskedUpload(StepMessage):
    """A block and the shared block in fixed point, plus masks that cancel in sums."""

    own: RingArray
    shared: RingArray


@message_kind(93, stage="round")
class Closed(StepMessage):
    """Whether the round counts."""

    counts: bool


@dataclass(frozen=True, eq=False)
class Sums:
    """What the server has after a masked round.

    Attributes:
        own: by block, the sum over its group; a block without a group is not there.
        shared: the sum over everyone.
        uploads: by block, over how many clients.
    """

    own: Mapping[int, FloatArray]
    shared: FloatArray
    uploads: Mapping[int, int]


def require_groups(group_size: int) -> None:
    """Check that every sum has more than one summand.

    Raises:
        ConfigError: groups of one client.
    """
    if group_size < _LEAST_GROUP:
        raise ConfigError(
            "masked uploads need groups of at least 2 clients, these have one: a sum of one upload "
            "is that upload; take more clients a round, or fewer blocks"
        )


class MaskedGiver:
    """A client's end.

    Args:
        channel: the client's.
        costs: the client's ledger.
        server: its name.
        job_hash: of the federation; binds masks to it.
    """

    def __init__(self, channel: Channel, costs: Costs, server: str, job_hash: bytes) -> None:
        self._channel = channel
        self._costs = costs
        self._server = server
        self._job_hash = job_hash

    async def give(self, step: int, block: int, own: RealArray, shared: RealArray) -> bool:
        """After local training: steps 1, 3 and 4 of a round.

        Args:
            step: the round.
            block: of the client's group.
            own: what is summed over the group, shape (n,).
            shared: what is summed over everyone, shape (n',).

        Returns:
            Whether the upload counts; if not, the client is as if it had not taken part.

        Raises:
            RangeExceeded: a value that is not finite, or that could make a sum wrap.
            PeerViolation: a roster on which this upload would not be hidden.
        """
        async with self._costs.compute("encrypt"):
            key = MaskKey.generate()
        await self._channel.send(self._server, Ready(step, key.public_bytes))
        _, roster = await self._channel.receive([self._server], Roster, step)
        name = self._channel.name
        members, keys = _members(name, key.public_bytes, block, roster)
        if not members:
            return False
        async with self._costs.compute("encrypt"):
            peers = {other: public for other, public in keys.items() if other != name}
            masks = key.agree(name, peers, self._job_hash)
            bound = _SUM_BOUND / len(keys)
            message = MaskedUpload(
                step,
                _masked(masks, members, f"round {step}, block {block}", own, bound),
                _masked(masks, list(keys), f"round {step}, shared", shared, bound),
            )
        await self._channel.send(self._server, message)
        _, closed = await self._channel.receive([self._server], Closed, step)
        return closed.counts


class MaskedTaker:
    """The server's end.

    Args:
        channel: the server's.
        sizes: by block, its numbers in an upload.
        shared: of the shared block, its numbers in an upload.
        timeout_seconds: how long to wait for a next client that is ready, and then for a next
            upload; by default for all of them.
    """

    def __init__(
        self,
        channel: Channel,
        sizes: Sequence[int],
        shared: int,
        timeout_seconds: float | None = None,
    ) -> None:
        self._channel = channel
        self._sizes = sizes
        self._shared = shared
        self._timeout = timeout_seconds

    async def take(self, step: int, blocks: Mapping[str, int]) -> Sums:
        """Steps 2 and 4 of a round.

        Args:
            step: the round.
            blocks: by client that was sampled, its group's block.

        Raises:
            PeerTimeout: a client of the roster did not upload, or no group of two was ready; the
                round is void.
            PeerViolation: an upload of another shape, or none.
        """
        keys = await self._ready(step, blocks)
        groups = Counter(blocks[name] for name in keys)
        listed = {
            name: block
            for name, block in blocks.items()
            if name in keys and groups[block] >= _LEAST_GROUP
        }
        roster = Roster(
            step,
            tuple(name.encode() for name in listed),
            tuple(keys[name] for name in listed),
            np.array(list(listed.values()), np.uint64),
        )
        # The late ones too: they find that they are not on it.
        await _tell(self._channel, blocks, roster)
        if not listed:
            raise PeerTimeout(f"round {step}: no group has 2 clients that are ready; it is void")
        counts = False
        try:
            sums = await self._uploads(step, listed)
            counts = True
        finally:
            await _tell(self._channel, listed, Closed(step, counts))
        return sums

    async def _ready(self, step: int, clients: Collection[str]) -> dict[str, bytes]:
        keys: dict[str, bytes] = {}
        while len(keys) < len(clients):
            pending = [name for name in clients if name not in keys]
            try:
                sender, message = await self._channel.receive(
                    pending, Ready, timeout_seconds=self._timeout
                )
            except PeerTimeout:
                break
            if message.step > step:
                raise UnexpectedMessage(f"{sender} is ready in round {message.step}, not {step}")
            if message.step == step:  # else it was late for an earlier round
                keys[sender] = message.key
        return keys

    async def _uploads(self, step: int, blocks: Mapping[str, int]) -> Sums:
        own = {block: np.zeros(self._sizes[block], np.uint64) for block in blocks.values()}
        shared = np.zeros(self._shared, np.uint64)
        pending = set(blocks)
        while pending:
            sender, message = await self._channel.receive(
                pending, MaskedUpload, step, timeout_seconds=self._timeout
            )
            pending.remove(sender)
            expect_shape(sender, message.own, own[blocks[sender]].shape)
            expect_shape(sender, message.shared, shared.shape)
            own[blocks[sender]] += message.own
            shared += message.shared
        return Sums(
            {block: decode(from_ring(total), FRACTION_BITS) for block, total in own.items()},
            decode(from_ring(shared), FRACTION_BITS),
            Counter(blocks.values()),
        )


async def _tell(channel: Channel, names: Iterable[str], message: StepMessage) -> None:
    for name in names:
        with suppress(PeerUnreachable):  # whoever is gone needs no word
            await channel.send(name, message)


def _members(
    own_name: str, own_key: bytes, own_block: int, roster: Roster
) -> tuple[list[str], dict[str, bytes]]:
    """The group's names, and everybody's keys by name; no names if this client is not on it."""
    if (
        len({len(roster.names), len(roster.keys), roster.blocks.size}) > 1
        or roster.blocks.ndim != 1
    ):
        raise PeerViolation("a roster without one key and one block a name")
    try:
        names = [name.decode() for name in roster.names]
    except UnicodeDecodeError as error:
        raise PeerViolation("a name on a roster is not UTF-8") from error
    keys = dict(zip(names, roster.keys, strict=True))
    if len(keys) < len(names):
        raise PeerViolation("a roster with a name twice")
    if own_name not in keys:
        return [], keys
    blocks = dict(zip(names, roster.blocks.tolist(), strict=True))
    if (keys[own_name], blocks[own_name]) != (own_key, own_block):
        raise PeerViolation("a roster with another key or block for this client than its own")
    members = [name for name in names if blocks[name] == own_block]
    if len(members) < _LEAST_GROUP:
        raise PeerViolation("a roster with this client alone in its group: the sum would be it")
    return members, keys


def _masked(
    masks: PairwiseMasks, members: list[str], context: str, values: RealArray, bound: float
) -> RingArray:
    encoded = encode(values, FRACTION_BITS, bound, "upload")
    return to_ring(encoded) + masks.zero_share(members, context, encoded.shape)
