"""The channel: a party's only way to reach the others, simulated or over a real network."""

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import MalformedMessage, UnexpectedMessage
from securevfl.wire.codec import Message, StepMessage, decode

M = TypeVar("M", bound=Message)


class Channel(Protocol):
    """What a party's program may do with the network."""

    @property
    def name(self) -> str:
        """The party at this end."""

    async def send(self, to: str, message: Message) -> None:
        """Send a message; returns at once, transfer is the network's time.

        Raises:
            PeerUnreachable: no such peer.
        """

    async def receive(
        self, senders: Collection[str], kind: type[M], step: int | None = None
    ) -> tuple[str, M]:
        """Wait for the next message of a stage from any of the senders.

        Returns:
            The sender and its message, which is of `kind` and, where given, of `step`.

        Raises:
            MalformedMessage: bytes that are no message.
            UnexpectedMessage: another kind or step than the protocol has now.
            PeerTimeout: nothing more will come.
        """

    def record_decrypted(self, sender: str, step: int, values: NDArray[Any]) -> None:
        """Put values that this party decrypted into its recorded view."""

    def record_learned(self, sender: str, step: int, values: NDArray[np.float64]) -> None:
        """Put numbers in clear that no message shows into its recorded view."""


def expect(data: bytes, sender: str, kind: type[M], step: int | None, max_bytes: int) -> M:
    """Decode a peer's bytes and check that they are what the protocol has now.

    Raises:
        MalformedMessage: bytes that are no message, with the peer's name.
        UnexpectedMessage: another kind or another step (early, late or replayed).
    """
    try:
        message = decode(data, max_bytes)
    except MalformedMessage as error:
        raise MalformedMessage(f"from {sender}: {error}") from error
    if not isinstance(message, kind):
        raise UnexpectedMessage(
            f"{sender} sent {type(message).__name__} where {kind.__name__} is due"
        )
    if isinstance(message, StepMessage) and step is not None and message.step != step:
        raise UnexpectedMessage(
            f"{sender} sent {kind.__name__} of step {message.step} where step {step} is due"
        )
    return message


def expect_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Check the shape of a peer's array.

    Raises:
        UnexpectedMessage: another shape than the protocol has now.
    """
    if values.shape != shape:
        raise UnexpectedMessage(f"{sender} sent an array of {values.shape} where {shape} is due")


async def collect(
    channel: Channel, senders: Collection[str], kind: type[M], step: int | None = None
) -> dict[str, M]:
    """One message of a kind from each sender, in whatever order they arrive.

    Raises:
        PeerError: as `Channel.receive`.
    """
    messages: dict[str, M] = {}
    while len(messages) < len(senders):
        pending = [name for name in senders if name not in messages]
        sender, message = await channel.receive(pending, kind, step)
        messages[sender] = message
    return {name: messages[name] for name in senders}
