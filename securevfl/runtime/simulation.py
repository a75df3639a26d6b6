"""All parties of a job in one process, over a simulated network, in virtual time.

One event loop whose clock jumps to the next event instead of waiting for it. Computation is
measured on this machine and then passes in virtual time, so parties work in parallel however
many cores there are, and neither distance nor the number of parties costs real time.
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
from securevfl.runtime.line import Line
from securevfl.runtime.views import View
from securevfl.wire.codec import JOB_HASH_BYTES, MAX_MESSAGE_BYTES, Message, Stage, encode

T = TypeVar("T")
Tamper = Callable[[str, str, bytes], bytes | None]


class Stalled(Exception):
    """Everyone waits and nothing is under way."""


class _Due:
    """A callback that is to run; fills what asyncio expects of handles."""

    __slots__ = ("_when", "arguments", "callback", "context", "is_cancelled")

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._when, self.callback, self.arguments = when, callback, arguments
        self.context = context or copy_context()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


class VirtualTimeLoop(asyncio.AbstractEventLoop):
    """A loop whose clock jumps to the next event; at one moment, first asked is first run.

    It knows of nothing but its own callbacks and futures: no sockets, signals, threads or
    processes. What asyncio asks of a loop beside these raises NotImplementedError.
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
        """Let the clock show an earlier moment."""
        self._now = min(self._now, moment)

    @override
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(self._now, callback, args, context)
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(when, callback, args, context)
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
        """As asyncio has it.

        Raises:
            Stalled: nothing is due, and the future is not done.
        """
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
        """Nothing: it has no such mode."""

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing: whoever runs programs waits for all of them, and gets their errors."""

    @override
    async def shutdown_asyncgens(self) -> None:
        """Nothing: it follows none."""

    @override
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing: it has none."""


class _End(NetworkEnd):
    """One party's end of the simulated network; lines serialize.

    A party's clock is at or ahead of the loop's. A party that computes need not wait until the loop
    gets there: whatever it sends lies in the loop's future, and the loop goes on only when every
    party waits for a message. So messages are carried in the order of their senders' times all the
    same.

    A transfer takes latency + bytes / bandwidth for the bytes of the message, without those of its
    envelope.
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
        number, sealed = self._sealed(to, b"" if delivered is None else delivered)
        receiver, sent = net.ends[to], self.costs.now
        loop = asyncio.get_running_loop()

        def deliver(arrival: float) -> None:
            if delivered is not None:
                envelope = receiver._unsealed(self.name, sealed)
                arrived = Arrived(number, arrival, envelope, sent)
                receiver._inboxes[stage].put(self.name, arrived)

        if stage == "evaluation":
            loop.call_at(sent, deliver, sent)
            return
        transfer = net.line.transfer_seconds(len(data))
        departure = max(sent, self._outgoing_free)
        self._outgoing_free = departure + transfer
        first_bit = departure + net.line.latency_seconds

        def occupy_receiver() -> None:
            # Not before the first bit is there: until then another message may come first.
            arrival = max(first_bit, receiver._incoming_free) + transfer
            receiver._incoming_free = arrival
            # When it will be there is settled, and its receiver's clock can go there at once.
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
                # Scoring is no part of training, yet the parties wait for each other in it: one
                # that waited resumes at its own earlier time, and the loop's clock is set back.
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
    """What all ends share."""

    line: Line
    job: bytes
    tamper: Tamper | None
    max_bytes: int
    ends: dict[str, _End] = field(default_factory=dict)


Program = Callable[[Channel, Costs], Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class Simulated(Generic[T]):
    """What a simulated job left behind, by party.

    Attributes:
        results: what each program returned.
        costs: each party's ledger.
        views: each party's recorded view (empty unless views were recorded).
    """

    results: dict[str, T]
    costs: dict[str, Costs]
    views: dict[str, View]


def simulate(
    programs: Mapping[str, Program[T]],
    network: Line,
    *,
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
        job_hash: of the job, for its envelopes.
        stopwatch: how computation is timed; `FixedCosts` makes a run deterministic to the bit.
        record_views: keep what every party receives and decrypts.
        tamper: for fault tests: sees every message as (sender, receiver, bytes) and returns the
            bytes to deliver, or None to lose them.
        max_message_bytes: longer messages are refused by their receiver.
        paces: by party, how much longer than measured it computes.

    Raises:
        PeerTimeout: every party waits for a message and none is under way.
        Exception: the first error that a program raised; the others are cancelled.
    """
    net = _Network(network, job_hash, tamper, max_message_bytes)
    stopwatch = stopwatch or Stopwatch()
    for name in programs:
        costs = Costs(stopwatch, (paces or {}).get(name, steady))
        net.ends[name] = _End(name, net, costs, View(name) if record_views else None)
    ends = net.ends.values()
    results: dict[str, T] = {}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            # Not what it returns: a runner prints the task at its end, results and all.
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
