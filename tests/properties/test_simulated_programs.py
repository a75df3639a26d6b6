"""Random programs over the simulated network: paths add up, runs repeat, scoring is free.

One list of events in one order gives every party its program: what it sends stands before what
others receive, so no program of this kind stalls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.scoring import Verdict
from securevfl.runtime.channel import Channel, collect
from securevfl.runtime.costs import SCORING, Costs, FixedCosts, job_costs
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Program, Simulated, simulate
from securevfl.wire.codec import Message, Stage
from tests.made_offline import Pad

# 1000 bytes a second, or lines that are never busy.
SLOW = Line(latency_ms=250, bandwidth_mbit=8e-3)
FAST = Line(latency_ms=250, bandwidth_mbit=1e15)


@dataclass(frozen=True)
class Work:
    party: int
    phase: str


@dataclass(frozen=True)
class Spoken:
    sender: int
    receiver: int
    size: int
    stage: Stage


@dataclass(frozen=True)
class ScoreNow:
    """Held-out predictions from all to party 0, its verdict to all."""


Event = Work | Spoken | ScoreNow
PHASE_SECONDS = {
    "start": 0.0113,
    "local": 0.37,
    "encrypt": 1.91,
    "decrypt": 7.3,
    "offline": 0.0,
    "correlated_randomness": 2.3,
}
KINDS: Mapping[Stage, Callable[[int], Message]] = {
    "setup": lambda size: PublicKey("x", bytes(size)),
    "offline": lambda size: Pad(0, np.zeros(size // 8)),
    "round": lambda size: Predictions(0, np.zeros(size // 8)),
}


def random_events(parties: int, *, scoring: bool = False) -> st.SearchStrategy[list[Event]]:
    party, stages = st.integers(0, parties - 1), st.sampled_from(sorted(KINDS))
    ends = st.lists(party, min_size=2, max_size=2, unique=True)
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(Work, party, st.sampled_from(sorted(PHASE_SECONDS))),
        st.builds(lambda pair, *rest: Spoken(*pair, *rest), ends, st.integers(0, 3000), stages),
    ]
    if scoring:
        kinds.append(st.just(ScoreNow()))
    return st.lists(st.one_of(kinds), max_size=25)


@dataclass(frozen=True)
class Moment:
    """Where a party stands after an event."""

    clock: float
    path: dict[str, float]
    hops: int


async def play(
    channel: Channel, costs: Costs, *, me: int, parties: int, events: Sequence[Event]
) -> list[Moment]:
    moments = []
    for event in (Work(me, "start"), *events):
        match event:
            case Work(party, phase) if party == me:
                async with costs.compute(f"{phase} {me}"):
                    pass
            case Spoken(sender, receiver, size, stage):
                message = KINDS[stage](size)
                if sender == me:
                    await channel.send(str(receiver), message)
                elif receiver == me:
                    await channel.receive([str(sender)], type(message))
            case ScoreNow():
                await score(channel, costs, me, parties)
                continue
        moments.append(Moment(costs.now, dict(costs.path), costs.hops))
    costs.end_round()
    return moments


async def score(channel: Channel, costs: Costs, me: int, parties: int) -> None:
    async with costs.compute(SCORING):
        pass
    others = [str(party) for party in range(1, parties)]
    if me:
        await channel.send("0", HeldOutPredictions(0, np.zeros(5000)))
        await channel.receive(["0"], Verdict)
        return
    await collect(channel, others, HeldOutPredictions)
    async with costs.compute(SCORING):
        pass
    for name in others:
        await channel.send(name, Verdict(0, stop=False))


def play_all(
    parties: int, events: Sequence[Event], network: Line = SLOW
) -> Simulated[list[Moment]]:
    programs: dict[str, Program[list[Moment]]] = {
        str(me): partial(play, me=me, parties=parties, events=events) for me in range(parties)
    }
    # No two parties ever do something at the same moment: which of them is first is open then.
    seconds = {
        f"{phase} {me}": took * (1 + me / 31)
        for me in range(parties)
        for phase, took in PHASE_SECONDS.items()
    }
    stopwatch = FixedCosts({**seconds, SCORING: 1000.0})
    return simulate(programs, network, stopwatch=stopwatch)


@given(random_events(4, scoring=True))
@settings(deadline=None)
def test_the_components_of_a_path_add_up_to_the_clock(events: list[Event]) -> None:
    for moments in play_all(4, events).results.values():
        for moment in moments:
            assert sum(moment.path.values()) == pytest.approx(moment.clock, abs=1e-6)
        clocks = [moment.clock for moment in moments]
        assert clocks == pytest.approx(sorted(clocks))


@given(random_events(4, scoring=True))
@settings(deadline=None)
def test_two_runs_with_fixed_costs_are_the_same_to_the_bit(events: list[Event]) -> None:
    first, second = play_all(4, events), play_all(4, events)
    assert first.results == second.results
    for name, ledger in first.costs.items():
        again = second.costs[name]
        assert ledger.snapshots == again.snapshots
        assert (ledger.path, ledger.seconds) == (again.path, again.seconds)
        assert (ledger.messages, ledger.bytes_sent) == (again.messages, again.bytes_sent)


@given(random_events(4))
@settings(deadline=None)
def test_what_is_said_offline_takes_the_time_and_bytes_it_takes_in_a_round(
    events: list[Event],
) -> None:
    """It moves between columns and changes no total."""
    called: list[Event] = [
        replace(event, stage="round") if isinstance(event, Spoken) and event.stage == "offline"
        else event
        for event in events
    ]  # fmt: skip
    offline, rounds = play_all(4, events), play_all(4, called)
    for name, moments in offline.results.items():
        others = rounds.results[name]
        assert [m.clock for m in moments] == pytest.approx([m.clock for m in others])
        assert all(m.hops <= other.hops for m, other in zip(moments, others, strict=True))
    some, none = job_costs(offline.costs, 1), job_costs(rounds.costs, 1)
    assert (some.messages, some.bytes_sent) == (none.messages, none.bytes_sent)
    said = [each for each in events if isinstance(each, Spoken) and each.stage == "offline"]
    assert some.offline_messages == len(said)
    assert (none.offline_messages, none.offline_bytes, none.offline_communication_s) == (0, 0, 0.0)


@pytest.mark.parametrize(("parties", "network"), [(2, SLOW), (4, FAST)])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_scoring_at_any_time_leaves_the_parties_time_unchanged(
    parties: int, network: Line, data: st.DataObject
) -> None:
    events = data.draw(random_events(parties, scoring=True))
    training = [event for event in events if not isinstance(event, ScoreNow)]
    scored, unscored = (play_all(parties, each, network) for each in (events, training))
    for name, moments in scored.results.items():
        reference = unscored.results[name]
        assert [m.clock for m in moments] == pytest.approx([m.clock for m in reference])
        # Of two paths of the same length either may be taken: their length is what counts.
        lengths = [sum(m.path.values()) for m in reference]
        assert [sum(m.path.values()) for m in moments] == pytest.approx(lengths, abs=1e-6)
        assert [m.hops for m in moments] == [m.hops for m in reference]
    with_scores, without = job_costs(scored.costs, 1), job_costs(unscored.costs, 1)
    assert with_scores.bytes_sent == without.bytes_sent
    assert with_scores.messages == without.messages
    assert with_scores.round_trips == without.round_trips
