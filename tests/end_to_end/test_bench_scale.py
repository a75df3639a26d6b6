"""`bench fdml-scale` on a made set that is small, and what it rests on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, with_config

from securevfl.benchmarks.scale import first_rows, forget_peak, peak_bytes, planted_shards
from securevfl.errors import ConfigError
from securevfl.reports import rows
from securevfl.sparse import SparseRows
from securevfl.sparse_tables import check_cells, side_by_side
from tests.end_to_end.commands import rows_of, run

Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("clean_place")
def test_it_shows_a_table_and_writes_its_rows(capsys: Capture) -> None:
    made = "--rows 1000 --seed 5 --to planted-sparse --quiet"
    assert run("data", "make", "planted-sparse", *made.split()) == 0
    capsys.readouterr()
    options = "--rows 600,0 --batch-size 100 --batches-a-message 2 --precision single --epochs 3"
    assert run("bench", "fdml-scale", *options.split(), "--json", "out.json") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    found = rows_of("out.json", "bench fdml-scale")
    adapter: TypeAdapter[Any] = TypeAdapter(with_config(extra="forbid")(rows.ScaleRow))
    for each in found:
        adapter.validate_json(json.dumps(each), strict=True)
    trainings = ["store alone", "browser alone", "safety alone", "one place", "fdml"]
    assert [row["training"] for row in found] == 2 * trainings
    assert [row["rows"] for row in found] == [600] * 5 + [900] * 5
    for *_, one, fdml in (found[:5], found[5:]):
        # The same model on the same batches, but for float32 and one stale batch of two.
        assert fdml["auc"] == pytest.approx(one["auc"], abs=0.05)
        assert fdml["ratio_to_one_place"] > 0
        assert fdml["stored_bytes"] > one["stored_bytes"]  # pointers three times

    dataset = planted_shards(Path("planted-sparse"))
    fewer = first_rows(dataset, 600)
    for table, whole in zip(fewer.parties, dataset.parties, strict=True):
        assert isinstance(table.train, SparseRows)
        assert isinstance(whole.train, SparseRows)
        assert np.shares_memory(table.train.indices, whole.train.indices)
    together = side_by_side([table.train for table in fewer.parties])
    dense = np.hstack([table.train[:].toarray() for table in fewer.parties])  # type: ignore[union-attr]
    assert isinstance(together, SparseRows)
    check_cells(together)
    np.testing.assert_array_equal(together.toarray(), dense)


def test_values_stand_side_by_side_with_ones_and_kinds_do_not_mix() -> None:
    ones = SparseRows.of(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    values = SparseRows.of(np.array([[0.0, 2.5], [-1.0, 0.0], [0.0, 0.0]]))
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
