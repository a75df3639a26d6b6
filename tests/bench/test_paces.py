import pytest

from bench.paces import Slower
from securevfl.errors import ConfigError
from securevfl.runtime.costs import steady


def test_a_steady_party_takes_what_is_measured_and_a_slow_one_longer_all_the_time() -> None:
    assert steady(3.0, 0.25) == 0.25
    assert [Slower(4.0)(now, 0.25) for now in (0.0, 7.0)] == [1.0, 1.0]


def test_turns_pass_from_one_party_to_the_next() -> None:
    first, second = (Slower(4.0, period=1.0, turn=turn, turns=2) for turn in (0, 1))
    moments = (0.0, 0.9, 1.0, 1.9, 2.0)
    assert [first(now, 0.25) for now in moments] == [1.0, 1.0, 0.25, 0.25, 1.0]
    assert [second(now, 0.25) for now in moments] == [0.25, 0.25, 1.0, 1.0, 0.25]


def test_paces_that_cannot_be_are_refused() -> None:
    for factor, given in ((0.0, {}), (2.0, {"period": -1.0}), (2.0, {"turn": 2, "turns": 2})):
        with pytest.raises(ConfigError, match="pace"):
            Slower(factor, **given)
