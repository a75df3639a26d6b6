from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from securevfl import blocks
from securevfl.blocks import BlockedRows
from securevfl.data import FileSource, VerticalDataset, features, load_files, read, read_party
from securevfl.errors import DataError
from securevfl.recipe import Preprocessing
from securevfl.sparse import Matrix, dense
from tests.jobs import fit, relative_difference

ROWS = 90
IDS = [f"p{number:03}" for number in range(ROWS)]


@pytest.fixture
def bank(tmp_path: Path) -> FileSource:
    generator = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "id": IDS,
            "default": generator.integers(0, 2, ROWS),
            "income": generator.standard_normal(ROWS).astype(np.float32),
            "children": generator.integers(0, 5, ROWS).astype(np.int8),
            "balance": generator.standard_normal(ROWS),
            "again": np.arange(ROWS, dtype=np.int32),
            "owner": generator.integers(0, 2, ROWS).astype(bool),
            "rent": generator.standard_normal(ROWS).astype(np.float32),
        }
    )
    frame.write_parquet(tmp_path / "bank.parquet")
    return FileSource("bank", tmp_path / "bank.parquet", "id", label_column="default")


@pytest.fixture
def shop(tmp_path: Path) -> FileSource:
    generator = np.random.default_rng(1)
    towns = generator.choice(["Bonn", "Köln", "Ulm"], ROWS)
    spend = [None if number % 9 == 0 else number / 3 for number in range(ROWS)]
    frame = pl.DataFrame({"id": IDS, "town": towns, "spend": spend})
    frame.sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "shop.parquet")
    settings = Preprocessing(rare_count=1)
    return FileSource("shop", tmp_path / "shop.parquet", "id", preprocess=settings)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, tables of more than 20 cells are long."""

    def shorten() -> None:
        for module in (blocks, features, read):
            monkeypatch.setattr(module, "LONG_CELLS", 20)
        monkeypatch.setattr(blocks, "BLOCK_CELLS", 12)

    return shorten


def widths(rows: Matrix) -> dict[str, list[int]]:
    assert isinstance(rows, BlockedRows)
    pairs = zip(rows.parts, rows.places, strict=True)
    return {str(part.dtype): places.tolist() for part, places in pairs}


def values(data: VerticalDataset[Any]) -> list[list[list[float]]]:
    return [dense(each).tolist() for table in data.parties for each in (table.train, table.test)]


def test_long_files_are_held_at_their_width_and_read_as_short_ones(
    bank: FileSource, shop: FileSource, long: Callable[[], None]
) -> None:
    short = load_files([bank, shop])
    trained = fit(short, rounds=3)
    long()
    data = load_files([bank, shop])
    assert values(data) == values(short)
    assert data.notes == short.notes
    assert data.parties[0].columns == short.parties[0].columns
    expected = {"float32": [0, 5], "int8": [1], "float64": [2], "int32": [3], "uint8": [4]}
    assert widths(data.parties[0].train) == widths(data.parties[0].test) == expected
    assert widths(data.parties[1].train) == {"uint8": [0, 1, 2], "float64": [3]}
    assert relative_difference(fit(data, rounds=3), trained) < 1e-9


def test_a_test_file_of_another_width_is_not_cut_to_that_of_the_training_file(
    bank: FileSource, long: Callable[[], None], tmp_path: Path
) -> None:
    frame = pl.read_parquet(bank.path)
    wide = frame.with_columns(
        pl.Series("id", [f"q{number}" for number in range(ROWS)]),
        pl.col("children").cast(pl.Int64) * 1000,
        pl.col("income").cast(pl.Float64) / 3,
    )
    wide.write_parquet(tmp_path / "test.parquet")
    own = replace(bank, test_path=tmp_path / "test.parquet")
    other = replace(own, name="other", label_column=None, drop=("default",))
    long()
    test = dense(load_files([own, other]).parties[0].test)
    np.testing.assert_array_equal(np.sort(test[:, 1]), np.sort(wide["children"].to_numpy()))
    np.testing.assert_array_equal(np.sort(test[:, 0]), np.sort(wide["income"].to_numpy()))


def test_what_replaces_a_missing_value_is_not_cut_to_the_width_of_others(
    bank: FileSource, long: Callable[[], None], tmp_path: Path
) -> None:
    """The median of the training rows is ½, and test rows are true, false or missing."""
    frame = pl.read_parquet(bank.path).with_columns(owner=np.arange(ROWS) % 2)
    frame.write_parquet(bank.path)
    owner = [None, *[True, False] * (ROWS // 2 - 1), True]
    test = frame.with_columns(
        pl.Series("id", [f"q{number}" for number in range(ROWS)]), pl.Series("owner", owner)
    )
    test.write_parquet(tmp_path / "test.parquet")
    own = replace(bank, test_path=tmp_path / "test.parquet", preprocess=Preprocessing(rare_count=1))
    other = replace(own, name="other", label_column=None, drop=("default",))
    long()
    table = load_files([own, other]).parties[0]
    assert set(dense(table.test)[:, table.columns.index("owner")]) == {0.0, 0.5, 1.0}


def test_one_column_of_a_long_file_is_read_at_a_time(
    bank: FileSource, shop: FileSource, long: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    long()
    asked: list[list[str]] = []

    def noted(path: Path, *, columns: list[str], glob: bool) -> pl.DataFrame:
        asked.append(columns)
        return plain(path, columns=columns, glob=glob)

    plain = pl.read_parquet
    monkeypatch.setattr(pl, "read_parquet", noted)
    load_files([bank, shop])
    assert max(len(set(columns) - {"id", "default"}) for columns in asked) == 1


def test_a_file_that_changes_while_it_is_read_is_refused(
    bank: FileSource, long: Callable[[], None]
) -> None:
    long()
    held = read_party(bank)
    assert held.whole_frame.width == 6
    pl.read_parquet(bank.path).reverse().write_parquet(bank.path)
    with pytest.raises(DataError, match="has changed while it was read"):
        held.frame["income"]
