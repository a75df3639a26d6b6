"""The channel: a party's only way to communicate, simulated or over a real network.

Messages that arrived and were not received yet wait in an `Inbox`.
"""

import asyncio
from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from securevfl.errors import (
    MalformedMessage,
    PeerError,
    PeerTimeout,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.runtime.costs import Costs
from securevfl.runtime.views import Received, View
from securevfl.wire.codec import (
    MAX_MESSAGE_BYTES,
    Envelope,
    Message,
    StepMessage,
    decode,
    open_envelope,
    seal,
)

M = TypeVar("M", bound=Message)


class Channel(Protocol):
    """The network as a party's program uses it."""

    @property
    def name(self) -> str:
        """The party at this end."""

    @property
    def view(self) -> View | None:
        """What the party has seen so far; None if this is not recorded."""

    async def send(self, to: str, message: Message) -> None:
        """Send a message and return at once; a PeerUnreachable if there is no such peer."""

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """Wait for the next message of a stage from any of the senders.

        Messages of the stage "offline" have a queue of their own, so rounds overtake them.

        Args:
            senders: parties whose message may come next.
            kind: the required kind of message.
            step: the required step, if given.
            timeout_seconds: the longest wait on this party's clock; by default the channel's.

        Returns:
            The sender and its message.

        Raises:
            MalformedMessage: bytes that are not a message.
            UnexpectedMessage: another kind or step than the protocol expects now.
            PeerViolation: a message of another job, or more messages of a peer than are held.
            PeerUnreachable: a sender is gone.
            PeerTimeout: no message came in time, or none can come any more.
        """


class ChannelAround:
    """A wrapper of a channel; subclasses change parts of its behaviour."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def name(self) -> str:
        """The party at this end."""
        return self._channel.name

    @property
    def view(self) -> View | None:
        """See `Channel.view`."""
        return self._channel.view

    async def send(self, to: str, message: Message) -> None:
        """See `Channel.send`."""
        await self._channel.send(to, message)

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """See `Channel.receive`."""
        return await self._channel.receive(senders, kind, step, timeout_seconds=timeout_seconds)


def expect(data: bytes, sender: str, kind: type[M], step: int | None, max_bytes: int) -> M:
    """Decode a peer's bytes and check that they are the message that the protocol expects.

    Raises:
        MalformedMessage: bytes that are not a message; the error names the peer.
        UnexpectedMessage: another kind or another step (early, late or replayed).
    """
    try:
        message = decode(data, max_bytes)
    except MalformedMessage as error:
        raise MalformedMessage(f"from {sender}: {error}") from error
    if not isinstance(message, kind):
        raise UnexpectedMessage(
            f"{sender} sent {type(message).__name__} where {kind.__name__} is expected"
        )
    if isinstance(message, StepMessage) and step is not None and message.step != step:
        raise UnexpectedMessage(
            f"{sender} sent {kind.__name__} of step {message.step} where step {step} is expected"
        )
    return message


def expect_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Check the shape of a peer's array; an UnexpectedMessage if it is another."""
    if values.shape != shape:
        raise UnexpectedMessage(
            f"{sender} sent an array of {values.shape} where {shape} is expected"
        )


async def receive_values(
    channel: Channel, sender: str, kind: type[M], step: int | None, shape: tuple[int, ...]
) -> NDArray[Any]:
    """The `values` of a peer's next message, an array of this shape; errors as `receive`."""
    return (await collect_values(channel, [sender], kind, step, shape))[sender]


async def collect_values(
    channel: Channel,
    senders: Collection[str],
    kind: type[M],
    step: int | None,
    shape: tuple[int, ...],
) -> dict[str, NDArray[Any]]:
    """The `values` of one message from each sender, arrays of this shape."""
    found: dict[str, Any] = {**await collect(channel, senders, kind, step)}
    for sender, message in found.items():
        expect_shape(sender, message.values, shape)
    return {sender: message.values for sender, message in found.items()}


async def collect(
    channel: Channel, senders: Collection[str], kind: type[M], step: int | None = None
) -> dict[str, M]:
    """One message of a kind from each sender, in order of arrival; errors as `Channel.receive`."""
    messages: dict[str, M] = {}
    while len(messages) < len(senders):
        pending = [name for name in senders if name not in messages]
        sender, message = await channel.receive(pending, kind, step)
        messages[sender] = message
    return {name: messages[name] for name in senders}


async def tell(channel: Channel, receivers: Iterable[str], message: Message) -> None:
    """Send a message to each of the receivers."""
    for name in receivers:
        await channel.send(name, message)


async def exchange_with(channel: Channel, peers: Collection[str], message: M) -> dict[str, M]:
    """Send a message to all peers, and take one of its kind from each; errors as `collect`."""
    await tell(channel, peers, message)
    return await collect(channel, peers, type(message))


class Arrived(NamedTuple):
    """What arrived from a peer.

    Attributes:
        order: increases among the messages of one sender.
        at: arrival time in seconds on the receiver's clock.
        envelope: the envelope, or the error if it is invalid.
        sent: sending time on the sender's clock.
        size: bytes that it holds.
    """

    order: int
    at: float
    envelope: Envelope | PeerError
    sent: float
    size: int = 0

    def opened(self) -> Envelope:
        """The envelope, or its error raised."""
        if isinstance(self.envelope, PeerError):
            raise self.envelope
        return self.envelope


class Inbox:
    """Envelopes by sender for one waiting program, on the event loop of that program."""

    def __init__(self) -> None:
        self._queues: dict[str, list[Arrived]] = {}
        self._lost: dict[str, tuple[float, PeerError]] = {}
        self._failed: tuple[float, PeerError] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, sender: str, arrived: Arrived) -> None:
        """Store an envelope."""
        # A loop runs simultaneous callbacks in any order; a line preserves the order of sending.
        insort(self._queues.setdefault(sender, []), arrived, key=_ORDER)
        self._wake()

    def lose(self, sender: str, at: float, error: PeerError) -> None:
        """No more messages will come from a sender: waiting for it raises the error."""
        self._lost.setdefault(sender, (at, error))
        self._wake()

    def fail(self, sender: str, at: float, error: PeerError) -> None:
        """Drop what a sender sent: from now on waiting for anybody raises the error."""
        self._queues.pop(sender, None)
        self._failed = self._failed or (at, error)
        self._wake()

    def since(self, senders: Collection[str]) -> float | None:
        """When a wait for one of the senders could have ended; None while it cannot."""
        if self._failed is not None:
            return self._failed[0]
        heads = [self._queues[name][0].at for name in senders if self._queues.get(name)]
        losses = [self._lost[name][0] for name in senders if name in self._lost]
        return min(heads or losses, default=None)

    async def take(
        self, senders: Collection[str], deadline: float | None = None
    ) -> tuple[str, Arrived]:
        """The earliest envelope from one of the senders, waiting if there is none.

        Raises:
            PeerError: there is none, and one of the senders is lost; or `fail` was called.
            TimeoutError: the deadline has passed on the loop's clock, or any message comes later.
        """
        while True:
            if self._failed is not None:
                raise self._failed[1]
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
            async with asyncio.timeout_at(deadline):
                await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_ORDER = attrgetter("order")


