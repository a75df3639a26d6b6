"""Secure aggregation: each client adds pairwise masks that cancel in its group's sum.

Blocks are summed within the group that uploads them, the shared block over all participants. A
round:

1. After its local training a client sends a fresh X25519 key (`Ready`).
2. After a deadline the server closes the *roster* of these clients and sends it with all keys
(`Roster`). Clients that are late or gone are not on it and share no masks. A client that is alone
in its group is removed too, since its sum would be its upload.
3. Each client on the roster sends its upload in fixed point plus masks modulo 2^64
(`MaskedUpload`). Its key is used for one agreement, so there is never a second sum of the same
uploads.
4. If all uploads arrive, the masks cancel, and the server announces that the round counts.
Otherwise it announces that the round is void (`Closed`). It then has learned nothing, or only the
intended sums if the missing upload arrives late. Restarting with the survivors would not be safe:
the late upload would complete the first sum, and the difference of the two sums would be this
upload.

Learns:
    server: the sum of each block over its group, the sum of the shared block, who took part in
        which group, and who was late. It learns no single upload unless it has the keys of all
        others in a group. An honest server is assumed: it distributes the keys, and one that
        replaces them by its own sees everything.
    clients: names, groups and keys of the other participants. In a group of two, a client can
        subtract its own upload from the sum, which it learns with the next θ, and has the other's.
    everybody who gets θ: what the sums reveal, which no mask hides; see `privacy.clients`.
Source: Bonawitz et al., CCS 2017, section 4, without the secret shares that recover from drop-outs.
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
from securevfl.horizontal.client import ClientState, LocalResult
from securevfl.horizontal.codings import Noisy
from securevfl.horizontal.federation import SERVER, Federation, Method, number
from securevfl.horizontal.server import ServerState, Totals
from securevfl.privacy.mechanisms import GRID
from securevfl.runtime.channel import Channel, expect_shape
from securevfl.runtime.costs import Costs
from securevfl.wire.codec import Blobs, StepMessage, message_kind

FRACTION_BITS = 40
# Sums of all that take part stay below 2^62, so that none can wrap.
_SUM_BOUND = 2.0 ** (62 - FRACTION_BITS)
_LEAST_GROUP = 2


@message_kind(90, stage="round")
class Ready(StepMessage):
    """Sent after local training: the client's X25519 key of this round, 32 bytes."""

    key: bytes


@message_kind(91, stage="round")
class Roster(StepMessage):
    """Names, keys and blocks of the participants; without the receiver if it is left out."""

    names: Blobs
    keys: Blobs
    blocks: RingArray


@message_kind(92, stage="round", carries="shares", shows="updates")
class MaskedUpload(StepMessage):
    """A block and the shared block in fixed point, plus masks that cancel in the sum."""

    own: RingArray
    shared: RingArray


@message_kind(93, stage="round")
class Closed(StepMessage):
    """Whether the round counts."""

    counts: bool


@dataclass(frozen=True, eq=False)
class Sums:
    """Per block with a group, the sum and the number of clients; the shared block over all."""

    own: Mapping[int, FloatArray]
    shared: FloatArray
    uploads: Mapping[int, int]


@dataclass(frozen=True)
class Masked:
    """Secure aggregation: sums of blocks per group, and of the shared block over all.

    A client that is late with its training is left out of a round's sums; one that is gone after
    that ends the run.

    Attributes:
        timeout_seconds: how long the server waits for a next client; by default for all of them.
        noise: clips uploads before they are masked, and is added to their sums; None does neither.

    Raises:
        ConfigError: a timeout that is no time, or noise that is not `Noisy`.
    """

    timeout_seconds: float | None = None
    noise: Noisy | None = None

    def __post_init__(self) -> None:
        if not (
            self.timeout_seconds is None or number("timeout_seconds", self.timeout_seconds) > 0
        ):
            raise ConfigError(f"timeout_seconds = {self.timeout_seconds}: expected more than 0")
        if not isinstance(self.noise, Noisy | None):
            raise ConfigError(f"noise = {self.noise!r}: expected Noisy(…)")

    def check(self, federation: Federation) -> None:
        """Require two clients per group and sums that fit the noise grid, or a ConfigError."""
        if federation.group_size < _LEAST_GROUP:
            raise ConfigError(
                "masked uploads need groups of at least 2 clients, these have one: a sum of one "
                "upload is that upload; take more clients a round, or fewer blocks"
            )
        uploads = federation.settings.taking_part
        coarsest = uploads * 2.0**-FRACTION_BITS
        if self.noise is not None and self.noise.unit <= coarsest:
            raise ConfigError(
                f"clip = {self.noise.unit * GRID:g}: masked sums of {uploads} uploads need more "
                f"than {coarsest * GRID:.2g}"
            )

    def learns(self, method: Method) -> Mapping[str, str]:
        """Sums at the server; clients hear of each other."""
        clear = method.learns
        learned = f"{clear['client']}; who takes part beside it"
        if self.noise is None:
            learned += "; in a group of two, with the next θ, the other's upload"
        return {
            "server": "per block the sum of its group's uploads, and the sum of all shared blocks; "
            "no single upload, if it forwards the clients' own keys",
            "client": learned,
        }

    async def give(
        self, federation: Federation, channel: Channel, costs: Costs, step: int, result: LocalResult
    ) -> ClientState | None:
        """At the client: send the masked upload.

        Returns:
            What to keep, or None where the upload does not count.

        Raises:
            PeerError: the server is gone or broke the protocol.
        """
        upload, kept = result.upload, result.state
        if self.noise is not None:
            upload, kept = self.noise.clipped(federation, upload, kept)
        cut = [len(federation.blocks.own[upload.block])]
        parts = np.split(upload.changes, cut), np.split(upload.controls, cut)
        own, shared = (np.concatenate(each) for each in zip(*parts, strict=True))
        counts = await give_masked(
            channel, costs, federation.digest, step=step, block=upload.block, own=own, shared=shared
        )
        return kept if counts else None

    async def take(
        self, federation: Federation, channel: Channel, state: ServerState, names: Mapping[str, int]
    ) -> Totals:
        """At the server: the sums over the roster; a PeerError if a client is gone or invalid."""
        blocks, parts = federation.blocks, 1 + federation.method.corrects
        due = federation.assignments(state.round_index)
        sums = await take_masked(
            channel,
            {name: due[client] for name, client in names.items()},
            step=state.round_index,
            sizes=[parts * len(own) for own in blocks.own],
            shared=parts * len(blocks.shared),
            timeout_seconds=self.timeout_seconds,
        )
        for block in range(len(blocks)):
            if not sums.uploads.get(block, 0):
                raise PeerTimeout(f"block {block}: fewer than 2 clients of its group were ready")
        every = np.zeros((parts, blocks.parameters))
        for block, values in sums.own.items():
            every[:, blocks.own[block]] = values.reshape(parts, -1)
        every[:, blocks.shared] = sums.shared.reshape(parts, -1)
        controls = every[1] if parts > 1 else every[0, :0]
        uploads = tuple(sums.uploads[block] for block in range(len(blocks)))
        if self.noise is not None:
            return self.noise.noisy(Totals(every[0], controls, uploads), state.weights)
        dtype = state.weights.dtype
        return Totals(every[0].astype(dtype), controls.astype(dtype), uploads)


