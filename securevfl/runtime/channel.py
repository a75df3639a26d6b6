"""The channel: a party's only way to reach the others, simulated or over a real network."""

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from securevfl.errors import MalformedMessage, PeerTimeout, PeerViolation, UnexpectedMessage
from securevfl.wire.codec import Message, StepMessage, decode
from securevfl.wire.envelope import Envelope, open_envelope

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
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """Wait for the next message of a stage from any of the senders.

        Messages of the stage "ahead" wait apart from all others: a round takes its own past them.

        Args:
            senders: whose message may come next.
            kind: what it must be.
            step: of which step it must be, where given.
            timeout_seconds: how long to wait at most, on this party's clock; by default as long
                as the channel does.

        Returns:
            The sender and its message, which is of `kind` and, where given, of `step`.

        Raises:
            MalformedMessage: bytes that are no message.
            UnexpectedMessage: another kind or step than the protocol has now.
            PeerViolation: a message of another job.
            PeerUnreachable: a sender is gone.
            PeerTimeout: nothing came in time, or nothing more will.
        """


class ChannelAround:
    """A channel that does what another does; a subclass says what it does beside that."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def name(self) -> str:
        """The party at this end."""
        return self._channel.name

    async def send(self, to: str, message: Message) -> None:
        """As the channel does."""
        await self._channel.send(to, message)

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """As the channel does."""
        return await self._channel.receive(senders, kind, step, timeout_seconds=timeout_seconds)


def awaited(senders: Collection[str], kind: type[Message]) -> str:
    """What a party waits for, in words."""
    return f"{kind.__name__} from {' or '.join(sorted(senders))}"


def timed_out(
    name: str, seconds: float, senders: Collection[str], kind: type[Message]
) -> PeerTimeout:
    """The error of a party that waited long enough."""
    return PeerTimeout(f"{name} waited {seconds:g} s for {awaited(senders, kind)} in vain")


def unsealed(data: bytes, sender: str, job: bytes, max_message_bytes: int) -> Envelope:
    """Open a peer's envelope and check that it belongs here.

    Raises:
        MalformedMessage: bytes that are no envelope, with the peer's name.
        PeerViolation: of another job, or in another party's name.
    """
    try:
        envelope = open_envelope(data, max_message_bytes)
    except MalformedMessage as error:
        raise MalformedMessage(f"from {sender}: {error}") from error
    if envelope.job != job:
        raise PeerViolation(
            f"{sender} runs another job: hash {envelope.job[:8].hex()}, here {job[:8].hex()}"
        )
    if envelope.sender != sender:
        raise PeerViolation(f"{sender} sent an envelope in another party's name")
    return envelope


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
