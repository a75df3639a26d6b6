"""What a message costs on real links."""

import asyncio
from math import isfinite

import pytest

from securevfl.errors import PeerUnreachable
from securevfl.parties import link_costs
from securevfl.parties.link_costs import measured_link_costs
from securevfl.parties.links import Links


def test_a_message_on_a_real_pair_takes_some_time_and_its_bytes_do_not_give_any_back() -> None:
    links = measured_link_costs()
    assert links.message_seconds > 0
    assert links.byte_seconds >= 0
    assert isfinite(links.seconds(1 << 20))


def test_a_machine_that_does_not_connect_to_itself_is_told_of_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Links, "connect", never)
    monkeypatch.setattr(link_costs, "MOST_SECONDS", 0.01)
    measured_link_costs.cache_clear()
    with pytest.raises(PeerUnreachable, match="does not connect to itself"):
        measured_link_costs()
