"""Shares on their way to the two that compute residuals, and back: sums, and what views show.

For the views, masks are solved: whatever others hold instead, there are pair streams with which the
same messages come, bit for bit. That this holds of whole jobs see end_to_end/test_blind_twins.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import CryptoError, UnexpectedMessage
from securevfl.models.losses import loss_for
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.fixed_point import PhaseFormat
from securevfl.protocols.blind.relays import (
    MaskedResiduals,
    PredictionShares,
    gather_shares,
    give_phases,
    hand_back,
)
from securevfl.protocols.blind.residuals import MaskedPhases
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import Channel, collect
from securevfl.runtime.costs import COMMUNICATION, Costs, FixedCosts
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Simulated, simulate
from securevfl.wire.codec import Message, encode
from tests.plans import agreed_masks

LABEL, PARTNER = "label", "party 1"
ROWS = 5
LAN = Line(latency_ms=1.0, bandwidth_mbit=1e15)
Words = dict[str, RingArray]
Streams = dict[frozenset[str], RingArray]
Rounds = list[tuple[RingArray | None, RingArray]]


def parties(count: int) -> tuple[str, ...]:
    # The label party need not be the first.
    return (PARTNER, LABEL, *(f"party {number}" for number in range(2, count)))


def words(names: Sequence[str]) -> Words:
    return {name: ring.uniform(ROWS) for name in names}


class MadeMasks(PairwiseMasks):
    """Masks whose pair streams the test has made: for sums over more than the two, and for two."""

    def __init__(self, own_name: str, names: Sequence[str], gathered: Streams, back: Words) -> None:
        super().__init__(own_name, {name: b"" for name in names if name != own_name})
        self._gathered, self._back = gathered, back

    @override
    def zero_share(self, members: Sequence[str], context: str, shape: tuple[int, ...]) -> RingArray:
        if context.startswith("MaskedResiduals"):
            assert set(members) == {LABEL, PARTNER}
            mask = self._back[context.split(maxsplit=2)[2]]
            return mask if self._own_name == LABEL else -mask
        share = np.zeros(shape, np.uint64)
        for name in members:
            if name != self._own_name:
                stream = self._gathered[frozenset((name, self._own_name))]
                share += stream if self._own_name < name else -stream
        return share


def party_of(channel: Channel, costs: Costs, names: tuple[str, ...]) -> Party:
    return Party(channel, costs, names, LABEL, loss_for("logistic", 2, ROWS))


def run(
    names: tuple[str, ...],
    masks: dict[str, PairwiseMasks],
    shares: Words,
    pads: Words,
    *,
    steps: int = 1,
) -> Simulated[Rounds]:
    """Rounds in which d is H: gathered and handed back."""

    async def program(channel: Channel, costs: Costs, name: str) -> Rounds:
        party = party_of(channel, costs, names)
        drawn = {LABEL: {n: w for n, w in pads.items() if n != LABEL}, PARTNER: pads}.get(name, {})
        out = []
        for step in range(steps):
            held = await gather_shares(party, masks[name], step, shares[name])
            assert (held is None) == (name not in (LABEL, PARTNER))
            back = await hand_back(party, masks[name], step, held, pads=drawn, shape=(ROWS,))
            out.append((held, back))
        return out

    programs = {name: partial(program, name=name) for name in names}
    return simulate(programs, LAN, record_views=True, stopwatch=FixedCosts({}))


def received(result: Simulated[Any], name: str) -> list[tuple[str, bytes]]:
    entries = result.views[name].received()
    return [(each.sender, encode(each.message)) for each in entries]


def total(values: Words) -> RingArray:
    return ring.reduced(np.add.reduce(list(values.values())))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_two_share_the_sum_and_owners_get_it_less_their_pads(count: int) -> None:
    names = parties(count)
    shares, pads = words(names), words(names)
    result = run(names, agreed_masks(names), shares, pads, steps=2)
    for step in range(2):
        rounds = {name: each[step] for name, each in result.results.items()}
        first, second = rounds[LABEL][0], rounds[PARTNER][0]
        assert first is not None
        assert second is not None
        np.testing.assert_array_equal(ring.reduced(first + second), total(shares))
        for name in names:
            expected = ring.reduced(total(shares) - pads[name])
            np.testing.assert_array_equal(rounds[name][1], expected)


@pytest.mark.parametrize(("count", "messages", "hops"), [(2, 2, 1), (3, 5, 2), (5, 11, 2)])
def test_messages_and_hops_of_a_round(count: int, messages: int, hops: int) -> None:
    names = parties(count)
    result = run(names, agreed_masks(names), words(names), words(names))
    assert (
        sum(each.messages.total() for each in result.costs.values())
        == messages
        == max(3 * count - 4, 2)
    )
    assert max(each.hops for each in result.costs.values()) == hops
    longest = max(each.path[COMMUNICATION] for each in result.costs.values())
    assert longest == pytest.approx(hops * 1e-3)


def made(names: tuple[str, ...]) -> tuple[Streams, Words]:
    gathered = {frozenset(pair): ring.uniform(ROWS) for pair in combinations(names, 2)}
    return gathered, words(names[2:])


def seen(
    names: tuple[str, ...], shares: Words, pads: Words, gathered: Streams, back: Words
) -> Simulated[Rounds]:
    masks: dict[str, PairwiseMasks] = {
        name: MadeMasks(name, names, gathered, back) for name in names
    }
    return run(names, masks, shares, pads)


def moved(gathered: Streams, one: str, other: str, by: RingArray) -> None:
    """Takes so much from the share of zero of one, and gives it to the other's."""
    pair = frozenset((one, other))
    gathered[pair] = gathered[pair] - by if one < other else gathered[pair] + by


