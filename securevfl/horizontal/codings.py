"""Codings of single uploads: in clear, or clipped and summed with noise (client-level DP).

A coding turns an `Upload` into a message at the client, and a round's messages into `Totals` at the
server. Compressed uploads are in `compression`. Secure aggregation, which needs further messages,
is in `secure_aggregation` and is not a coding.

Learns:
    server: under `Plain` every single upload, see `Method.learns`; under `Noisy` likewise, but
        clipped to β. The server is trusted: it publishes θ and κ, which are computed from noisy
        sums only. See `privacy.clients` for the guarantee and its limits.
    clients, and everybody who gets θ: under `Noisy`, about one client no more than (ε, δ) allows,
        whatever its rows.
Source: McMahan et al., ICLR 2018 (`Noisy`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, RealArray
from securevfl.errors import PeerViolation, UnexpectedMessage
from securevfl.horizontal.client import Broadcast, ClientState, Upload
from securevfl.horizontal.federation import Federation, Method
from securevfl.horizontal.server import ServerState, Totals, total
from securevfl.privacy.clients import ClientNoise, ClientPromise, client_promise
from securevfl.privacy.mechanisms import GRID
from securevfl.privacy.streams import NoiseKey
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(81, stage="round", carries="values", shows="updates")
class BlockUpload(StepMessage):
    """From a client to the server: the changes of its block, of the shared block and of κ_j."""

    own: RealArray
    shared: RealArray
    own_control: RealArray
    shared_control: RealArray


class Coding(ABC):
    """A coding of uploads, as pure functions that any engine can call.

    Attributes:
        kind: the messages that it makes.
        terms: what both ends have to agree on.
    """

    kind: type[StepMessage]
    terms: str

    @abstractmethod
    def learns(self, method: Method) -> Mapping[str, str]:
        """Who learns what from a method's uploads, by role."""

    @abstractmethod
    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[StepMessage, ClientState]:
        """At the client: encode an upload; returns the message and the client's next state.

        Raises:
            DataError: NaN or infinity, or a value beyond float32 that would be compressed.
        """

    @abstractmethod
    def read(
        self, federation: Federation, client: int, block: int, message: StepMessage, like: RealArray
    ) -> Upload:
        """At the server: decode a message, for θ like `like`; a PeerError names the client."""

    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        """At the server: the sums of a round, from each client's message; errors of `read`."""
        due = federation.assignments(state.round_index)
        uploads = (
            self.read(federation, client, due[client], message, state.weights)
            for client, message in messages.items()
        )
        return total(federation.blocks, uploads)


class Plain(Coding):
    """Uploads in clear, in the dtype of θ."""

    kind = BlockUpload
    terms = "plain"

    @override
    def learns(self, method: Method) -> Mapping[str, str]:
        return method.learns

    @override
    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[BlockUpload, ClientState]:
        cut = [len(federation.blocks.own[upload.block])]
        parts = *np.split(upload.changes, cut), *np.split(upload.controls, cut)
        sent = (part.astype(broadcast.weights.dtype, copy=False) for part in parts)
        return BlockUpload(broadcast.round_index, *sent), state

    @override
    def read(
        self, federation: Federation, client: int, block: int, message: StepMessage, like: RealArray
    ) -> Upload:
        assert isinstance(message, BlockUpload)  # noqa: S101
        sizes = len(federation.blocks.own[block]), len(federation.blocks.shared)
        parts = message.own, message.shared, message.own_control, message.shared_control
        controls = sizes if federation.method.corrects else (0, 0)
        for part, size in zip(parts, (*sizes, *controls), strict=True):
            require_array(f"client {client}", part, size, like.dtype)
        return Upload(client, block, np.concatenate(parts[:2]), np.concatenate(parts[2:]))


