"""All parties of a job in one process, over a simulated network, in virtual time.

One event loop whose clock jumps to the next event instead of waiting for it. Computation is
measured on this machine and then passes in virtual time, so parties work in parallel however
many cores there are, and neither distance nor the number of parties costs real time.
"""

import asyncio
import selectors
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.errors import PeerTimeout, PeerUnreachable
from securevfl.runtime.channel import Channel, M, expect
from securevfl.runtime.costs import COMMUNICATION, SETUP, Costs, Path, Stopwatch
from securevfl.runtime.line import Line
from securevfl.runtime.pace import Pace, steady
from securevfl.runtime.views import Decrypted, Learned, Received, View
from securevfl.wire.codec import MAX_MESSAGE_BYTES, Message, Stage, encode

T = TypeVar("T")
Tamper = Callable[[str, str, bytes], bytes | None]


class _Stalled(Exception):
    """Every party waits and nothing is under way."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for `timeout` it moves the loop's clock on."""

    virtual_now = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise _Stalled
            self.virtual_now += max(timeout, 0.0)
        return events


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.virtual_now

    def set_back(self, moment: float) -> None:
        self._jumping.virtual_now = min(self._jumping.virtual_now, moment)


@dataclass(frozen=True)
class _Envelope:
    number: int
    data: bytes
    sent: float
    arrival: float
    path: Path
    hops: int


class _PartyClock:
    """A party's own time.

    Scoring is no part of training, yet the parties wait for each other in it. A party that
    waited resumes at its own earlier time: the loop's clock is set back, and whoever is ahead
    sleeps until it gets there again. So parties always act in the order of their own times.
    """

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        return self._time

    async def spend(self, seconds: float) -> None:
        await self.reach(self._time + seconds)

    async def reach(self, moment: float) -> None:
        self._time = moment
        ahead = moment - asyncio.get_running_loop().time()
        if ahead > 0:
            await asyncio.sleep(ahead)


class _Inbox:
    """Envelopes of one stage, by sender."""

    def __init__(self) -> None:
        self._queues: dict[str, list[_Envelope]] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, sender: str, envelope: _Envelope) -> None:
        # The loop runs what is due at one moment in any order; a line keeps the order of sending.
        insort(self._queues.setdefault(sender, []), envelope, key=lambda each: each.number)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, senders: Collection[str]) -> tuple[str, _Envelope]:
        while True:
            heads = [(self._queues[s][0].arrival, s) for s in senders if self._queues.get(s)]
            if heads:
                _, sender = min(heads)
                return sender, self._queues[sender].pop(0)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


@dataclass
class _Endpoint:
    """One party's end of the simulated network; fills the Channel protocol."""

    name: str
    _wire: "_Wire"
    clock: _PartyClock
    costs: Costs
    view: View | None
    _inboxes: dict[Stage, _Inbox] = field(default_factory=dict)
    waits_for: str | None = None

    def inbox(self, stage: Stage) -> _Inbox:
        return self._inboxes.setdefault(stage, _Inbox())

    async def send(self, to: str, message: Message) -> None:
        data = encode(message)
        self.costs.sent(message, len(data))
        self._wire.carry(self, to, data, message.stage)

    async def receive(
        self, senders: Collection[str], kind: type[M], step: int | None = None
    ) -> tuple[str, M]:
        before = self.clock.now()
        self.waits_for = f"{kind.__name__} from {' or '.join(sorted(senders))}"
        sender, envelope = await self.inbox(kind.stage).take(senders)
        self.waits_for = None
        if kind.stage == "evaluation":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, _VirtualTimeLoop)  # noqa: S101
            loop.set_back(before)
            await self.clock.reach(before)
        else:
            await self._pass_time(kind.stage, before, envelope)
        message = expect(envelope.data, sender, kind, step, self._wire.max_bytes)
        if self.view is not None:
            self.view.entries.append(Received(sender, message))
        return sender, message

    async def _pass_time(self, stage: Stage, before: float, envelope: _Envelope) -> None:
        overrun = self.costs.work_ahead(envelope.arrival - before)
        await self.clock.reach(max(before, envelope.arrival) + overrun)
        if stage == "round":
            self.costs.hops = max(self.costs.hops, envelope.hops + 1)
        if envelope.arrival > before:
            component = SETUP if stage == "setup" else COMMUNICATION
            path = dict(envelope.path)
            path[component] = path.get(component, 0.0) + envelope.arrival - envelope.sent
            if overrun:
                path["offline"] = path.get("offline", 0.0) + overrun
            self.costs.path = path

    def record_decrypted(self, sender: str, step: int, values: NDArray[Any]) -> None:
        if self.view is not None:
            self.view.entries.append(Decrypted(sender, step, values))

    def record_learned(self, sender: str, step: int, values: NDArray[np.float64]) -> None:
        if self.view is not None:
            self.view.entries.append(Learned(sender, step, values))


