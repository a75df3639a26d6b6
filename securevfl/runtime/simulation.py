"""All parties of a job in one process, over a simulated network, in virtual time.

The clock of the event loop jumps to the next event instead of waiting. Computation is measured on
this machine and then passes in virtual time: parties work in parallel on any number of cores, and
neither distance nor the number of parties costs real time.
"""

import asyncio
import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

from typing_extensions import override

from securevfl.errors import PeerTimeout, PeerUnreachable
from securevfl.runtime.channel import Arrived, Channel, Inbox, M, NetworkEnd, expect
from securevfl.runtime.costs import Costs, Pace, Stopwatch, steady
from securevfl.runtime.line import Line, LinkCosts
from securevfl.runtime.views import View
from securevfl.wire.codec import JOB_HASH_BYTES, MAX_MESSAGE_BYTES, Message, Stage, encode

T = TypeVar("T")
Tamper = Callable[[str, str, bytes], bytes | None]


class Stalled(Exception):
    """All programs wait and no event is scheduled."""


@dataclass(slots=True, eq=False)
class _Due:
    """A scheduled callback, as the handle that asyncio expects."""

    moment: float
    callback: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.moment


class VirtualTimeLoop(asyncio.AbstractEventLoop):
    """A loop whose clock jumps to the next event; simultaneous callbacks run as scheduled.

    It handles only its own callbacks and futures: no sockets, signals, threads or processes. Other
    methods of asyncio's loops raise NotImplementedError.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Due] = deque()
        self._scheduled: list[tuple[float, int, _Due]] = []
        self._order = count()
        self._is_running = self._is_closed = False

    @override
    def time(self) -> float:
        return self._now

    def set_back(self, moment: float) -> None:
        """Set the clock to an earlier time."""
        self._now = min(self._now, moment)

    @override
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(self._now, callback, args, context or copy_context())
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(when, callback, args, context or copy_context())
        heapq.heappush(self._scheduled, (when, next(self._order), due))
        return due

    @override
    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **named)

    @override
    def run_until_complete(self, future: Any) -> Any:
        """As in asyncio; Stalled if no event is scheduled and the future is not done."""
        awaited = asyncio.ensure_future(future, loop=self)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not awaited.done():
                self._run_what_is_due()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
        return awaited.result()

    def _run_what_is_due(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            if not scheduled:
                raise Stalled
            self._now = max(self._now, scheduled[0][0])
            while scheduled and scheduled[0][0] <= self._now:
                ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            due = ready.popleft()
            if not due.is_cancelled:
                due.context.run(due.callback, *due.arguments)

    @override
    def is_running(self) -> bool:
        return self._is_running

    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @override
    def close(self) -> None:
        self._is_closed = True

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def set_debug(self, enabled: bool) -> None:
        """No effect: there is no debug mode."""

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """No effect: the caller awaits all programs and gets their errors."""

    @override
    async def shutdown_asyncgens(self) -> None:
        """No effect: the loop tracks no generators."""

    @override
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """No effect: there is no executor."""


class _End(NetworkEnd):
    """One party's end of the simulated network; a line transfers one message at a time.

    A party's clock is at or after the loop's. A computing party need not wait until the loop
    catches up: its messages are in the loop's future, and the loop advances only when every party
    waits for a message. Messages are therefore carried in the order of sending.

    A transfer takes latency + bytes / bandwidth, without the bytes of the envelope. What links cost
    takes turns at each end, half at the sender and half at the receiver.
    """

    def __init__(self, name: str, net: "_Network", costs: Costs, view: View | None) -> None:
        super().__init__(name, net.job, costs, max_message_bytes=net.max_bytes, view=view)
        self._net = net
        self._inboxes: defaultdict[Stage, Inbox] = defaultdict(Inbox)
        self._outgoing_free = self._incoming_free = 0.0

    @override
    async def send(self, to: str, message: Message) -> None:
        net, stage = self._net, message.stage
        data = encode(message)
        self.costs.sent(message, len(data))
        if to not in net.ends or to == self.name:
            raise PeerUnreachable(f"{self.name} has no peer {to!r}")
        delivered = data if net.tamper is None else net.tamper(self.name, to, data)
        # Envelopes need no seal here: nobody but this network touches them.
        envelope = self._enveloped(to, b"" if delivered is None else delivered)
        receiver, sent = net.ends[to], self.costs.now
        loop = asyncio.get_running_loop()

        def deliver(arrival: float) -> None:
            if delivered is not None:
                arrived = Arrived(envelope.number, arrival, envelope, sent)
                receiver._inboxes[stage].put(self.name, arrived)

        if stage == "evaluation":
            loop.call_at(sent, deliver, sent)
            return
        transfer, half = net.line.transfer_seconds(len(data)), net.links.seconds(len(data)) / 2
        departure = max(sent, self._outgoing_free) + half
        self._outgoing_free = departure + transfer
        first_bit = departure + net.line.latency_seconds

        def occupy_receiver() -> None:
            # Not before the first bit arrives: until then another message may come first.
            arrival = max(first_bit, receiver._incoming_free) + transfer + half
            receiver._incoming_free = arrival
            # Its arrival time is fixed, so the receiver's clock can advance at once.
            deliver(arrival)

        loop.call_at(first_bit, occupy_receiver)

    @override
    async def _next(
        self, senders: Collection[str], kind: type[M], step: int | None, timeout: float | None
    ) -> tuple[str, M]:
        costs, stage = self.costs, kind.stage
        before = costs.now
        try:
            deadline = None if timeout is None else before + timeout
            sender, arrived = await self._inboxes[stage].take(senders, deadline)
        except TimeoutError:
            costs.in_channel(stage, timeout or 0.0)
            raise
        finally:
            if stage == "evaluation":
                # Scoring is not part of training, yet parties wait for each other in it: a party
                # that waited resumes at its own earlier time, so the loop's clock is set back.
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualTimeLoop)  # noqa: S101
                loop.set_back(before)
        envelope = arrived.opened()
        if stage != "evaluation":
            overrun = costs.work_for(arrived.at - before)
            costs.received(stage, envelope.hops)
            if arrived.at > before:
                costs.waited(stage, envelope.path, arrived.sent, arrived.at, overrun)
        return sender, expect(envelope.message, sender, kind, step, self._max_bytes)


@dataclass(frozen=True)
class _Network:
    line: Line
    links: LinkCosts
    job: bytes
    tamper: Tamper | None
    max_bytes: int
    ends: dict[str, _End] = field(default_factory=dict)


Program = Callable[[Channel, Costs], Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class Simulated(Generic[T]):
    """The result of a simulated job, by party.

    Attributes:
        results: what each program returned.
        costs: each party's ledger.
        views: each party's view; empty unless recorded.
    """

    results: dict[str, T]
    costs: dict[str, Costs]
    views: dict[str, View]


def simulate(
    programs: Mapping[str, Program[T]],
    network: Line,
    *,
    links: LinkCosts | None = None,
    job_hash: bytes = bytes(JOB_HASH_BYTES),
    stopwatch: Stopwatch | None = None,
    record_views: bool = False,
    tamper: Tamper | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    paces: Mapping[str, Pace] | None = None,
) -> Simulated[T]:
    """Run one program per party until all have returned.

    Args:
        programs: by party name: a coroutine function of the party's channel and ledger.
        network: the model of the lines between parties.
        links: what messages cost besides; nothing by default.
        job_hash: of the job, for its envelopes.
        stopwatch: measures computation; `FixedCosts` makes a run deterministic to the bit.
        record_views: record what every party receives and decrypts.
        tamper: for fault tests: maps (sender, receiver, bytes) to the bytes to deliver, or None to
            lose the message.
        max_message_bytes: longer messages are refused by their receiver.
        paces: by party, how much longer than measured it computes.

    Raises:
        PeerTimeout: every party waits for a message and none has been sent.
        Exception: the first error of a program; the others are cancelled.
    """
    net = _Network(network, links or LinkCosts(), job_hash, tamper, max_message_bytes)
    stopwatch = stopwatch or Stopwatch()
    for name in programs:
        costs = Costs(stopwatch, (paces or {}).get(name, steady))
        net.ends[name] = _End(name, net, costs, View(name) if record_views else None)
    ends = net.ends.values()
    results: dict[str, T] = {}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            # Without its result: asyncio's runner prints the task at its end.
            runner.run(_run_together(programs, net.ends, results))
        except Stalled:
            waits = [f"{end.name} for {end.awaited}" for end in ends if end.waits_for]
            raise PeerTimeout("no message is under way, yet waiting: " + "; ".join(waits)) from None
    return Simulated(
        results,
        {end.name: end.costs for end in ends},
        {end.name: end.view for end in ends if end.view is not None},
    )


async def _run_together(
    programs: Mapping[str, Program[T]], ends: Mapping[str, _End], results: dict[str, T]
) -> None:
    tasks = {
        name: asyncio.create_task(program(ends[name], ends[name].costs))
        for name, program in programs.items()
    }
    try:
        await asyncio.gather(*tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        raise
    results.update({name: task.result() for name, task in tasks.items()})