async def give_masked(
    channel: Channel,
    costs: Costs,
    job_hash: bytes,
    *,
    step: int,
    block: int,
    own: RealArray,
    shared: RealArray,
) -> bool:
    """The client's side after local training: steps 1, 3 and 4 of a round.

    `own` is summed over the group that uploads the block, `shared` over everyone; masks are bound
    to the job.

    Returns:
        Whether the upload counts; if not, the client is as if it had not taken part.

    Raises:
        RangeExceeded: a value that is not finite, or that could make a sum wrap.
        PeerViolation: a roster on which this upload would not be hidden.
    """
    async with costs.compute("encrypt"):
        key = MaskKey.generate()
    await channel.send(SERVER, Ready(step, key.public_bytes))
    _, roster = await channel.receive([SERVER], Roster, step)
    name = channel.name
    members, keys = _members(name, key.public_bytes, block, roster)
    if not members:
        return False
    async with costs.compute("encrypt"):
        peers = {other: public for other, public in keys.items() if other != name}
        masks = key.agree(name, peers, job_hash)
        bound = _SUM_BOUND / len(keys)
        message = MaskedUpload(
            step,
            _masked(masks, members, f"round {step}, block {block}", own, bound),
            _masked(masks, list(keys), f"round {step}, shared", shared, bound),
        )
    await channel.send(SERVER, message)
    _, closed = await channel.receive([SERVER], Closed, step)
    return closed.counts


async def take_masked(
    channel: Channel,
    blocks: Mapping[str, int],
    *,
    step: int,
    sizes: Sequence[int],
    shared: int,
    timeout_seconds: float | None = None,
) -> Sums:
    """The server's side: steps 2 and 4 of a round.

    `blocks` has those of all clients that were sampled, `sizes` the numbers of each block in an
    upload, `shared` those of the shared one; the timeout is of a wait for the next client that is
    ready, and then for the next upload.

    Raises:
        PeerTimeout: a client of the roster did not upload, or no group of two was ready; the
            round is void.
        PeerViolation: an upload of another shape, or none.
    """
    keys = await _keys_of_ready(channel, step, blocks, timeout_seconds)
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
    await _notify(channel, blocks, roster)
    if not listed:
        raise PeerTimeout(f"round {step}: no group has 2 clients that are ready; it is void")
    own_sums = {block: np.zeros(sizes[block], np.uint64) for block in listed.values()}
    shared_sum = np.zeros(shared, np.uint64)
    pending = set(listed)
    try:
        while pending:
            sender, message = await channel.receive(
                pending, MaskedUpload, step, timeout_seconds=timeout_seconds
            )
            expect_shape(sender, message.own, own_sums[listed[sender]].shape)
            expect_shape(sender, message.shared, shared_sum.shape)
            own_sums[listed[sender]] += message.own
            shared_sum += message.shared
            pending.remove(sender)
    finally:
        await _notify(channel, listed, Closed(step, not pending))
    return Sums(
        {block: decode(from_ring(total), FRACTION_BITS) for block, total in own_sums.items()},
        decode(from_ring(shared_sum), FRACTION_BITS),
        Counter(listed.values()),
    )


async def _keys_of_ready(
    channel: Channel, step: int, clients: Collection[str], timeout_seconds: float | None
) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    while len(keys) < len(clients):
        pending = [name for name in clients if name not in keys]
        try:
            sender, message = await channel.receive(pending, Ready, timeout_seconds=timeout_seconds)
        except PeerTimeout:
            break
        if message.step > step:
            raise UnexpectedMessage(f"{sender} is ready in round {message.step}, not {step}")
        if message.step == step:  # else it was late for an earlier round
            keys[sender] = message.key
    return keys


async def _notify(channel: Channel, names: Iterable[str], message: StepMessage) -> None:
    for name in names:
        with suppress(PeerUnreachable):  # a client that is gone needs no message
            await channel.send(name, message)


def _members(
    own_name: str, own_key: bytes, own_block: int, roster: Roster
) -> tuple[list[str], dict[str, bytes]]:
    """The group's names and all keys by name; no names if this client is left out."""
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
