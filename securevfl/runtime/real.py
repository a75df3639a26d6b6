"""A party's end of a real network: its program computes on a thread of its own.

The network has the other thread, whose loop answers keepalives however long a computation takes.
What carries bytes is somebody else's: it gets a function to hand envelopes to, and hands what
comes to `RealChannel.deliver`.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

from securevfl.errors import PeerError, PeerUnreachable, UnexpectedMessage
from securevfl.runtime.channel import Arrived, Inbox, M, awaited, expect, timed_out, unsealed
from securevfl.runtime.costs import Costs, Stopwatch, WorkAhead, component_of, overrun_phase
from securevfl.wire.codec import MAX_MESSAGE_BYTES, Envelope, Message, Stage, encode, seal, stage_of

T = TypeVar("T")
Carry = Callable[[str, bytes], None]
"""Takes an envelope to a peer; called on the program's thread, returns at once.

Raises `PeerUnreachable` where there is no way to the peer any more.
"""


class ProgramThread:
    """A worker thread with an event loop of its own, for one party's program.

    Leaving the context cancels what still runs there, at its next wait.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._until_left()))

    def __enter__(self) -> Self:
        self._thread.start()
        self.loop = self._started.result()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self._left.set)
        self._thread.join()

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program there, and wait for it here without holding up this loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(program, self.loop))

    async def _until_left(self) -> None:
        self._left = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._left.wait()


class MeasuredClock:
    """The clock of a real run: the seconds that were measured, computing or in the channel.

    It stands still while the parties score. Parties start their clocks when they start; whoever
    hears from a peer that is further sets its own forward, since nothing arrives before it was
    sent.
    """

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        """Seconds since the start of the job."""
        return self._time

    async def spend(self, seconds: float) -> None:
        """Count the time of a finished computation: it has passed."""
        self._time += seconds

    def reach(self, moment: float) -> None:
        """Be at a moment, unless it is past."""
        self._time = max(self._time, moment)


@dataclass(frozen=True)
class _Opened(Arrived):
    """What came from a peer: an envelope, or what is wrong with it."""

    envelope: Envelope | PeerError


