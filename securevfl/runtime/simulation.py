"""All parties of a job in one process, over a simulated network, in virtual time.

One event loop whose clock jumps to the next event instead of waiting for it. Computation is
measured on this machine and then passes in virtual time, so parties work in parallel however
many cores there are, and neither distance nor the number of parties costs real time.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from securevfl.errors import PeerTimeout, PeerUnreachable
from securevfl.runtime.ahead import WorkAhead
from securevfl.runtime.channel import Channel, M, awaited, expect, timed_out, unsealed
from securevfl.runtime.costs import Costs, Stopwatch, component_of, overrun_phase
from securevfl.runtime.inbox import Arrived, Inbox
from securevfl.runtime.line import Line
from securevfl.runtime.pace import Pace, steady
from securevfl.runtime.views import RecordingChannel, View
from securevfl.runtime.virtual_time import PartyClock, Stalled, VirtualTimeLoop
from securevfl.wire.codec import MAX_MESSAGE_BYTES, Message, Stage, encode
from securevfl.wire.envelope import JOB_HASH_BYTES, Envelope, seal

T = TypeVar("T")
Tamper = Callable[[str, str, bytes], bytes | None]


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