@pytest.mark.parametrize("count", [4, 5])
def test_the_two_together_see_only_the_sum_of_the_others(count: int) -> None:
    names = parties(count)
    shares, pads, (gathered, back) = words(names), words(names), made(names)
    before = seen(names, shares, pads, gathered, back)
    change = ring.uniform(ROWS)
    one, another = names[2:4]
    other = shares | {one: shares[one] + change, another: shares[another] - change}
    # Streams with the two stay: only the two others' own moves.
    gathered = dict(gathered)
    moved(gathered, one, another, change)
    after = seen(names, other, pads, gathered, back)
    for name in (LABEL, PARTNER):
        assert received(after, name) == received(before, name)
        for ours, theirs in zip(after.results[name][0], before.results[name][0], strict=True):
            assert ours is not None
            assert theirs is not None
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("again", "which"),
    # The label party draws none on the way in.
    [((), "PredictionShares 0"), ((PARTNER, "party 2"), "MaskedResiduals 0 party 2")],
)
def test_masks_of_a_step_are_used_once(again: tuple[str, ...], which: str) -> None:
    names = parties(3)
    masks, shares, pads = agreed_masks(names), words(names), words(names)
    run(names, masks, shares, pads)
    fresh = agreed_masks(names)
    with pytest.raises(CryptoError, match=f"{which}.* was used before"):
        run(names, masks | {name: fresh[name] for name in again}, shares, pads)


@pytest.mark.parametrize("kind", [PredictionShares, MaskedResiduals])
def test_a_share_of_another_length_is_refused(kind: type[PredictionShares]) -> None:
    names = parties(3)
    masks = agreed_masks(names)

    async def program(channel: Channel, costs: Costs, name: str) -> None:
        party, share = party_of(channel, costs, names), ring.uniform(ROWS)
        if name == names[2]:
            short: Message = kind(0, ring.uniform(ROWS - 1))
            await channel.send(LABEL, short)
        elif kind is PredictionShares:
            await gather_shares(party, masks[name], 0, share)
        elif name == PARTNER:
            await channel.send(LABEL, kind(0, ring.uniform(ROWS - 1)))
        else:
            await hand_back(party, masks[name], 0, share, pads=words(names), shape=(ROWS,))

    programs = {name: partial(program, name=name) for name in names}
    with pytest.raises(UnexpectedMessage, match="sent an array of"):
        simulate(programs, LAN)


PHASES = PhaseFormat(SigmoidSeries.of_period(32), 32)


def given(
    names: tuple[str, ...], masks: Mapping[str, PairwiseMasks], shares: Words
) -> Simulated[list[NDArray[np.uint16]]]:
    """The two's own phases of H, without a pad, and those that the others gave them."""

    async def program(channel: Channel, costs: Costs, name: str) -> list[NDArray[np.uint16]]:
        party = party_of(channel, costs, names)
        share = await give_phases(party, masks[name], 0, shares[name], PHASES)
        assert (share is None) == (name in names[2:])
        if share is None:
            return []
        found = await collect(channel, names[2:], MaskedPhases, 0)
        own = PHASES.phases(share, first=party.holds_labels)
        return [own, *(np.frombuffer(each.phases, "<u2") for each in found.values())]

    programs = {name: partial(program, name=name) for name in names}
    return simulate(programs, LAN, record_views=True, stopwatch=FixedCosts({}))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_phases_of_all_shares_add_up_to_that_of_the_sum(count: int) -> None:
    names = parties(count)
    shares = words(names)
    result = given(names, agreed_masks(names), shares).results
    (first, *others), (second, *same) = result[LABEL], result[PARTNER]
    np.testing.assert_array_equal(others, same)
    assert len(others) == count - 2
    added = np.sum([first, second, *others], axis=0, dtype=np.uint16)
    apart = (added - PHASES.phases(total(shares), first=True)).view(np.int16)
    # Every share is rounded.
    assert np.abs(apart).max() <= count


def test_a_phase_of_a_share_is_masked_for_the_label_party() -> None:
    names = parties(4)
    shares, (gathered, back) = words(names), made(names)
    other = words(names) | {LABEL: shares[LABEL]}
    solved = dict(gathered)
    for name in names[2:]:
        moved(solved, name, PARTNER, other[name] - shares[name])
    views = []
    for values, streams in ((shares, gathered), (other, solved)):
        masks = {name: MadeMasks(name, names, streams, back) for name in names}
        views.append(received(given(names, masks, values), LABEL))
    assert len(views[0]) == 2
    assert views[0] == views[1]
