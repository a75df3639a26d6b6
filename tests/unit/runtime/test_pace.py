import pytest

from securevfl.errors import ConfigError
from securevfl.runtime.pace import Pausing, Slower, steady


def test_a_steady_party_takes_what_is_measured() -> None:
    assert steady(3.0, 0.25) == 0.25


def test_a_slow_party_takes_longer_all_the_time() -> None:
    assert [Slower(4.0)(now, 0.25) for now in (0.0, 7.0)] == [1.0, 1.0]


def test_turns_pass_from_one_party_to_the_next() -> None:
    first, second = (Slower(4.0, period=1.0, turn=turn, turns=2) for turn in (0, 1))
    moments = (0.0, 0.9, 1.0, 1.9, 2.0)
    assert [first(now, 0.25) for now in moments] == [1.0, 1.0, 0.25, 0.25, 1.0]
    assert [second(now, 0.25) for now in moments] == [0.25, 0.25, 1.0, 1.0, 0.25]


def test_a_pause_comes_when_it_is_due_and_comes_again() -> None:
    pace = Pausing(every=1.0, pause=0.5)
    assert pace(0.0, 0.5) == 0.5
    assert pace(0.5, 0.6) == pytest.approx(1.1)
    assert pace(1.6, 0.5) == 0.5
    assert pace(2.1, 0.5) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Slower(0.0),
        lambda: Slower(2.0, period=-1.0),
        lambda: Slower(2.0, turn=2, turns=2),
        lambda: Pausing(0.0, 1.0),
        lambda: Pausing(1.0, -1.0),
    ],
)
def test_paces_that_cannot_be_are_refused(make: type) -> None:
    with pytest.raises(ConfigError, match="pace"):
        make()
