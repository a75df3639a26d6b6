"""How uploads travel singly: the place of compression and noise between client and server.

A coding makes a message of an `Upload` at the client, and the `Totals` of a round of the messages
at the server. Masks, which know of sums alone and take more messages, are no coding: `handing`.

Learns:
    server: under `Plain`, every upload singly: `Method.learns`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from securevfl.arrays import RealArray
from securevfl.errors import UnexpectedMessage
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.local import Broadcast, ClientState, Upload
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.server import ServerState, Totals, total
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(81, stage="round", carries="values", shows="updates")
class BlockUpload(StepMessage):
    """A client to the server: the change of its block, of the shared block, and of κ_j in them."""

    own: RealArray
    shared: RealArray
    own_control: RealArray
    shared_control: RealArray


@runtime_checkable
class Coding(Protocol):
    """One way for uploads to travel; pure functions, so that any engine can call them."""

    @property
    def kind(self) -> type[StepMessage]:
        """The messages that it makes."""

    @property
    def terms(self) -> str:
        """What both ends have to agree on."""

    def learns(self, method: Method) -> Mapping[str, str]:
        """Who learns what of a method's uploads, by role."""

    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[StepMessage, ClientState]:
        """At the client: the message of an upload, and the state with what the coding keeps."""

    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        """At the server: the sums of a round, from each client's message.

        Raises:
            PeerError: a message that does not fit; the error names the client.
        """


class Plain:
    """Every upload as it is, in the dtype of θ."""

    kind = BlockUpload
    terms = "plain"

    def learns(self, method: Method) -> Mapping[str, str]:
        """As the method says."""
        return method.learns

    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[BlockUpload, ClientState]:
        """As it is."""
        return BlockUpload(broadcast.round_index, *upload.parts), state

    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        """The sums of uploads.

        Raises:
            UnexpectedMessage: parts of another size or dtype than are due.
        """
        return total(federation.blocks, uploads_in(federation, state, messages))


def uploads_in(
    federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
) -> Iterator[Upload]:
    """The uploads of a round, from each client's `BlockUpload`.

    Raises:
        UnexpectedMessage: parts of another size or dtype than are due.
    """
    blocks = federation.blocks
    due = {each.client: each.block for each in federation.assignments(state.round_index)}
    for client, message in messages.items():
        assert isinstance(message, BlockUpload)  # noqa: S101
        sizes = len(blocks.own[due[client]]), len(blocks.shared)
        parts = message.own, message.shared, message.own_control, message.shared_control
        controls = sizes if federation.method.corrects else (0, 0)
        for part, size in zip(parts, (*sizes, *controls), strict=True):
            require_array(f"client {client}", part, size, state.weights.dtype)
        yield Upload(client, due[client], *parts)


def require_array(
    sender: str, values: RealArray, size: int, dtype: np.dtype[np.floating[Any]]
) -> None:
    """Check a peer's vector.

    Raises:
        UnexpectedMessage: of another size or dtype than is due.
    """
    expect_shape(sender, values, (size,))
    if values.dtype != dtype:
        raise UnexpectedMessage(f"{sender} sent {values.dtype} where {dtype} is due")
