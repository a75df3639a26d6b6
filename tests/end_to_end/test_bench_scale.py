"""`bench fdml-scale` on a made set that is small, and what it rests on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, with_config

from securevfl.benchmarks.fdml_processes import timed_processes
from securevfl.benchmarks.fdml_profile import PHASES, REST
from securevfl.benchmarks.in_one_place import side_by_side
from securevfl.benchmarks.peak_memory import forget_peak, peak_bytes
from securevfl.benchmarks.scale import job_at_scale, planted_shards
from securevfl.benchmarks.settings.scale import ScaleSettings
from securevfl.errors import ConfigError, DataError
from securevfl.reports.scale import ScaleRow, exponent, growth, laws
from securevfl.sparse import SparseRows
from securevfl.training import train
from tests.end_to_end.commands import rows_of, run
from tests.sparse_data import sparse_rows

Capture = pytest.CaptureFixture[str]


def test_a_set_that_is_not_there_is_named_with_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data make planted-sparse --to \S+/no-set` makes it"):
        planted_shards(tmp_path / "no-set")


@pytest.mark.usefixtures("clean_place")
def test_it_shows_a_table_and_writes_its_rows(capsys: Capture) -> None:
    for rows_made in (1000, 2000):
        made = f"--rows {rows_made} --seed 5 --to planted-{rows_made} --quiet"
        assert run("data", "make", "planted-sparse", *made.split()) == 0
    capsys.readouterr()
    options = (
        "--shards planted-1000,planted-2000 --batch-size 100 --batches-per-message 2 "
        "--precision single --epochs 3 --profile"
    )
    files = ("--json", "out.json", "--html", "out.html")
    assert run("bench", "fdml-scale", *options.split(), *files) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "one place, S = 100 grows as rows to the power of: CPU " in " ".join(shown.split())
    assert Path("out.html").read_text().count("<svg") == 2
    found = rows_of("out.json", "bench fdml-scale")
    adapter: TypeAdapter[Any] = TypeAdapter(with_config(extra="forbid")(ScaleRow))
    for each in found:
        adapter.validate_json(json.dumps(each), strict=True)
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

    dataset = planted_shards(Path("planted-1000"))
    blocks = [table.train for table in dataset.parties]
    together = side_by_side(blocks)
    dense = np.hstack([block[:].toarray() for block in blocks])  # type: ignore[union-attr]
    assert isinstance(together, SparseRows)
    np.testing.assert_array_equal(together.toarray(), dense)


@pytest.mark.usefixtures("clean_place")
def test_parties_that_are_processes_train_the_same_and_say_their_peak() -> None:
    made = "--rows 1000 --seed 5 --to planted --quiet"
    assert run("data", "make", "planted-sparse", *made.split()) == 0
    settings = ScaleSettings(
        shards=(Path("planted"),), batch_size=(300,), batches_per_message=(1,), alone=False
    )
    dataset = planted_shards(Path("planted"))
    job = job_at_scale(replace(settings, epochs=2, standardize=True), 300, 1, 900)
    assert job.job.standardize
    found = timed_processes(job, dataset, Path("planted"))
    assert found.auc == pytest.approx(train(job, dataset).clear_auc, abs=1e-9)
    assert found.seconds > 0
    if peak_bytes() is not None:
        assert found.peak_bytes is not None
        assert found.peak_bytes > 1 << 24


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


def test_values_stand_side_by_side_with_ones_and_kinds_do_not_mix() -> None:
    ones = sparse_rows(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    values = sparse_rows(np.array([[0.0, 2.5], [-1.0, 0.0], [0.0, 0.0]]))
    assert ones.values is None
    both = side_by_side([ones, values, ones])
    assert isinstance(both, SparseRows)
    expected = np.hstack([each.toarray() for each in (ones, values, ones)])
    np.testing.assert_array_equal(both.toarray(), expected)
    with pytest.raises(ConfigError, match="side by side"):
        side_by_side([ones, np.ones((3, 1))])
    with pytest.raises(ValueError, match="as they are stored"):
        side_by_side([ones, ones.with_constant()])


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
