"""All parties of a job in one process, over a simulated network, in virtual time.

One event loop whose clock jumps to the next event instead of waiting for it. Computation is
measured on this machine and then passes in virtual time, so parties work in parallel however
many cores there are, and neither distance nor the number of parties costs real time.
"""

import asyncio
import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

from typing_extensions import override

from securevfl.errors import PeerTimeout, PeerUnreachable
from securevfl.runtime.channel import (
    Arrived,
    Channel,
    Inbox,
    M,
    awaited,
    expect,
    timed_out,
    unsealed,
)
from securevfl.runtime.costs import (
    Costs,
    Pace,
    Stopwatch,
    WorkAhead,
    component_of,
    overrun_phase,
    steady,
)
from securevfl.runtime.line import Line
from securevfl.runtime.views import RecordingChannel, View
from securevfl.wire.codec import (
    JOB_HASH_BYTES,
    MAX_MESSAGE_BYTES,
    Envelope,
    Message,
    Stage,
    encode,
    seal,
)

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


class PartyClock:
    """A party's own time, at or ahead of the loop's.

    A party that computes need not wait until the loop gets there: whatever it sends lies in the
    loop's future, and the loop goes on only when every party waits for a message. So messages are
    carried in the order of their senders' times all the same.

    Scoring is no part of training, yet the parties wait for each other in it. A party that
    waited resumes at its own earlier time, and the loop's clock is set back to it.
    """

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        """Seconds since the start of the job."""
        return self._time

    async def spend(self, seconds: float) -> None:
        """Let the time of a finished computation pass."""
        self._time += seconds

    def reach(self, moment: float) -> None:
        """Be at a moment."""
        self._time = moment

    def resume(self) -> None:
        """Be where the party stood before it waited."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)  # noqa: S101
        loop.set_back(self._time)


@dataclass(frozen=True)
class _Carried(Arrived):
    """An envelope at the end of its way.

    Attributes:
        data: its bytes.
        sent: when it was sent, on its sender's clock, which is everyone's here.
    """

    data: bytes
    sent: float


@dataclass
class _Endpoint:
    """One party's end of the simulated network; fills the Channel protocol."""

    name: str
    _wire: "_Wire"
    clock: PartyClock
    costs: Costs
    _inboxes: dict[Stage, Inbox[_Carried]] = field(default_factory=dict)
    waits_for: str | None = None

    def __post_init__(self) -> None:
        self._ahead = WorkAhead(self.costs)

    def inbox(self, stage: Stage) -> Inbox[_Carried]:
        return self._inboxes.setdefault(stage, Inbox())

    async def send(self, to: str, message: Message) -> None:
        data = encode(message)
        self.costs.sent(message, len(data))
        self._wire.carry(self, to, data, message.stage)

    async def receive(
        self,
        senders: Collection[str],
        kind: type[M],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, M]:
        before = self.clock.now()
        self.waits_for = awaited(senders, kind)
        deadline = None if timeout_seconds is None else before + timeout_seconds
        try:
            sender, carried = await self.inbox(kind.stage).take(senders, deadline)
        except TimeoutError:
            await self._pass_in_vain(kind.stage, timeout_seconds or 0.0)
            raise timed_out(self.name, timeout_seconds or 0.0, senders, kind) from None
        finally:
            self.waits_for = None
        envelope = unsealed(carried.data, sender, self._wire.job, self._wire.max_bytes)
        if kind.stage == "evaluation":
            self.clock.resume()
        else:
            self._pass_time(kind.stage, before, carried, envelope)
        return sender, expect(envelope.message, sender, kind, step, self._wire.max_bytes)

    async def _pass_in_vain(self, stage: Stage, seconds: float) -> None:
        if stage == "evaluation":
            self.clock.resume()
            return
        self.costs.passed(component_of(stage), seconds)
        await self.clock.spend(seconds)

    def _pass_time(
        self, stage: Stage, before: float, carried: _Carried, envelope: Envelope
    ) -> None:
        overrun = self._ahead.during(carried.at - before)
        self.clock.reach(max(before, carried.at) + overrun)
        self.costs.received(stage, envelope.hops)
        if carried.at > before:
            self.costs.take_over(envelope.path, component_of(stage), carried.sent, carried.at)
            if overrun:
                self.costs.passed(overrun_phase(stage), overrun)


