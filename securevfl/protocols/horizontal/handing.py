"""How uploads come from clients to the server over a channel: one message each, or masked sums.

Learns:
    server: with `Sealed` what its coding says; with `Masked` sums alone, see `protection`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from securevfl.errors import ConfigError, PeerTimeout
from securevfl.privacy.mechanisms import GRID
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.local import Broadcast, ClientState, LocalResult
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.noisy import Noisy
from securevfl.protocols.horizontal.protection import (
    FRACTION_BITS,
    MaskedGiver,
    MaskedTaker,
    require_groups,
)
from securevfl.protocols.horizontal.server import ServerState, Totals
from securevfl.protocols.horizontal.settings import number
from securevfl.protocols.horizontal.uploads import Coding, Plain
from securevfl.runtime.channel import Channel, collect
from securevfl.runtime.costs import Costs

SERVER = "server"


@dataclass(frozen=True, eq=False)
class End:
    """One party's end of a federation."""

    federation: Federation
    channel: Channel
    costs: Costs


class Handing(Protocol):
    """Both ends of a way for uploads."""

    def check(self, federation: Federation) -> None:
        """Check that a federation's uploads can go this way.

        Raises:
            ConfigError: they cannot.
        """

    def learns(self, method: Method) -> Mapping[str, str]:
        """Who learns what of a method's uploads, by role."""

    async def give(self, end: End, broadcast: Broadcast, result: LocalResult) -> ClientState | None:
        """At the client: send its upload.

        Returns:
            What to keep, or None where the upload does not count.

        Raises:
            PeerError: the server is gone or broke the protocol.
        """

    async def take(self, end: End, state: ServerState, clients: Mapping[str, int]) -> Totals:
        """At the server: the sums of a round's uploads, of these clients by the parties they are.

        Raises:
            PeerError: a client is gone or sent what does not fit.
        """


@dataclass(frozen=True)
class Sealed:
    """One message a client, as a coding makes it; whoever is gone ends the run."""

    coding: Coding = field(default_factory=Plain)

    def check(self, federation: Federation) -> None:
        """Every federation can."""

    def learns(self, method: Method) -> Mapping[str, str]:
        """As the coding says."""
        return self.coding.learns(method)

    async def give(self, end: End, broadcast: Broadcast, result: LocalResult) -> ClientState:
        """Send it."""
        async with end.costs.compute("local"):
            message, kept = self.coding.seal(end.federation, result.upload, broadcast, result.state)
        await end.channel.send(SERVER, message)
        return kept

    async def take(self, end: End, state: ServerState, clients: Mapping[str, int]) -> Totals:
        """Wait for all."""
        messages = await collect(end.channel, clients, self.coding.kind, state.round_index)
        async with end.costs.compute("local"):
            uploads = {clients[name]: message for name, message in messages.items()}
            return self.coding.open(end.federation, state, uploads)


@dataclass(frozen=True)
class Masked:
    """Secure sums, of blocks by group and of the shared block over everyone (`protection`).

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
        """Check that no group has one client alone, and that sums keep the grid of noise.

        Raises:
            ConfigError: groups of one, or a clip too short for the masks' fixed point.
        """
        require_groups(federation.group_size)
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
        heard = f"{clear['client']}; who takes part beside it"
        if self.noise is None:
            heard += "; in a group of two, with the next θ, the other's upload"
        return {
            "server": "per block the sum of its group's uploads, of the shared block everyone's; "
            "no single upload, if it hands on the clients' own keys",
            "client": heard,
        }

    async def give(self, end: End, broadcast: Broadcast, result: LocalResult) -> ClientState | None:
        """Send it under masks."""
        upload, kept, digest = result.upload, result.state, end.federation.digest
        if self.noise is not None:
            upload, kept = self.noise.clipped(end.federation, upload, kept)
        giver = MaskedGiver(end.channel, end.costs, SERVER, digest)
        own = np.concatenate([upload.own, upload.own_control])
        shared = np.concatenate([upload.shared, upload.shared_control])
        counts = await giver.give(broadcast.round_index, upload.block, own, shared)
        return kept if counts else None

    async def take(self, end: End, state: ServerState, clients: Mapping[str, int]) -> Totals:
        """Sums of whoever is on the roster."""
        federation, blocks = end.federation, end.federation.blocks
        parts = 1 + federation.method.corrects
        sizes = [parts * len(own) for own in blocks.own]
        taker = MaskedTaker(end.channel, sizes, parts * len(blocks.shared), self.timeout_seconds)
        due = {each.client: each.block for each in federation.assignments(state.round_index)}
        groups = {name: due[client] for name, client in clients.items()}
        sums = await taker.take(state.round_index, groups)
        for block in range(len(blocks)):
            if not sums.uploads.get(block, 0):
                raise PeerTimeout(f"block {block}: fewer than 2 clients of its group were ready")
        every = np.zeros((parts, blocks.parameters))
        for entries, values in [
            *((blocks.own[block], values) for block, values in sums.own.items()),
            (blocks.shared, sums.shared),
        ]:
            every[:, entries] = values.reshape(parts, -1)
        controls = every[1] if parts > 1 else every[0, :0]
        uploads = tuple(sums.uploads[block] for block in range(len(blocks)))
        if self.noise is None:
            dtype = state.weights.dtype
            return Totals(every[0].astype(dtype), controls.astype(dtype), uploads)
        return self.noise.noisy(Totals(every[0], controls, uploads), state.weights)
