import statistics

import pytest
import typer

from bench.offline.__main__ import OTHERS, OfflineSettings, ProfilingStopwatch, offline, place_of
from securevfl.benchmarks.progress import silent
from securevfl.crypto.residues import uniform_words


def test_a_profile_is_of_the_phases_that_it_is_asked_for() -> None:
    stopwatch = ProfilingStopwatch({"correlated_randomness"})
    for phase in ("local", "correlated_randomness", "correlated_randomness"):
        stopwatch.start()
        uniform_words(100_000)
        assert stopwatch.stop(phase) > 0
    place = place_of(uniform_words.__code__)
    assert place == "crypto/residues.py"
    assert stopwatch.spent[place].calls == 2
    assert stopwatch.spent[place].seconds > 0


def test_places_are_functions_of_seal_modules_other_packages_or_python() -> None:
    assert place_of("<built-in method _sealapi_cpp.multiply_plain>") == "SEAL multiply_plain"
    assert place_of(typer.run.__code__) == "typer"
    assert place_of(statistics.median.__code__) == "Python"


def test_places_that_take_longest_come_first_and_all_add_up_to_the_phase() -> None:
    *places, others = offline(
        OfflineSettings(local_steps=3, batch_size=64, rounds=1, places=3), silent
    )
    assert len(places) == 3
    assert others["place"] == OTHERS
    times = [row["seconds"] for row in places]
    assert times == sorted(times, reverse=True)
    assert sum(row["share"] for row in (*places, others)) == pytest.approx(1)