class _Wire:
    """Carries bytes between endpoints after latency + bytes / bandwidth; lines serialize."""

    def __init__(self, network: Line, tamper: Tamper | None, max_bytes: int) -> None:
        self.network = network
        self.tamper = tamper
        self.max_bytes = max_bytes
        self.endpoints: dict[str, _Endpoint] = {}
        self._outgoing_free: defaultdict[str, float] = defaultdict(float)
        self._incoming_free: defaultdict[str, float] = defaultdict(float)
        self._sent = 0

    def carry(self, sender: _Endpoint, to: str, data: bytes, stage: Stage) -> None:
        if to not in self.endpoints or to == sender.name:
            raise PeerUnreachable(f"{sender.name} has no peer {to!r}")
        delivered = data if self.tamper is None else self.tamper(sender.name, to, data)
        self._sent += 1
        number, sent = self._sent, sender.clock.now()
        path, hops = dict(sender.costs.path), sender.costs.hops
        inbox = self.endpoints[to].inbox(stage)
        loop = asyncio.get_running_loop()

        def deliver(arrival: float) -> None:
            if delivered is not None:
                envelope = _Envelope(number, delivered, sent, arrival, path, hops)
                loop.call_at(arrival, inbox.put, sender.name, envelope)

        if stage == "evaluation":
            deliver(sent)
            return
        transfer = self.network.transfer_seconds(len(data))
        departure = max(sent, self._outgoing_free[sender.name])
        self._outgoing_free[sender.name] = departure + transfer
        first_bit = departure + self.network.latency_seconds

        def occupy_receiver() -> None:
            # Not before the first bit is there: until then another message may come first.
            arrival = max(first_bit, self._incoming_free[to]) + transfer
            self._incoming_free[to] = arrival
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
    wire = _Wire(network, tamper, max_message_bytes)
    stopwatch = stopwatch or Stopwatch()
    for name in programs:
        clock = _PartyClock()
        view = View(name) if record_views else None
        costs = Costs(clock, stopwatch, pace=(paces or {}).get(name, steady))
        wire.endpoints[name] = _Endpoint(name, wire, clock, costs, view)
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        try:
            results = runner.run(_run_together(programs, wire.endpoints))
        except _Stalled:
            waits = [f"{e.name} for {e.waits_for}" for e in wire.endpoints.values() if e.waits_for]
            raise PeerTimeout("no message is under way, yet waiting: " + "; ".join(waits)) from None
    ends = wire.endpoints.values()
    return Simulated(
        results,
        {end.name: end.costs for end in ends},
        {end.name: end.view for end in ends if end.view is not None},
    )


async def _run_together(
    programs: Mapping[str, Program[T]], endpoints: Mapping[str, _Endpoint]
) -> dict[str, T]:
    tasks = {
        name: asyncio.create_task(program(endpoints[name], endpoints[name].costs))
        for name, program in programs.items()
    }
    try:
        await asyncio.gather(*tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        raise
    return {name: task.result() for name, task in tasks.items()}
