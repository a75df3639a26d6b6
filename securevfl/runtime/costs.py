"""The cost ledger: computation and communication on two timers that never overlap.

Every party keeps a *path*: the seconds of computation (by phase) and of communication along the
longest chain of work and messages that ends at this party now. A message carries its sender's path;
a receiver that had to wait for the message adopts this path. The components of a path therefore add
up to the party's clock, and the job's totals are those of the party that finishes last.

Work done *offline*, before the rounds that use it, has its own components and counters, which
totals include: messages of the stage "offline", computation of the phase "correlated_randomness".
Work in waits is different: pieces without messages, which a party does while it waits for one
(`Costs.idle_work`, phase "offline"). Pieces that fit into waits are on no path.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from typing_extensions import override

from securevfl.shown import Shown
from securevfl.wire.codec import Message, Stage

CORRELATED_RANDOMNESS = "correlated_randomness"
OFFLINE = "offline"
PHASES = ("local", "encrypt", "evaluate", "decrypt", OFFLINE)
SETUP = "setup"
COMMUNICATION = "communication"
OFFLINE_COMMUNICATION = "offline communication"
SCORING = "scoring"

Path = dict[str, float]


_COMPONENTS: Mapping[Stage, str] = {
    "setup": SETUP,
    "offline": OFFLINE_COMMUNICATION,
    "round": COMMUNICATION,
}
"""Component of a path for the time of a stage's messages; scoring has none."""


class Stopwatch:
    """Measures compute sections by `clock`, in seconds; only one may be open at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._started: float | None = None

    def start(self) -> None:
        """Begin a section."""
        if self._started is not None:
            raise RuntimeError("a compute section must not wait: another one began inside it")
        self._started = self.clock()

    def stop(self, phase: str) -> float:
        """End the section and return its seconds."""
        if self._started is None:
            raise RuntimeError(f"no compute section is open to end phase {phase!r}")
        elapsed = self.clock() - self._started
        self._started = None
        return self.charge(phase, elapsed)

    def charge(self, phase: str, elapsed: float) -> float:
        """The seconds to charge for a section that took `elapsed`."""
        del phase
        return elapsed

    def made(self, parts: int, of: int) -> None:
        """Note how much of some long work is done; it begins with 0 parts."""


class FixedCosts(Stopwatch):
    """Charges fixed seconds per section of a phase, so that runs are reproducible to the bit."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__()
        self._seconds = seconds

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        """The fixed seconds of the phase; 0 if none are given."""
        del elapsed
        return self._seconds.get(phase, 0.0)


Pace = Callable[[float, float], float]
"""Maps a party's time and the measured seconds of a computation to its seconds at that party."""


def steady(now: float, seconds: float) -> float:
    """The measured seconds."""
    del now
    return seconds


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sent messages, their bytes, and the bytes of those with ciphertexts."""

    messages: int = 0
    bytes_sent: int = 0
    ciphertext_bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.messages + other.messages,
            self.bytes_sent + other.bytes_sent,
            self.ciphertext_bytes + other.ciphertext_bytes,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A ledger at the end of one round; `offline` is the part of its traffic sent offline."""

    path: Path
    traffic: Traffic
    hops: int
    hidden_s: float
    offline: Traffic


