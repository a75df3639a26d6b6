import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.growth import published
from bench.growth.__main__ import GrowthSettings, growth
from bench.growth.laws import LAWS, fitted, law, laws, on_paper
from securevfl.benchmarks.progress import silent
from tests.end_to_end.commands import rows_from

GROWTH = Path(__file__).parents[2] / "bench/growth"


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


@pytest.mark.usefixtures("clean_place")
def test_the_model_of_a_published_size_is_as_good_as_that_behind_its_labels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    published.main(Path("made"), 3000, (10, 20), (20.0, 100.0))
    behind = float(capsys.readouterr().out.split()[-1])
    (row,) = rows_from("train", "made/job.toml")
    assert row["auc"] == pytest.approx(behind, abs=0.03)
    assert behind > 0.8


def test_figures_in_the_text_are_those_of_the_files() -> None:
    text = " ".join((GROWTH / "README.md").read_text(encoding="utf-8").split())
    files = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["rows"]
        for path in GROWTH.glob("*.json")
    }
    few, _, many = files["rounds-blind"]
    wide, two, all_17 = (
        files["columns-plain"][-1],
        files["parties-bfv"][0],
        files["parties-bfv"][-1],
    )
    (_, mid, long), (forecast,) = files["rows-bfv"], files["forecast-blind"]
    by_row = (long["round_bytes"] - mid["round_bytes"]) / (long["rows"] - mid["rows"])
    a_column = (mid["round_bytes"] - by_row * mid["rows"]) / mid["columns"]
    memory = (many["memory_bytes"] - few["memory_bytes"]) / (many["rounds"] - few["rounds"])
    busiest = all_17["busiest_round_cpu_s"] / two["busiest_round_cpu_s"]
    shape = forecast["rows"], forecast["columns"], forecast["parties"]
    measured = [row for name, rows in files.items() if name != "rounds-blind" for row in rows]
    for figures in (partial(law, measured, "blind", shape=shape), forecast.__getitem__):
        cpu, sent, most = map(figures, ("round_cpu_s", "round_bytes", "memory_bytes"))
        assert f"{cpu:.1f} s, {sent / 1e6:.0f} MB and {most / 1e9:.1f} GB" in text
    for figure in (
        f"about {round(a_column, -4) / 1e3:.0f} kB whatever the rows",
        f"as long as {wide['setup_cpu_s'] / wide['round_cpu_s']:.0f} rounds in clear",
        f"grows {busiest:.1f} times from 2 to 17 parties",
        f"a round sends {many['round_bytes'] / few['round_bytes']:.2f} times as much",
        f"by about {memory / 1e6:.0f} MB a round",
    ):
        assert figure in text
