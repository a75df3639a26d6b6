"""The channel: a party's only way to reach the others, simulated or over a real network.

What has reached a party and was not asked for yet waits in an `Inbox`.
"""

import asyncio
from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from securevfl.errors import (
    MalformedMessage,
    PeerError,
    PeerTimeout,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.wire.codec import Envelope, Message, StepMessage, decode, open_envelope

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


@dataclass(frozen=True)
class Arrived:
    """An envelope that a party holds.

    Attributes:
        order: increases among those of one sender.
        at: when it arrived, in seconds on the clock that its receiver waits by.
    """

    order: int
    at: float


A = TypeVar("A", bound=Arrived)


class Inbox(Generic[A]):
    """Envelopes by sender, for one that waits; all on the event loop of the party's program."""

    def __init__(self) -> None:
        self._queues: dict[str, list[A]] = {}
        self._lost: dict[str, tuple[float, PeerError]] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, sender: str, arrived: A) -> None:
        """Keep an envelope."""
        # A loop runs what is due at one moment in any order; a line keeps the order of sending.
        queue = self._queues.setdefault(sender, [])
        if not queue or queue[-1].order < arrived.order:
            queue.append(arrived)
        else:
            insort(queue, arrived, key=lambda each: each.order)
        self._wake()

    def lose(self, sender: str, at: float, error: PeerError) -> None:
        """Nothing more will come from a sender: who waits for it in vain gets the error."""
        self._lost.setdefault(sender, (at, error))
        self._wake()

    def since(self, senders: Collection[str]) -> float | None:
        """When a wait for one of the senders was over; None while it goes on."""
        heads = [self._queues[name][0].at for name in senders if self._queues.get(name)]
        losses = [self._lost[name][0] for name in senders if name in self._lost]
        return min(heads or losses, default=None)

    async def take(self, senders: Collection[str], deadline: float | None = None) -> tuple[str, A]:
        """The first envelope to have arrived from one of the senders, waited for if need be.

        Raises:
            PeerError: there is none, and one of the senders is lost.
            TimeoutError: the loop's clock passed the deadline, or what is under way comes after it.
        """
        while True:
            heads = [(self._queues[s][0].at, s) for s in senders if self._queues.get(s)]
            if heads:
                at, sender = min(heads)
                if deadline is not None and at > deadline:
                    raise TimeoutError
                return sender, self._queues[sender].pop(0)
            for name in senders:
                if name in self._lost:
                    raise self._lost[name][1]
            self._waiter = asyncio.get_running_loop().create_future()
            if deadline is None:
                await self._waiter
                continue
            async with asyncio.timeout_at(deadline):
                await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