@dataclass
class Costs:
    """One party's costs and clock.

    The clock advances by computation and waits, measured or simulated, and stands still during
    scoring.

    Attributes:
        stopwatch: measures computation.
        pace: converts measured seconds to the party's own.
        now: seconds since the start of the job.
        seconds: the party's own compute seconds by phase.
        path: see the module; its values add up to `now`.
        operations: counts of operations ("encryptions", "products", "decryptions", …).
        messages: messages sent, by kind.
        bytes_sent: bytes sent, by kind.
        hops: length of the longest chain of round messages that ends here.
        idle_work: work for any wait; each call does one piece and returns whether there was one.
            Virtual time knows the end of a wait in advance, real time does not; both do the same
            pieces.
        hidden_s: seconds of such work that fitted into waits.
    """

    stopwatch: Stopwatch
    pace: Pace = steady
    now: float = 0.0
    seconds: Path = field(default_factory=dict)
    path: Path = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    bytes_sent: Counter[str] = field(default_factory=Counter)
    hops: int = 0
    idle_work: list[Callable[[], bool]] = field(default_factory=list)
    hidden_s: float = 0.0
    snapshots: list[Snapshot] = field(default_factory=list)
    _traffic: Traffic = Traffic()
    _traffic_offline: Traffic = Traffic()

    def compute(self, phase: str) -> "ComputeSection":
        """A timed section of computation: `async with costs.compute("encrypt"): …`."""
        return ComputeSection(self, phase)

    def count(self, operation: str, times: int = 1) -> None:
        """Count an operation."""
        self.operations[operation] += times

    def passed(self, component: str, seconds: float) -> None:
        """Add time to this party's own path."""
        self.path[component] = self.path.get(component, 0.0) + seconds
        self.now += seconds

    def in_channel(self, stage: Stage, seconds: float) -> None:
        """Add time for a message of a stage; scoring takes none."""
        if stage != "evaluation":
            self.passed(_COMPONENTS[stage], seconds)

    def waited(
        self, stage: Stage, path: Mapping[str, float], sent: float, arrival: float, overrun: float
    ) -> None:
        """Adopt the path of a message's sender, for which this party had to wait.

        Args:
            stage: of the message.
            path: the sender's, up to `sent`.
            sent: time on the sender's clock.
            arrival: time on this party's clock.
            overrun: seconds by which offline work outlasted the wait.
        """
        component = _COMPONENTS[stage]
        self.path = {**path, component: path.get(component, 0.0) + arrival - sent}
        self.now = arrival
        if overrun:
            self.passed(CORRELATED_RANDOMNESS if stage == "offline" else OFFLINE, overrun)

    def sent(self, message: Message, size: int) -> None:
        """Count a sent message, and its bytes without the envelope."""
        kind = type(message).__name__
        self.messages[kind] += 1
        self.bytes_sent[kind] += size
        if message.stage not in ("round", "offline"):
            return
        one = Traffic(1, size, size if message.carries == "ciphertexts" else 0)
        self._traffic += one
        if message.stage == "offline":
            self._traffic_offline += one

    def received(self, stage: Stage, hops: int) -> None:
        """Update hops by those of a received message's sender."""
        if stage == "round":
            self.hops = max(self.hops, hops + 1)
        elif stage == "offline":
            self.hops = max(self.hops, hops)

    def made_offline(self) -> dict[str, float]:
        """Costs of the offline phase so far: this party's path and traffic; see `bring`."""
        seconds = {
            each: self.path.get(each, 0.0)
            for each in (CORRELATED_RANDOMNESS, OFFLINE_COMMUNICATION)
        }
        return {**seconds, **asdict(self._traffic_offline)}

    def bring(self, made_offline: Mapping[str, float]) -> None:
        """Add `made_offline` of this party in an earlier run, as if it had been part of this one.

        Raises:
            KeyError: a figure is missing.
        """
        for component in (CORRELATED_RANDOMNESS, OFFLINE_COMMUNICATION):
            self.passed(component, made_offline[component])
        traffic = Traffic(**{name: int(made_offline[name]) for name in asdict(Traffic())})
        self._traffic += traffic
        self._traffic_offline += traffic

    def end_round(self, rounds: int = 1) -> None:
        """Record the ledger at the end of a round, or of several that end together."""
        path, traffic, offline = dict(self.path), self._traffic, self._traffic_offline
        self.snapshots += [Snapshot(path, traffic, self.hops, self.hidden_s, offline)] * rounds

    def work_for(self, wait_seconds: float) -> float:
        """Fill a wait of known length with offline work; returns the overrun in seconds."""
        left = max(wait_seconds, 0.0)
        while left > 0 and (spent := self._piece()) is not None:
            self.hidden_s += min(spent, left)
            left -= spent
        return max(-left, 0.0)

    async def work_until(
        self,
        over_for: Callable[[], float | None],
        passes: int = 1,
        arriving: Callable[[], bool] = lambda: False,
    ) -> float:
        """Fill a wait of unknown end with offline work; returns the overrun as `work_for`.

        `over_for` returns for how many seconds the wait has been over; None while it lasts. Within
        so many passes of the loop, messages that have arrived are let in. No piece begins once
        anything is `arriving`.
        """
        outlasted = 0.0
        while over_for() is None and not arriving() and (spent := self._piece()) is not None:
            for _ in range(passes):
                await asyncio.sleep(0)
            outlasted = min(over_for() or 0.0, spent)
            self.hidden_s += spent - outlasted
        return outlasted

    def _piece(self) -> float | None:
        """Seconds of one piece of work; None if there is none to do."""
        if not self.idle_work:
            return None
        self.stopwatch.start()
        # The first source with work left does one piece.
        worked = any(work() for work in self.idle_work)
        spent = self.stopwatch.stop(OFFLINE)
        if not worked:
            return None
        self.seconds[OFFLINE] = self.seconds.get(OFFLINE, 0.0) + spent
        return spent


