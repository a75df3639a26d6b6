from typing import Any

import pytest

from bench.growth.__main__ import GrowthSettings, growth
from bench.growth.laws import LAWS, fitted, law, laws, on_paper
from securevfl.benchmarks.progress import silent


def few(**settings: object) -> GrowthSettings:
    """Small tables, once."""
    return GrowthSettings.model_validate({"columns": 3, "repeats": 1, "rounds": 2, **settings})


def test_bytes_in_clear_are_one_number_a_row_each_way_and_grow_with_parties() -> None:
    settings = few(rows=(200, 400, 200), parties=(2, 2, 5))
    small, long, many = (row["round_bytes"] for row in growth(settings, silent))
    assert long - small == 16 * 200
    assert many == 4 * small


def test_encryption_takes_keys_bytes_and_messages_that_training_in_clear_does_not() -> None:
    plain, bfv, blind = (
        next(growth(few(exchange=each, rows=200), silent)) for each in ("plain", "bfv", "blind")
    )
    for figure in ("setup_bytes", "round_bytes"):
        assert plain[figure] < bfv[figure] < blind[figure]
    assert all(row["busiest_round_cpu_s"] < row["round_cpu_s"] for row in (plain, bfv, blind))
    # Two and four latencies of 20 ms, whatever computation takes.
    assert plain["wan_s"] > 0.04
    assert bfv["wan_s"] > 0.08


def test_a_forecast_has_the_bytes_of_rounds_and_none_of_the_set_up() -> None:
    settings = few(exchange="blind", rows=200)
    measured = next(growth(settings, silent))
    forecast = next(growth(settings.model_copy(update={"forecast": True}), silent))
    assert forecast["round_bytes"] == measured["round_bytes"]
    assert forecast["setup_bytes"] == 0


def row(exchange: str, rows: int, columns: int, parties: int) -> dict[str, Any]:
    """What a law of two terms, with factors 2 and 3, says of each figure."""
    shape = {"rows": rows, "columns": columns, "parties": parties, "rounds": 5}
    figure = 2.0 * parties * rows + 3.0 * parties * rows * columns
    return {
        **shape,
        "exchange": exchange,
        "forecast": False,
        **{name: figure for each, name in LAWS if each == exchange},
    }


def test_laws_are_found_again_without_forecasts_and_say_how_far_rows_are_off() -> None:
    shapes = [(100, 1, 2), (100, 7, 2), (900, 7, 2), (900, 50, 5), (5000, 50, 5)]
    rows = [row("plain", *shape) for shape in shapes]
    rows.append({**row("plain", 1, 1, 1), "round_cpu_s": 1e9, "forecast": True})
    rows.append({**row("plain", 1, 1, 2), "round_cpu_s": 1e9, "rounds": 20})
    _, deviation = fitted(rows, "plain", "round_cpu_s")
    assert deviation < 1e-6
    assert law(rows, "plain", "round_cpu_s", (1e9, 100, 2)) == pytest.approx(604e9)
    rows[0]["round_cpu_s"] = 1.5 * 1000  # 1,000 by the law
    assert 0.05 < fitted(rows, "plain", "round_cpu_s")[1] < 0.5


def test_each_exchange_has_a_line_on_paper_and_one_for_each_law() -> None:
    shapes = [(100, 1, 2), (100, 7, 2), (900, 7, 2), (900, 50, 5), (5000, 50, 5)]
    rows = [row(name, *shape) for name in ("plain", "bfv", "blind") for shape in shapes]
    assert [line[0] for line in on_paper(rows)] == ["exchange", "plain", "bfv", "blind"]
    assert len(laws(rows)) == 1 + len(LAWS)