class NetworkEnd(ABC):
    """One party's end of a network, simulated or real; implements Channel.

    Args:
        name: the party.
        job_hash: of the job, 32 bytes.
        costs: its ledger.
        timeout_seconds: default timeout of `receive`; None waits without limit.
        max_message_bytes: longer messages are refused.
        view: where received messages are recorded.

    Attributes:
        waits_for: senders and kind of message that its program waits for.
    """

    def __init__(
        self,
        name: str,
        job_hash: bytes,
        costs: Costs,
        *,
        timeout_seconds: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        view: View | None = None,
    ) -> None:
        self.name, self.costs, self.view = name, costs, view
        self.waits_for: tuple[Collection[str], type[Message]] | None = None
        self._job, self._timeout, self._max_bytes = job_hash, timeout_seconds, max_message_bytes
        self._numbers: Counter[str] = Counter()

    @abstractmethod
    async def send(self, to: str, message: Message) -> None:
        """Pass a message to the network, see `Channel.send`."""

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """Wait for the next message from any of the senders, see `Channel.receive`."""
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        self.waits_for = senders, kind
        try:
            sender, message = await self._next(senders, kind, step, timeout)
        except TimeoutError:
            waited = f"{self.name} waited {timeout or 0.0:g} s for {self.awaited} in vain"
            raise PeerTimeout(waited) from None
        finally:
            self.waits_for = None
        if self.view is not None:
            self.view.entries.append(Received(sender, message))
        return sender, message

    @property
    def awaited(self) -> str:
        """What its program waits for, in words; empty if it does not wait."""
        if self.waits_for is None:
            return ""
        senders, kind = self.waits_for
        return f"{kind.__name__} from {' or '.join(sorted(senders))}"

    @abstractmethod
    async def _next(
        self, senders: Collection[str], kind: type[M], step: int | None, timeout: float | None
    ) -> tuple[str, M]:
        """The next message; the wait is charged to the ledger."""

    def _enveloped(self, to: str, data: bytes) -> Envelope:
        """The next message to a peer in its envelope, which is not sealed yet."""
        number, costs = self._numbers[to], self.costs
        self._numbers[to] += 1
        return Envelope(self._job, self.name, number, costs.hops, dict(costs.path), data)

    def _sealed(self, to: str, data: bytes) -> bytes:
        return seal(self._enveloped(to, data))

    def _unsealed(self, sender: str, data: bytes) -> Envelope | PeerError:
        """A peer's envelope, or the error if it does not belong here."""
        try:
            envelope = open_envelope(data, self._max_bytes)
        except MalformedMessage as error:
            return MalformedMessage(f"from {sender}: {error}")
        if envelope.job != self._job:
            return PeerViolation(
                f"{sender} runs another job: hash {envelope.job[:8].hex()}, here "
                f"{self._job[:8].hex()}"
            )
        if envelope.sender != sender:
            return PeerViolation(f"{sender} sent an envelope in another party's name")
        return envelope
