"""The channel: a party's only way to reach the others, simulated or over a real network.

What has reached a party and was not asked for yet waits in an `Inbox`.
"""

import asyncio
from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Collection
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
    """What a party's program may do with the network."""

    @property
    def name(self) -> str:
        """The party at this end."""

    @property
    def view(self) -> View | None:
        """What the party has seen so far; None where that is not recorded."""

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

        Messages of the stage "offline" wait apart from all others: a round takes its own past them.

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

    @property
    def view(self) -> View | None:
        """As the channel's."""
        return self._channel.view

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


async def receive_values(
    channel: Channel, sender: str, kind: type[M], step: int | None, shape: tuple[int, ...]
) -> NDArray[Any]:
    """The `values` of a peer's next message, an array of this shape.

    Raises:
        PeerError: as `Channel.receive`, or an array of another shape.
    """
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


class Arrived(NamedTuple):
    """What came from a peer.

    Attributes:
        order: increases among those of one sender.
        at: when it arrived, in seconds on the clock that its receiver waits by.
        envelope: it, or what is wrong with it.
        sent: when, on its sender's clock.
    """

    order: int
    at: float
    envelope: Envelope | PeerError
    sent: float

    def opened(self) -> Envelope:
        """The envelope; the error where there is none."""
        if isinstance(self.envelope, PeerError):
            raise self.envelope
        return self.envelope


class Inbox:
    """Envelopes by sender, for one that waits; all on the event loop of the party's program."""

    def __init__(self) -> None:
        self._queues: dict[str, list[Arrived]] = {}
        self._lost: dict[str, tuple[float, PeerError]] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, sender: str, arrived: Arrived) -> None:
        """Keep an envelope."""
        # A loop runs what is due at one moment in any order; a line keeps the order of sending.
        insort(self._queues.setdefault(sender, []), arrived, key=_ORDER)
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

    async def take(
        self, senders: Collection[str], deadline: float | None = None
    ) -> tuple[str, Arrived]:
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
            async with asyncio.timeout_at(deadline):
                await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_ORDER = attrgetter("order")


class NetworkEnd(ABC):
    """One party's end of a network, simulated or real; fills the Channel protocol.

    Args:
        name: the party.
        job_hash: of the job, 32 bytes.
        costs: its ledger.
        timeout_seconds: how long to wait for a message where the protocol does not say; None for
            ever.
        max_message_bytes: longer messages are refused.
        view: where what comes is recorded.

    Attributes:
        name: the party.
        costs: its ledger.
        view: what it has seen so far; None where that is not recorded.
        waits_for: whom its program waits for, and for what.
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
        """Hand a message over to the network, see `Channel`."""

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """Wait for the next message from any of the senders, see `Channel`."""
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
        """What its program waits for, in words; nothing where it does not."""
        if self.waits_for is None:
            return ""
        senders, kind = self.waits_for
        return f"{kind.__name__} from {' or '.join(sorted(senders))}"

    @abstractmethod
    async def _next(
        self, senders: Collection[str], kind: type[M], step: int | None, timeout: float | None
    ) -> tuple[str, M]:
        """The next message, whose time has passed on the ledger then.

        Raises:
            PeerError: what came is not what is due, or nothing will.
            TimeoutError: nothing came in time.
        """

    def _sealed(self, to: str, data: bytes) -> tuple[int, bytes]:
        """The number of a message to a peer, and its bytes in an envelope."""
        number, costs = self._numbers[to], self.costs
        self._numbers[to] += 1
        return number, seal(Envelope(self._job, self.name, number, costs.hops, costs.path, data))

    def _unsealed(self, sender: str, data: bytes) -> Envelope | PeerError:
        """A peer's envelope that belongs here, or what is wrong with it."""
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
