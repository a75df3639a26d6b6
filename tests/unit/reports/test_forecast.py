"""How long a job will take, from its first rounds."""

import time

from securevfl.reports.training import Forecast, SetupWatch, WithinRounds
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, OFFLINE, SETUP


def forecast(rounds: int, *, may_end: bool = False) -> Forecast:
    stopwatch = SetupWatch()
    stopwatch.rounds_began = 102.0
    return Forecast(rounds, may_end, stopwatch, started=100.0)


def test_a_long_first_round_says_enough() -> None:
    line = forecast(10, may_end=True).after(1, 122.0)
    assert line == (
        "set-up took 2 s, a round takes 20 s: at most 10 rounds take about 200 s; it may end sooner"
    )


def test_after_a_short_one_the_second_is_measured_and_it_is_said_once() -> None:
    one = forecast(100)
    assert one.after(1, 102.5) is None
    line = one.after(2, 102.6)
    assert line is not None
    assert line.endswith("a round takes 100 ms: at most 100 rounds take about 10.4 s")
    assert one.after(3, 102.7) is None


def test_the_only_round_is_reported_however_short() -> None:
    assert "a round takes 500 ms: it is the only one" in (forecast(1).after(1, 102.5) or "")


def test_set_up_ends_with_the_first_section_of_another_phase() -> None:
    stopwatch = SetupWatch()

    def after(phase: str) -> float | None:
        stopwatch.start()
        stopwatch.stop(phase)
        return stopwatch.rounds_began

    assert (after(SETUP), after(OFFLINE), after(SETUP)) == (None, None, None)
    before = time.perf_counter()
    began = after("local")
    assert began is not None
    assert before <= began <= time.perf_counter()
    assert after("encrypt") == began


def test_what_is_made_offline_is_no_set_up_and_no_round() -> None:
    """3 s of it before rounds began, 5 s in the first."""
    one = forecast(10)
    one.stopwatch.offline_before_s, one.stopwatch.offline_s = 3.0, 8.0
    one.stopwatch.rounds_began = 105.0
    line = one.after(1, 130.0)
    assert line == (
        "set-up took 2 s, the offline phase 8 s, a round takes 20 s: "
        "at most 10 rounds take about 200 s"
    )


def test_a_stopwatch_tells_what_was_made_offline_from_rounds() -> None:
    stopwatch = SetupWatch()
    assert stopwatch.charge(CORRELATED_RANDOMNESS, 2.0) == 2.0
    assert stopwatch.rounds_began is None
    stopwatch.charge("local", 1.0)
    stopwatch.charge(CORRELATED_RANDOMNESS, 4.0)
    assert (stopwatch.offline_before_s, stopwatch.offline_s) == (2.0, 6.0)


def test_progress_moves_within_a_long_round_by_the_time_of_the_round_before() -> None:
    shown: list[tuple[str, float]] = []
    within = WithinRounds(lambda what, done: shown.append((what, done)), done=3, began=100.0)
    within.worked("setup", 100.1)  # too soon to say anything
    within.worked("setup", 101.0)
    within.ended(4, 110.0)
    within.worked("evaluate", 115.0)
    within.worked("decrypt", 115.2)
    within.worked("decrypt", 140.0)  # longer than the round before
    assert shown == [
        (", setup, 1 s so far", 3.0),
        (", evaluate, 5 s so far", 4.5),
        (", decrypt, 30 s so far", 4.95),
    ]


def test_progress_moves_after_rounds_that_ended_together() -> None:
    shown: list[float] = []
    within = WithinRounds(lambda what, done: shown.append(done), done=0, began=100.0)
    for done in (1, 2):
        within.ended(done, 110.0)
    within.worked("evaluate", 115.0)
    assert shown == [2.95]


def test_long_work_says_how_much_is_done_and_how_long_the_rest_takes() -> None:
    watch = SetupWatch()
    now = 100.0
    watch.clock = lambda: now
    assert watch.left == ""
    watch.made(0, 40)
    assert watch.left == ""
    now = 115.0
    watch.made(10, 40)
    assert watch.left == ": this part 25%, 45 s left"
    watch.made(40, 40)
    assert watch.left == ""


def test_a_watch_tells_of_every_section() -> None:
    phases: list[str] = []
    watch = SetupWatch(phases.append)
    for phase in (SETUP, "local"):
        watch.start()
        watch.stop(phase)
    assert phases == [SETUP, "local"]