class RealChannel:
    """One party's end of a real network; fills the Channel protocol.

    Communication is the time that the party spends in here: waiting, and turning messages into
    bytes and back. All but `deliver` and `lose` belong to the program's thread; where a network's
    own threads are not wanted, `poll` and `take_in` read what has come on that thread too.

    Args:
        name: the party.
        peers: the others.
        job_hash: of the job, 32 bytes.
        loop: of the program's thread.
        carry: takes envelopes to peers.
        timeout_seconds: how long to wait for a message where the protocol does not say; None for
            ever.
        max_message_bytes: longer messages are refused.
        stopwatch: how computation is timed.
        poll: called before messages are waited for, with that moment: takes in what has come.

    Attributes:
        name: the party.
        costs: its ledger.
        loop: of the program's thread.
    """

    def __init__(
        self,
        name: str,
        peers: Collection[str],
        *,
        job_hash: bytes,
        loop: asyncio.AbstractEventLoop,
        carry: Carry,
        timeout_seconds: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        stopwatch: Stopwatch | None = None,
        poll: Callable[[float], None] = lambda at: None,
    ) -> None:
        self.name = name
        self._peers = frozenset(peers)
        self._job = job_hash
        self.loop = loop
        self._poll = poll
        self._carry = carry
        self._timeout = timeout_seconds
        self._max_bytes = max_message_bytes
        self._clock = MeasuredClock()
        self.costs = Costs(self._clock, stopwatch or Stopwatch())
        self._ahead = WorkAhead(self.costs)
        self._inbox: Inbox[_Opened] = Inbox()
        self._inbox_ahead: Inbox[_Opened] = Inbox()
        self._arrivals = count()
        self._sent: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def deliver(self, peer: str, data: bytes) -> None:
        """Take what came from a peer, in the order it was sent; from any thread."""
        order, at = next(self._arrivals), time.monotonic()
        self.loop.call_soon_threadsafe(self._sort, peer, order, at, data)

    def take_in(self, peer: str, data: bytes, at: float) -> None:
        """Take what came from a peer by a moment, in order; on the loop's own thread."""
        self._sort(peer, next(self._arrivals), at, data)

    def lose(self, peer: str, error: PeerError) -> None:
        """Nothing more will come from a peer; from any thread."""
        for inbox in (self._inbox, self._inbox_ahead):
            self.loop.call_soon_threadsafe(inbox.lose, peer, time.monotonic(), error)

    async def send(self, to: str, message: Message) -> None:
        """Hand a message over to the network.

        Raises:
            PeerUnreachable: no such peer, or no way to it any more.
        """
        if to not in self._peers:
            raise PeerUnreachable(f"{self.name} has no peer {to!r}")
        began = time.monotonic()
        data = encode(message)
        costs = self.costs
        costs.sent(message, len(data))
        envelope = Envelope(self._job, self.name, self._sent[to], costs.hops, costs.path, data)
        self._sent[to] += 1
        self._carry(to, seal(envelope))
        self._count(message.stage, time.monotonic() - began)

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        """Wait for the next message from any of the senders, see `Channel`."""
        began = time.monotonic()
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        deadline = None if timeout is None else began + timeout
        inbox, overrun = self._inbox_of(kind.stage), 0.0
        self._poll(began)
        if kind.stage != "evaluation" and self.costs.ahead:
            overrun = await self._ahead.until(lambda: self._over_for(inbox, senders, deadline))
        try:
            # The loop's clock is time.monotonic as well.
            sender, arrived = await inbox.take(senders, deadline)
        except TimeoutError:
            self._count(kind.stage, time.monotonic() - began)
            raise timed_out(self.name, timeout or 0.0, senders, kind) from None
        except PeerUnreachable as error:
            raise PeerUnreachable(
                f"{self.name} waits for {awaited(senders, kind)}: {error}"
            ) from error
        envelope = arrived.envelope
        if isinstance(envelope, PeerError):
            raise envelope
        message = expect(envelope.message, sender, kind, step, self._max_bytes)
        if kind.stage != "evaluation":
            self.costs.received(kind.stage, envelope.hops)
            elapsed = time.monotonic() - began
            self._pass_time(kind.stage, envelope, elapsed, overrun, waited=arrived.at > began)
        return sender, message

    def _inbox_of(self, stage: Stage | None) -> Inbox[_Opened]:
        return self._inbox_ahead if stage == "ahead" else self._inbox

    def _sort(self, peer: str, order: int, at: float, data: bytes) -> None:
        """What is sent ahead waits apart: a round takes its own messages first."""
        try:
            envelope = self._next_of(peer, data)
        except PeerError as error:
            # Of no known stage: whoever waits for this peer gets it.
            for inbox in (self._inbox, self._inbox_ahead):
                inbox.put(peer, _Opened(order, at, error))
            return
        self._inbox_of(stage_of(envelope.message)).put(peer, _Opened(order, at, envelope))

    def _next_of(self, sender: str, data: bytes) -> Envelope:
        envelope = unsealed(data, sender, self._job, self._max_bytes)
        due = self._taken[sender]
        if envelope.number != due:
            raise UnexpectedMessage(
                f"{sender} sent its message {envelope.number} where {due} is due"
            )
        self._taken[sender] += 1
        return envelope

    def _pass_time(
        self, stage: Stage, envelope: Envelope, elapsed: float, overrun: float, *, waited: bool
    ) -> None:
        sent = sum(envelope.path.values())
        if not waited and sent <= self._clock.now() + elapsed:
            self._count(stage, elapsed)
            return
        self._clock.reach(max(self._clock.now() + elapsed, sent + overrun))
        self.costs.take_over(envelope.path, component_of(stage), sent, self._clock.now() - overrun)
        if overrun:
            self.costs.passed(overrun_phase(stage), overrun)

    def _count(self, stage: Stage, seconds: float) -> None:
        if stage == "evaluation":
            return
        self.costs.passed(component_of(stage), seconds)
        self._clock.reach(self._clock.now() + seconds)

    def _over_for(
        self, inbox: Inbox[_Opened], senders: Collection[str], deadline: float | None
    ) -> float | None:
        now = time.monotonic()
        self._poll(now)
        since = inbox.since(senders)
        if since is None and deadline is not None and now >= deadline:
            since = deadline
        return None if since is None else now - since
