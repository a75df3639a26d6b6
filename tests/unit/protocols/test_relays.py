"""Shares on their way to the two that compute residuals, and back: sums, hops and refusals.

That nobody sees more of others than their sum, see end_to_end/test_blind_twins.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

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
from securevfl.wire.codec import Message
from tests.plans import agreed_masks

LABEL, PARTNER = "label", "party 1"
ROWS = 5
LAN = Line(latency_ms=1.0, bandwidth_mbit=1e15)
Words = dict[str, RingArray]
Rounds = list[tuple[RingArray | None, RingArray]]


def parties(count: int) -> tuple[str, ...]:
    # The label party need not be the first.
    return (PARTNER, LABEL, *(f"party {number}" for number in range(2, count)))


def words(names: Sequence[str]) -> Words:
    return {name: ring.uniform(ROWS) for name in names}


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