class ComputeSection:
    """One timed section; it must not await anything inside."""

    def __init__(self, costs: Costs, phase: str) -> None:
        self._costs = costs
        self._phase = phase

    async def __aenter__(self) -> None:
        self._costs.stopwatch.start()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        costs, phase = self._costs, self._phase
        seconds = costs.stopwatch.stop(phase)
        if phase != SCORING:
            seconds = costs.pace(costs.now, seconds)
        costs.seconds[phase] = costs.seconds.get(phase, 0.0) + seconds
        if phase != SCORING and error is None:
            costs.passed(phase, seconds)


@dataclass(frozen=True, repr=False)
class JobCosts(Shown):
    """Costs of a job up to a round, over all parties.

    Figures other than `round_trips` include the offline phase up to then; those that begin with
    `offline_` are its part of them, 0 without an offline phase.

    Attributes:
        compute_s: computation on the critical path.
        communication_s: transfers and waiting for the network on the critical path.
        compute_by_phase_s: `compute_s` by phase.
        setup_s: set-up on the critical path (keys, agreement); not part of the total.
        round_trips: half the length of the longest chain of round messages.
        bytes_sent: bytes of all messages after the set-up except scoring.
        ciphertext_bytes: of `bytes_sent`, those of messages with ciphertexts.
        messages: number of all messages after the set-up except scoring.
        offline_hidden_s: offline work inside waits, over all parties; not part of the total.
    """

    compute_s: float
    communication_s: float
    compute_by_phase_s: dict[str, float]
    setup_s: float
    round_trips: float
    bytes_sent: int
    ciphertext_bytes: int
    messages: int
    offline_hidden_s: float
    offline_compute_s: float
    offline_communication_s: float
    offline_bytes: int
    offline_ciphertext_bytes: int
    offline_messages: int

    @override
    def shown(self) -> dict[str, object]:
        """The ledger's totals."""
        phases = {name: s for name, s in self.compute_by_phase_s.items() if s}
        offline = {
            "made offline": f"{self.offline_s:.3g} s and {self.offline_bytes:,} bytes of these",
        }
        return {
            "total": f"{self.total_s:.3g} s and {self.setup_s:.3g} s of set-up",
            "computation": f"{self.compute_s:.3g} s",
            **{f"of it {name}": f"{seconds:.3g} s" for name, seconds in phases.items()},
            "communication": f"{self.communication_s:.3g} s in {self.round_trips:g} round trips",
            "sent": f"{self.bytes_sent:,} bytes in {self.messages} messages",
            **(offline if self.offline_messages or self.offline_s else {}),
        }

    def row(self) -> dict[str, Any]:
        """The costs as fields of a result row."""
        return {**asdict(self), "total_s": self.total_s}

    @property
    def total_s(self) -> float:
        """Seconds of the critical path after the set-up."""
        return self.compute_s + self.communication_s

    @property
    def offline_s(self) -> float:
        """Seconds of the total that the offline phase took."""
        return self.offline_compute_s + self.offline_communication_s


def job_costs(ledgers: Mapping[str, Costs], rounds: int) -> JobCosts:
    """Costs of a job's first `rounds` rounds: the path of the party that ends them last."""
    snapshots = [ledger.snapshots[rounds - 1] for ledger in ledgers.values()]
    last = max(snapshots, key=lambda snapshot: sum(snapshot.path.values())).path
    phases = {phase: last.get(phase, 0.0) for phase in PHASES}
    if CORRELATED_RANDOMNESS in last:
        phases[CORRELATED_RANDOMNESS] = last[CORRELATED_RANDOMNESS]
    communication_offline = last.get(OFFLINE_COMMUNICATION, 0.0)
    traffic = sum((snapshot.traffic for snapshot in snapshots), Traffic())
    offline = sum((snapshot.offline for snapshot in snapshots), Traffic())
    return JobCosts(
        compute_s=sum(phases.values()),
        communication_s=last.get(COMMUNICATION, 0.0) + communication_offline,
        compute_by_phase_s=phases,
        setup_s=last.get(SETUP, 0.0),
        round_trips=max(snapshot.hops for snapshot in snapshots) / 2,
        **asdict(traffic),
        offline_hidden_s=sum(snapshot.hidden_s for snapshot in snapshots),
        offline_compute_s=phases.get(CORRELATED_RANDOMNESS, 0.0),
        offline_communication_s=communication_offline,
        offline_bytes=offline.bytes_sent,
        offline_ciphertext_bytes=offline.ciphertext_bytes,
        offline_messages=offline.messages,
    )