class _Wire:
    """Carries envelopes between endpoints; lines serialize.

    A transfer takes latency + bytes / bandwidth for the bytes of the message, without those of its
    envelope.
    """

    def __init__(self, network: Line, job: bytes, tamper: Tamper | None, max_bytes: int) -> None:
        self.network = network
        self.job = job
        self.tamper = tamper
        self.max_bytes = max_bytes
        self.endpoints: dict[str, _Endpoint] = {}
        self._outgoing_free: defaultdict[str, float] = defaultdict(float)
        self._incoming_free: defaultdict[str, float] = defaultdict(float)
        self._sent: Counter[tuple[str, str]] = Counter()

    def carry(self, sender: _Endpoint, to: str, data: bytes, stage: Stage) -> None:
        if to not in self.endpoints or to == sender.name:
            raise PeerUnreachable(f"{sender.name} has no peer {to!r}")
        delivered = data if self.tamper is None else self.tamper(sender.name, to, data)
        number, sent = self._sent[sender.name, to], sender.clock.now()
        self._sent[sender.name, to] += 1
        costs = sender.costs
        sealed = None
        if delivered is not None:
            sealed = seal(
                Envelope(self.job, sender.name, number, costs.hops, costs.path, delivered)
            )
        inbox = self.endpoints[to].inbox(stage)
        loop = asyncio.get_running_loop()

        def deliver(arrival: float) -> None:
            if sealed is not None:
                inbox.put(sender.name, _Carried(number, arrival, sealed, sent))

        if stage == "evaluation":
            loop.call_at(sent, deliver, sent)
            return
        transfer = self.network.transfer_seconds(len(data))
        departure = max(sent, self._outgoing_free[sender.name])
        self._outgoing_free[sender.name] = departure + transfer
        first_bit = departure + self.network.latency_seconds

        def occupy_receiver() -> None:
            # Not before the first bit is there: until then another message may come first.
            arrival = max(first_bit, self._incoming_free[to]) + transfer
            self._incoming_free[to] = arrival
            # When it will be there is settled, and its receiver's clock can go there at once.
            deliver(arrival)

        loop.call_at(first_bit, occupy_receiver)


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
    wire = _Wire(network, job_hash, tamper, max_message_bytes)
    stopwatch = stopwatch or Stopwatch()
    for name in programs:
        clock = PartyClock()
        costs = Costs(clock, stopwatch, pace=(paces or {}).get(name, steady))
        wire.endpoints[name] = _Endpoint(name, wire, clock, costs)
    ends = wire.endpoints.values()
    recorders = {end.name: RecordingChannel(end) for end in ends} if record_views else {}
    channels: Mapping[str, Channel] = recorders or wire.endpoints
    ledgers = {end.name: end.costs for end in ends}
    results: dict[str, T] = {}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            # Not what it returns: a runner prints the task at its end, results and all.
            runner.run(_run_together(programs, channels, ledgers, results))
        except Stalled:
            waits = [f"{end.name} for {end.waits_for}" for end in ends if end.waits_for]
            raise PeerTimeout("no message is under way, yet waiting: " + "; ".join(waits)) from None
    return Simulated(
        results,
        ledgers,
        {name: recorder.view for name, recorder in recorders.items()},
    )


async def _run_together(
    programs: Mapping[str, Program[T]],
    channels: Mapping[str, Channel],
    ledgers: Mapping[str, Costs],
    results: dict[str, T],
) -> None:
    tasks = {
        name: asyncio.create_task(program(channels[name], ledgers[name]))
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
