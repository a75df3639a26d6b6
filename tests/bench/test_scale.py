import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.experiment import Run, run_one
from bench.scale.__main__ import EXPERIMENT, ScaleSettings, job_at_scale
from bench.scale.peak_memory import forget_peak, peak_bytes
from bench.scale.phases import PHASES, REST
from bench.scale.planted import made, opened
from bench.scale.processes import timed_processes
from bench.scale.tables import exponent, growth, laws
from securevfl.cli.options import Output
from securevfl.errors import ConfigError
from securevfl.job import NetworkSettings
from securevfl.training import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a set of 1000 rows."""
    place = tmp_path_factory.mktemp("sets")
    made(place, [(1000, 8700)], 5)
    return place


def test_a_set_is_made_once_and_again_where_that_was_interrupted(folder: Path) -> None:
    (place,) = made(folder, [(1000, 8700)], 5)
    job, shard = place / "job.toml", place / "store" / "train"
    before = shard.stat().st_mtime_ns
    assert made(folder, [(1000, 8700)], 5) == [place]
    assert shard.stat().st_mtime_ns == before
    job.unlink()
    made(folder, [(1000, 8700)], 5)
    assert job.exists()
    assert shard.stat().st_mtime_ns > before
    with pytest.raises(ConfigError, match="columns = 3, expected 870 to "):
        made(folder, [(1000, 3)], 5)


def test_it_shows_tables_and_writes_its_rows_and_a_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "rows": (1000, 2000),
        "set_seed": 5,
        "batch_size": 100,
        "batches_per_message": 2,
        "precision": "single",
        "epochs": 3,
        "learning_rate": 10.0,
        "alone": True,
        "profile": True,
    }
    output = Output(folder / "out.json", html=folder / "out.html")
    run_one(EXPERIMENT, Run(0, settings), output, data_dir=folder)
    title, *shown = capsys.readouterr().out.splitlines()
    assert title.startswith("rows = (1000, 2000), ")
    assert max(map(len, shown)) <= 80
    assert "…" not in "".join(shown)
    for told in ("fdml, to one place", "fdml by phase", "one place, S = 100 grows as rows to the"):
        assert any(line.startswith(told) for line in shown)
    assert (folder / "out.html").read_text().count("<svg") == 2
    result = json.loads((folder / "out.json").read_text())
    assert "data_dir" not in result["settings"]
    found = result["rows"]
    assert len({tuple(sorted(row)) for row in found}) == 1
    trainings = ["store alone", "browser alone", "safety alone", "one place", "fdml"]
    assert [row["training"] for row in found] == 2 * trainings
    assert [row["rows"] for row in found] == [900] * 5 + [1800] * 5
    for *_, one, fdml in (found[:5], found[5:]):
        # The same model on the same batches, but for float32 and one stale batch of two.
        assert fdml["auc"] == pytest.approx(one["auc"], abs=0.05)
        assert fdml["ratio_to_one_place"] > 0
        assert fdml["stored_bytes"] > one["stored_bytes"]  # pointers three times
        assert 0 < fdml["network_s_per_epoch"] < fdml["virtual_s_per_epoch"]
        phases = fdml["phases_s"]
        assert set(phases) == {*PHASES, REST}
        assert min(phases.values()) >= 0
        assert phases["made ready for kernels"] > 0
        assert one["phases_s"] is None
        assert fdml["processes_s_per_epoch"] is fdml["process_peak_bytes"] is None


def test_parties_that_are_processes_train_the_same_and_say_their_peak(folder: Path) -> None:
    (place,) = made(folder, [(1000, 8700)], 5)
    dataset = opened(place)
    job = job_at_scale(ScaleSettings(learning_rate=10, standardize=True), 300, 1, 900)
    assert job.job.standardize
    found = timed_processes(job, dataset, place)
    assert found.auc == pytest.approx(train(job, dataset).clear_auc, abs=1e-9)
    assert found.seconds > 0
    if peak_bytes() is not None:
        assert found.peak_bytes is not None
        assert found.peak_bytes > 1 << 24


def test_a_network_is_a_preset_or_two_numbers_and_mistakes_are_named() -> None:
    def network(text: str) -> NetworkSettings:
        return ScaleSettings.model_validate({"network": text}).network

    assert network("wan").preset == "wan"
    assert network("20:100") == NetworkSettings(latency_ms=20, bandwidth_mbit=100)
    for change, expected in (
        ("network=lann", "--set network: .*'lann': expected lan, "),
        ("batch_size=3,4,5", "batch_size has 3 values, batches_per_message 2"),
    ):
        with pytest.raises(ConfigError, match=expected):
            run_one(EXPERIMENT, Run(0), Output(), [change])


def test_an_exponent_is_of_rows_and_needs_two_sizes() -> None:
    row: Any = {"rows": 100, "cpu_s_per_epoch": 3.0, "virtual_s_per_epoch": None}
    more: Any = {**row, "rows": 10_000, "cpu_s_per_epoch": 300.0}
    assert exponent([row, more], "cpu_s_per_epoch") == pytest.approx(1.0)
    assert exponent([row, row], "cpu_s_per_epoch") is None
    assert exponent([row, more], "virtual_s_per_epoch") is None


def test_laws_are_of_whatever_sets_differ_in_the_other_size_fixed() -> None:
    def row(training: str, rows: int, columns: int, together: int = 1) -> Any:  # noqa: ANN401
        figures = {"cpu_s_per_epoch": rows * columns**0.5, "process_peak_bytes": None}
        sizes = {
            "rows": rows,
            "columns": columns,
            "batch_size": 10,
            "batches_per_message": together,
        }
        others = dict.fromkeys(("virtual_s_per_epoch", "processes_s_per_epoch"))
        return {"training": training, **sizes, **figures, **others}

    wider = [row("fdml", 100, columns) for columns in (10, 100, 1000)]
    assert laws(wider) == ["fdml, S = 10 grows as columns to the power of: CPU 0.50"]
    assert growth(wider, "CPU", "cpu_s_per_epoch", "columns")["x"] == [10, 100, 1000]
    longer = [row("fdml", rows, 10) for rows in (1000, 10_000)]
    assert laws([*wider, *longer]) == [
        "fdml, S = 10, 10 columns grows as rows to the power of: CPU 1.00",
        "fdml, S = 10, 100 rows grows as columns to the power of: CPU 0.50",
    ]
    several = [row("fdml", rows, 10, 16) for rows in (1000, 10_000)]
    assert laws([*longer, *several])[1] == (
        "fdml, S = 10, n = 16 grows as rows to the power of: CPU 1.00"
    )


def test_a_peak_can_be_forgotten_where_the_system_can() -> None:
    before = peak_bytes()
    if before is None:
        pytest.skip("this system does not say how much memory a process had")
    held = np.ones(1 << 24)
    forget_peak()
    with_it = peak_bytes()
    del held
    forget_peak()
    after = peak_bytes()
    assert with_it is not None
    assert after is not None
    if after == with_it:
        pytest.skip("this system does not let a peak be forgotten")
    assert with_it - after > 1 << 26
