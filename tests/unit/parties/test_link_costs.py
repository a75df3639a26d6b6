"""What a message costs on real links."""

import asyncio
from math import isfinite

import numpy as np
import pytest

from securevfl.parties import link_costs
from securevfl.parties.link_costs import IN_TURNS, LARGE, SMALL, costs_of, measured_link_costs
from securevfl.parties.links import Links


def test_a_message_on_a_real_pair_takes_some_time_and_its_bytes_do_not_give_any_back() -> None:
    links = measured_link_costs()
    assert links is not None
    assert links.message_seconds > 0
    assert links.byte_seconds >= 0
    assert isfinite(links.seconds(1 << 20))


@pytest.mark.parametrize("busy", [slice(0, 35), slice(35, None), np.r_[0:20, 30:40, 50:60]])
def test_other_work_on_this_machine_is_no_cost_of_links(busy: slice) -> None:
    """For its first half, for its second, or now and then."""
    idle = np.where(np.equal(IN_TURNS, LARGE), 3e-3, 1e-3)
    found = idle.copy()
    found[busy] += 0.02
    byte = 2e-3 / (8 * (LARGE - SMALL))
    assert (costs_of(found).message_seconds, costs_of(found).byte_seconds) == pytest.approx(
        (1e-3, byte)
    )


def test_a_machine_that_does_not_connect_to_itself_is_told_of_in_time_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []

    async def never(_self: object) -> None:
        waited.append(True)
        await asyncio.Event().wait()

    monkeypatch.setattr(Links, "connect", never)
    monkeypatch.setattr(link_costs, "MOST_SECONDS", 0.01)
    measured_link_costs.cache_clear()
    try:
        assert measured_link_costs() is None
        assert measured_link_costs() is None
    finally:
        measured_link_costs.cache_clear()
    assert len(waited) == len((link_costs.HERE, link_costs.THERE))
