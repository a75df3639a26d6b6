"""Weights of rows: read beside the label, with their rows through joins and splits, or refused."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from securevfl.data import FileSource, load_files, row_digests
from securevfl.data.convert import Conversion, convert
from securevfl.data.join import load_own
from securevfl.data.tables import check, some_rows
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.parties.own_data import OwnRows, join
from securevfl.training.job_data import file_sources

IDS = [f"P{number:02}" for number in range(60)]
WEIGHTS = [0.25 + number for number in range(60)]


def bank_of(weights: Any, folder: Path, name: str = "bank.parquet") -> FileSource:  # noqa: ANN401
    columns = {"id": IDS, "age": range(60), "w": weights, "default": ["no", "yes"] * 30}
    path = folder / name
    if name.endswith("parquet"):
        pl.DataFrame(columns, strict=False).write_parquet(path)
    else:
        rows = [";".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([";".join(columns), *rows]) + "\n", encoding="utf-8")
    return FileSource("bank", path, "id", "default", weight_column="w", id_format="folded")


@pytest.fixture
def shop(tmp_path: Path) -> FileSource:
    """All but two of the people, in another order and spelling."""
    path = tmp_path / "shop.csv"
    rows = [f"{row_id.lower()},{n / 2}" for n, row_id in reversed(list(enumerate(IDS[2:])))]
    path.write_text("\n".join(["id,spend", *rows]) + "\n", encoding="utf-8")
    return FileSource("shop", path, "id", id_format="folded")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("bank.parquet", WEIGHTS),
        ("bank.parquet", [str(each) for each in WEIGHTS]),
        ("bank.csv", WEIGHTS),
        ("bank.csv", [f" {each:g}".replace(".", ",") for each in WEIGHTS]),
    ],
)
def test_weights_stay_with_their_rows(
    name: str, written: list[Any], shop: FileSource, tmp_path: Path
) -> None:
    source = bank_of(written, tmp_path, name)
    data = load_files([source, shop])
    bank = data.parties[0]
    assert bank.columns == ("age",)
    assert bank.weights is not None
    np.testing.assert_array_equal(bank.weights, bank.train[:, 0] + 0.25)
    assert 40 < len(bank.weights) < 58  # a part is held out
    assert data.parties[1].weights is None
    both = {each.name: OwnRows.read(each, by_digest=False) for each in (source, shop)}
    rows = both["bank"].taken(join(both, "bank")["bank"])
    alone = load_own(source, rows.train, rows.test, regression=False).table
    np.testing.assert_array_equal(alone.weights, bank.weights)
    fewer = some_rows(data, 10).parties[0]
    np.testing.assert_array_equal(fewer.weights, fewer.train[:, 0] + 0.25)


def test_held_out_rows_of_a_file_of_their_own_need_no_weights(
    shop: FileSource, tmp_path: Path
) -> None:
    for name in ("bank", "shop"):
        text = f"id,{'age,default' if name == 'bank' else 'spend'}\n"
        rows = [f"t{n},{n}{',' + ['no', 'yes'][n % 2] if name == 'bank' else ''}" for n in (1, 2)]
        (tmp_path / f"{name} test.csv").write_text(text + "\n".join(rows) + "\n")
    bank, shop = (
        replace(each, test_path=tmp_path / f"{each.name} test.csv")
        for each in (bank_of(WEIGHTS, tmp_path), shop)
    )
    found = load_files([bank, shop]).parties[0].weights
    assert found is not None
    assert sorted(found) == WEIGHTS[2:]


@pytest.mark.parametrize("name", ["bank.parquet", "bank.csv"])
@pytest.mark.parametrize(
    "wrong", [0, -1, "", None, "many", "NaN", "inf", "1e13", "1e-13", "1_000", "0x1", True]
)
def test_what_is_no_weight_is_refused_in_one_line(
    name: str, wrong: object, shop: FileSource, tmp_path: Path
) -> None:
    """Nothing is taken for a 0 or a 1."""
    shown = "" if wrong is None and name == "bank.csv" else wrong
    weights = [*WEIGHTS[:5], shown, *WEIGHTS[6:]]
    if name == "bank.parquet":
        weights = [None if each is None else str(each) for each in weights]
    said = (
        "party 'bank': weight_column 'w': 1 value outside 1e-12 to 1e+12, zero, missing or no "
        "number, the first in row 6"
    )
    with pytest.raises(DataError, match=f"^{re.escape(said)}$"):
        load_files([bank_of(weights, tmp_path, name), shop])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": ("age", "w")}, "features: column 'w' of party 'bank' is used twice"),
        ({"drop": ("w",)}, "drop: column 'w' of party 'bank' is its weight_column"),
        ({"weight_column": "default"}, "features: column 'default' of party 'bank' is used twice"),
        (
            {"weight_column": "weights"},
            "party 'bank': bank.parquet has no column 'weights'; it has .*: name one of them as "
            "weight_column",
        ),
    ],
)
def test_a_weight_column_has_no_other_part(
    changes: Mapping[str, Any], said: str, shop: FileSource, tmp_path: Path
) -> None:
    source = replace(bank_of(WEIGHTS, tmp_path), **changes)
    with pytest.raises((ConfigError, DataError), match=f"^{said}$"):
        load_files([source, shop])


def test_only_the_label_party_has_a_weight_column() -> None:
    bank = {"name": "bank", "role": "label", "data": "bank.csv", "label_column": "default"}
    shop = {"name": "shop", "role": "feature", "data": "shop.csv", "weight_column": "w"}
    said = "party 'shop' has a weight_column: only the label party has"
    with pytest.raises(ConfigError, match=f"^{said}$"):
        file_sources(Job.of(party=[bank, shop]), Path())


def test_a_shard_has_no_weight_column(shop: FileSource, tmp_path: Path) -> None:
    bank = bank_of(WEIGHTS, tmp_path)
    convert([bank.path], tmp_path / "shard", Conversion(label_column="default"))
    source = FileSource("bank", tmp_path / "shard", "id", weight_column="w")
    with pytest.raises(ConfigError, match="party 'bank': weight_column applies to files"):
        load_files([source, shop])


@pytest.mark.parametrize(
    ("party", "weights", "said"),
    [
        (0, np.ones(3), r"party 'bank': weights: shape \(3,\), expected \(\d+,\), one a label"),
        (0, "nan", "party 'bank': weights: 1 value outside .*, the first in row 2"),
        (1, "ones", r"party 'shop': weights: shape \(\d+,\), expected \(0,\), one a label"),
    ],
)
def test_a_data_set_has_one_weight_a_label(
    party: int,
    weights: Any,  # noqa: ANN401
    said: str,
    shop: FileSource,
    tmp_path: Path,
) -> None:
    data = load_files([bank_of(WEIGHTS, tmp_path), shop])
    ones = np.ones(len(data.train_labels))
    if isinstance(weights, str):
        weights = ones if weights == "ones" else np.where(np.arange(len(ones)) == 1, np.nan, ones)
    parties = list(data.parties)
    parties[party] = replace(parties[party], weights=weights)
    with pytest.raises(DataError, match=said):
        check(replace(data, parties=tuple(parties), row_digests=row_digests(range(len(ones)))))


def test_a_mean_is_told_by_powers_of_two(shop: FileSource, tmp_path: Path) -> None:
    bank = load_files([bank_of(WEIGHTS, tmp_path), shop]).parties[0]
    assert replace(bank, weights=None).weight_bits == 0
    for mean, bits in ((1.0, 64), (1.1, 65), (2.0, 65), (0.3, 63), (1e-12, 25), (1e12, 104)):
        assert replace(bank, weights=np.full(7, mean)).weight_bits == bits
