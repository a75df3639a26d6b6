import pytest

from securevfl.benchmarks.progress import TimeLeft, duration, silent


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "1 s"), (55.4, "55 s"), (100, "2 min"), (5000, "83 min"), (9000, "2.5 h")],
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_forecast_is_said_once_from_what_was_done_since_the_first_report() -> None:
    said: list[str] = []
    heard: list[float] = []

    def hear(what: str, done: float = 0, total: int | None = None) -> None:
        heard.append(done)

    forecast = TimeLeft(
        hear, said.append, "two runs", iter([100.0, 101.0, 110.0, 110.0, 117.0]).__next__
    )
    assert said == []
    forecast("getting ready")
    assert said == ["two runs"]
    # After one second, or of next to nothing, there is nothing to say.
    for done in (40, 70, 41):
        forecast("work", done, 100)
    assert said == ["two runs"]
    for done in (52, 60):
        forecast("work", done, 100)
    assert said == ["two runs", "about 40 s left"]
    assert heard == [0, 40, 70, 41, 52, 60]


def test_what_is_done_has_no_forecast() -> None:
    said: list[str] = []
    forecast = TimeLeft(silent, said.append, "", iter([0.0, 9.0]).__next__)
    forecast("work", 0, 5)
    forecast("work", 5, 5)
    assert said == []


def test_pieces_of_work_have_forecasts_of_their_own() -> None:
    said: list[str] = []
    clock = iter([0.0, 4.0, 5.0, 15.0]).__next__
    forecast = TimeLeft(silent, said.append, "", clock, by_piece=True)
    forecast("plain, Q = 1, round 2")
    for what, done in (("bfv, Q = 1", 1), ("bfv, Q = 5", 3), ("ckks, Q = 1", 0), ("ckks", 5)):
        forecast(what, done, 10)
    assert said == ["bfv: about 14 s left", "ckks: about 10 s left"]


def test_a_forecast_that_was_wrong_is_put_right() -> None:
    said: list[str] = []
    forecast = TimeLeft(silent, said.append, "", iter([0.0, 10.0, 28.0, 60.0]).__next__)
    # At 28 s of 40 that were thought all is as it was; at 60 it takes 120.
    for done in (0, 25, 60, 50):
        forecast("work", done, 100)
    assert said == ["about 30 s left", "now about 60 s left"]
