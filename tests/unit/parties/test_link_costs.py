"""What a message costs on real links."""

from math import isfinite

from securevfl.parties.link_costs import measured_link_costs


def test_a_message_on_a_real_pair_takes_some_time_and_its_bytes_do_not_give_any_back() -> None:
    links = measured_link_costs()
    assert links.message_seconds > 0
    assert links.byte_seconds >= 0
    assert isfinite(links.seconds(1 << 20))