class Noisy(Plain):
    """Clipped uploads, and noise on their sums.

    Args:
        noise: how long an upload may be, and how much noise a sum gets.
        key: of the server's noise.
    """

    def __init__(self, noise: ClientNoise, key: NoiseKey) -> None:
        self._noise = noise
        self._stream = key.stream("client sums")
        self.terms = f"noisy, {noise!r}"

    @override
    def learns(self, method: Method) -> Mapping[str, str]:
        client = f"{method.learns['client']}: of another client no more than (ε, δ) allows"
        return {"server": f"clipped, {method.learns['server']}", "client": client}

    @property
    def unit(self) -> float:
        """The spacing of the grid that clipped uploads and noise lie on."""
        return self._noise.clip / GRID

    def clipped(
        self, federation: Federation, upload: Upload, state: ClientState
    ) -> tuple[Upload, ClientState]:
        """Changes and control variates as one float64 vector on the grid, of norm at most β."""
        every = self._noise.clipped(np.concatenate([upload.changes, upload.controls]))
        sent = _with_values(upload, every)
        return sent, state_after_sending(federation, state, upload, sent)

    @override
    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[BlockUpload, ClientState]:
        sent, kept = self.clipped(federation, upload, state)
        return super().seal(federation, sent, broadcast, kept)

    @override
    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        return self.noisy(super().open(federation, state, messages), state.weights)

    def noisy(self, sums: Totals, like: RealArray) -> Totals:
        """Sums of clipped uploads with fresh noise, in the dtype of `like`."""
        every = self._noise.noisy(np.concatenate([sums.changes, sums.controls]), self._stream)
        changes, controls = np.split(every.astype(like.dtype), [len(sums.changes)])
        return Totals(changes, controls, sums.uploads)

    @override
    def read(
        self, federation: Federation, client: int, block: int, message: StepMessage, like: RealArray
    ) -> Upload:
        """Decoded in float64 on the grid; float32 rounding is less than half a unit."""
        upload = super().read(federation, client, block, message, like)
        every = np.concatenate([upload.changes, upload.controls]).astype(np.float64)
        every = np.rint(every / self.unit) * self.unit
        length = float(np.linalg.norm(every))
        # What honest clients send is this long at most but for the last bits of the norm.
        if not length <= self._noise.clip * (1 + 1e-9):
            raise PeerViolation(
                f"client {client} sent an upload of length {length:g}, at most "
                f"{self._noise.clip:g} agreed"
            )
        return _with_values(upload, every)


def promise(federation: Federation, noise: ClientNoise, rounds: int, delta: float) -> ClientPromise:
    """The privacy guarantee for one client after a federation's first rounds.

    Clients know `Settings.seed` and so who takes part when: among them only `known_sample` holds.

    Raises:
        ConfigError: a δ or a number of rounds that cannot be.
    """
    taking_part = Counter(
        client for index in range(rounds) for client in federation.assignments(index)
    )
    return client_promise(
        noise.noise_multiplier,
        clients=federation.settings.clients,
        taking_part=federation.settings.taking_part,
        rounds=rounds,
        participations=max(taking_part.values(), default=0),
        delta=delta,
        remembers=federation.method.corrects,
    )


def state_after_sending(
    federation: Federation, state: ClientState, upload: Upload, sent: Upload
) -> ClientState:
    """Error feedback for κ_j and h_j: they follow what the server decodes, not what was computed.

    Compression rounds and clipping shortens. The server's κ is the mean of all κ_j, and FedDC's
    drift that of all h_j, only if every client moves its own by what the server decoded.
    """
    entries = federation.blocks.uploaded(upload.block)
    if state.drift is not None:
        drift = state.drift.copy()
        drift[entries] += sent.changes - upload.changes
        state = replace(state, drift=drift)
    if state.control is not None:
        control = state.control.copy()
        control[entries] += sent.controls - upload.controls
        state = replace(state, control=control)
    return state


def require_array(
    sender: str, values: RealArray, size: int, dtype: np.dtype[np.floating[Any]]
) -> None:
    """Check the size and dtype of a peer's vector; UnexpectedMessage if they are wrong."""
    expect_shape(sender, values, (size,))
    if values.dtype != dtype:
        raise UnexpectedMessage(f"{sender} sent {values.dtype} where {dtype} is expected")


def _with_values(upload: Upload, every: FloatArray) -> Upload:
    changes, controls = np.split(every, [len(upload.changes)])
    return replace(upload, changes=changes, controls=controls)
