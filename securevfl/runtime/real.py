"""A party's end of a real network: its program computes on a thread of its own.

The network runs on the other thread, whose loop answers keepalives during long computations. The
transport is not part of this module: it provides a function that sends envelopes, and passes
received ones to `RealChannel.deliver`.
"""

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Self, TypeVar

from typing_extensions import override

from securevfl.errors import PeerError, PeerUnreachable, PeerViolation, UnexpectedMessage
from securevfl.runtime.channel import Arrived, Inbox, M, NetworkEnd, expect
from securevfl.runtime.costs import Costs, Stopwatch
from securevfl.wire.codec import MAX_MESSAGE_BYTES, Envelope, Message, Stage, encode, stage_of

T = TypeVar("T")
Carry = Callable[[str, bytes], None]
"""Sends an envelope to a peer without blocking, on the program's thread; or PeerUnreachable."""
MOST_HELD_BYTES = MAX_MESSAGE_BYTES + (1 << 20)
"""Of one peer's messages that the program has not received yet."""
MOMENT_SECONDS = 1e-3
ENTRY_BYTES = 1024
"""What a message takes beside its own bytes, so that many small ones count as what they hold."""


class ProgramThread:
    """A worker thread with its own event loop for a party's program.

    Leaving the context cancels a running program at its next wait.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._until_left()))

    def __enter__(self) -> Self:
        self._thread.start()
        self.loop = self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._left.set)
        self._thread.join()

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program there and wait for it without blocking this loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(program, self.loop))

    async def _until_left(self) -> None:
        self._left = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._left.wait()


class RealChannel(NetworkEnd):
    """One party's end of a real network.

    Communication is time spent in this class: waiting, and converting messages to bytes and back.
    All methods but `deliver` and `lose` belong to the program's thread.

    A peer that sends more than may be held, before the program receives it, ends the program at its
    next wait for anybody, with a PeerViolation. What it sent is dropped. A transport that watches
    `held_bytes` can stop reading before.

    Args:
        name: the party.
        peers: the other parties.
        job_hash: of the job, 32 bytes.
        loop: of the program's thread.
        carry: sends envelopes to peers.
        timeout_seconds: default timeout of `receive`; None waits without limit.
        max_message_bytes: longer messages are refused.
        most_held_bytes: of one peer's messages, with `ENTRY_BYTES` for each.
        stopwatch: measures computation.
        passes: of the loop, within which what has arrived is delivered if the transport runs on the
            loop as well, where it stands still while the program computes.
        arriving: whether anything has arrived there that is not delivered yet.
        leaving: whether anything that was sent is still here. Work in waits begins once it has
            left, and pauses while something arrives: it holds the interpreter's lock, without which
            the transport stands still.
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
        most_held_bytes: int = MOST_HELD_BYTES,
        stopwatch: Stopwatch | None = None,
        arriving: Callable[[], bool] = lambda: False,
        leaving: Callable[[], bool] = lambda: False,
        passes: int = 0,
    ) -> None:
        super().__init__(
            name,
            job_hash,
            Costs(stopwatch or Stopwatch()),
            timeout_seconds=timeout_seconds,
            max_message_bytes=max_message_bytes,
        )
        self.loop = loop
        self._peers, self._carry = frozenset(peers), carry
        self._arriving, self._leaving, self._passes = arriving, leaving, passes
        self._inbox, self._inbox_offline = Inbox(), Inbox()
        self._arrivals = count()
        self._taken: Counter[str] = Counter()
        # The loop stands still while the program computes, so what is delivered is counted here.
        self._most_held, self._held, self._count = most_held_bytes, Counter[str](), threading.Lock()
        self._unsorted: defaultdict[str, deque[tuple[int, float, bytes]]] = defaultdict(deque)
        self._dropped: set[str] = set()

    def deliver(self, peer: str, data: bytes) -> None:
        """Accept data from a peer, in the order of sending; from any thread."""
        if not self._admit(peer, data, time.monotonic()):
            return
        if asyncio._get_running_loop() is self.loop:
            self._sort(peer)
        else:
            self.loop.call_soon_threadsafe(self._sort, peer)

    def held_bytes(self, peer: str) -> int:
        """What a peer sent and the program has not received, in bytes; from any thread."""
        return self._held[peer]

    def lose(self, peer: str, error: PeerError) -> None:
        """No more data will come from a peer; from any thread."""
        for inbox in (self._inbox, self._inbox_offline):
            self.loop.call_soon_threadsafe(inbox.lose, peer, time.monotonic(), error)

    @override
    async def send(self, to: str, message: Message) -> None:
        if to not in self._peers:
            raise PeerUnreachable(f"{self.name} has no peer {to!r}")
        began = time.monotonic()
        data = encode(message)
        self.costs.sent(message, len(data))
        self._carry(to, self._sealed(to, data))
        self.costs.in_channel(message.stage, time.monotonic() - began)

    @override
    async def _next(
        self, senders: Collection[str], kind: type[M], step: int | None, timeout: float | None
    ) -> tuple[str, M]:
        began, stage = time.monotonic(), kind.stage
        deadline = None if timeout is None else began + timeout
        inbox, overrun, costs = self._inbox_of(stage), 0.0, self.costs
        asked = await self._let_in(inbox, senders)
        if stage != "evaluation" and costs.idle_work:
            over_for = partial(self._over_for, inbox, senders, deadline)
            while self._leaving() and over_for() is None:
                await asyncio.sleep(MOMENT_SECONDS)
            overrun = await costs.work_until(over_for, max(self._passes, 1), self._arriving)
        try:
            # The loop's clock is time.monotonic, too.
            sender, arrived = await inbox.take(senders, deadline)
        except TimeoutError:
            costs.in_channel(stage, time.monotonic() - began)
            raise
        except PeerUnreachable as error:
            raise PeerUnreachable(f"{self.name} waits for {self.awaited}: {error}") from error
        with self._count:
            self._held[sender] -= arrived.size
        envelope = arrived.opened()
        message = expect(envelope.message, sender, kind, step, self._max_bytes)
        if stage != "evaluation":
            costs.received(stage, envelope.hops)
            now = costs.now + time.monotonic() - began
            if arrived.at > asked or arrived.sent > now:
                # Clocks start with their parties; a message must not arrive before it was sent.
                arrival = max(now - overrun, arrived.sent)
                costs.waited(stage, envelope.path, arrived.sent, arrival, overrun)
            else:
                costs.in_channel(stage, now - costs.now)
        return sender, message

    async def _let_in(self, inbox: Inbox, senders: Collection[str]) -> float:
        """Deliver what has arrived; the time at which nothing more had."""
        for _ in range(self._passes if self._passes and self._arriving() else 0):
            if inbox.since(senders) is not None:
                break
            await asyncio.sleep(0)
        return time.monotonic()

    def _inbox_of(self, stage: Stage | None) -> Inbox:
        return self._inbox_offline if stage == "offline" else self._inbox

    def _admit(self, peer: str, data: bytes, at: float) -> bool:
        """Count a peer's data and keep them for `_sort`, or drop all that it sent."""
        with self._count:
            if peer in self._dropped:
                return False
            held = self._held[peer] + len(data) + ENTRY_BYTES
            if held <= self._most_held:
                self._held[peer] = held
                self._unsorted[peer].append((next(self._arrivals), at, data))
                return True
            self._dropped.add(peer)
            self._unsorted[peer].clear()
            self._held[peer] = 0
        error = PeerViolation(
            f"{peer} sent {held} bytes before {self.name} received them, at most "
            f"{self._most_held} are held"
        )
        for inbox in (self._inbox, self._inbox_offline):
            self.loop.call_soon_threadsafe(inbox.fail, peer, at, error)
        return False

    def _sort(self, peer: str) -> None:
        """Store a message; offline messages have a queue of their own, so rounds overtake them."""
        with self._count:
            if not self._unsorted[peer]:
                return  # dropped
            order, at, data = self._unsorted[peer].popleft()
        envelope = self._next_of(peer, data)
        if isinstance(envelope, PeerError):
            # Its stage is unknown: any wait for this peer gets the error.
            for inbox in (self._inbox, self._inbox_offline):
                inbox.put(peer, Arrived(order, at, envelope, 0.0))
            return
        sent = sum(envelope.path.values())
        arrived = Arrived(order, at, envelope, sent, len(data) + ENTRY_BYTES)
        self._inbox_of(stage_of(envelope.message)).put(peer, arrived)

    def _next_of(self, sender: str, data: bytes) -> Envelope | PeerError:
        envelope, due = self._unsealed(sender, data), self._taken[sender]
        if isinstance(envelope, PeerError):
            return envelope
        if envelope.number != due:
            return UnexpectedMessage(
                f"{sender} sent its message {envelope.number} where {due} is expected"
            )
        self._taken[sender] += 1
        return envelope

    def _over_for(
        self, inbox: Inbox, senders: Collection[str], deadline: float | None
    ) -> float | None:
        now = time.monotonic()
        since = inbox.since(senders)
        if since is None and deadline is not None and now >= deadline:
            since = deadline
        return None if since is None else now - since
