"""Files that become shards: the same numbers in every format, and what is refused, in one line."""

import gzip
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.datasets import dump_svmlight_file

from securevfl.arrays import FloatArray
from securevfl.data import convert as converting
from securevfl.data import libsvm
from securevfl.data.convert import Conversion, convert
from securevfl.data.shards import Header, Shard, open_shard
from securevfl.errors import DataError

NUMBERS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.1, -2.5, 1e300])
TABLES = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=NUMBERS
)
EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


def converted(tmp_path: Path, name: str, text: str | bytes, how: Conversion | None = None) -> Shard:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    convert([path], tmp_path / "shard", how or Conversion())
    return open_shard(tmp_path / "shard")


def labels_of(shard: Shard) -> list[float]:
    assert shard.labels is not None
    return [float(label) for label in shard.labels]


@given(TABLES, st.booleans(), st.data())
@EXAMPLES
def test_libsvm_is_what_scikit_learn_wrote(
    tmp_path: Path, table: FloatArray, from_zero: bool, data: st.DataObject
) -> None:
    targets = data.draw(arrays.arrays(np.float64, len(table), elements=st.floats(-9, 9)))
    file = BytesIO()
    dump_svmlight_file(table, targets, file, zero_based=from_zero)
    written = [line.split() for line in file.getvalue().decode().splitlines()]
    how = Conversion(columns=table.shape[1], first_index=0 if from_zero else 1, force=True)
    shard = converted(tmp_path, "a.svm", file.getvalue(), how)
    # It writes 16 digits.
    read = np.zeros_like(table)
    for row, (_, *entries) in enumerate(written):
        for entry in entries:
            index, value = entry.split(":")
            read[row, int(index) - (not from_zero)] = float(value)
    assert np.array_equal(shard.rows.toarray(), read)
    assert labels_of(shard) == [float(label) for label, *_ in written]
    assert shard.ids == tuple(str(row + 1) for row in range(len(table)))


@given(TABLES)
@EXAMPLES
def test_parquet_and_csv_are_the_same_table(tmp_path: Path, table: FloatArray) -> None:
    names = [f"c{place}" for place in range(table.shape[1])]
    frame = pl.DataFrame(table, names).with_columns(
        id=pl.Series([f"p{row}" for row in range(len(table))]),
        y=pl.Series(["b" if row % 2 else "a" for row in range(len(table))]),
    )
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_csv(tmp_path / "t.csv")
    how = Conversion(label_column="y", force=True)
    for name in ("t.parquet", "t.csv"):
        convert([tmp_path / name], tmp_path / "shard", how)
        shard = open_shard(tmp_path / "shard")
        assert np.array_equal(shard.rows.toarray(), table)
        assert shard.header.column_names == tuple(names)
        classes = [shard.header.classes[int(code)] for code in labels_of(shard)]
        assert classes == frame["y"].to_list()
        assert shard.ids == tuple(frame["id"])


def test_lists_of_indices_and_their_values(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [7, 8, 9], "at": [[5, 2], [], [0]], "is": [[0.5, 2.0], [], [1.0]]})
    frame.write_parquet(tmp_path / "t.parquet")
    convert([tmp_path / "t.parquet"], tmp_path / "shard", Conversion())
    shard = open_shard(tmp_path / "shard")
    assert shard.rows.toarray().tolist() == [[0, 0, 2, 0, 0, 0.5], [0] * 6, [1, 0, 0, 0, 0, 0]]
    assert shard.ids == ("7", "8", "9")
    assert shard.header.column_names[0] == "x0"
    how = Conversion(drop=("is",), row_numbers=False, force=True)
    convert([tmp_path / "t.parquet"], tmp_path / "shard", how)
    shard = open_shard(tmp_path / "shard")
    assert shard.header.values is None
    assert shard.ids == ("7", "8", "9")


def test_of_two_lists_of_integers_the_named_one_is_of_indices(tmp_path: Path) -> None:
    """Wherever it stands: by their numbers alone both could be."""
    frame = pl.DataFrame({"id": [7, 8], "count": [[3, 1], [2]], "at": [[0, 2], [1]]})
    frame.write_parquet(tmp_path / "t.parquet")
    convert([tmp_path / "t.parquet"], tmp_path / "shard", Conversion(index_column="at"))
    assert open_shard(tmp_path / "shard").rows.toarray().tolist() == [[3, 0, 1], [0, 2, 0]]


def test_an_entry_of_0_in_a_list_says_where_columns_count_from(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [7], "at": [[0, 1]], "is": [[0.0, 2.0]]})
    frame.write_parquet(tmp_path / "t.parquet")
    convert([tmp_path / "t.parquet"], tmp_path / "shard", Conversion())
    assert open_shard(tmp_path / "shard").header.column_names == ("x0", "x1")


def test_columns_without_end_have_no_names_made_for_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.svm").write_text(f"0 {2**32 - 1}:1 0:1\n")
    monkeypatch.setattr(Header, "column_names", property(lambda _header: pytest.fail("2^32")))
    header = convert([tmp_path / "a.svm"], tmp_path / "shard", Conversion())
    assert f"{2**32} columns x0 to x{2**32 - 1}," in header.line


def test_parts_of_files_come_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libsvm, "BYTES", 8)
    monkeypatch.setattr(converting, "CSV_BYTES", 4)
    monkeypatch.setattr(converting, "CELLS", 2)
    lines = [f"{row % 2} {row}:1 {row + 70000}:2\n" for row in range(1, 6)]
    (tmp_path / "a.svm").write_text("".join(lines[:3]))
    (tmp_path / "b.svm").write_text("".join(lines[3:]).rstrip())
    convert([tmp_path / "a.svm", tmp_path / "b.svm"], tmp_path / "s", Conversion())
    shard = open_shard(tmp_path / "s")
    assert shard.rows.indices.tolist() == [
        place for row in range(1, 6) for place in (row - 1, row + 69999)
    ]
    assert shard.ids == ("1", "2", "3", "4", "5")
    frame = pl.DataFrame({"id": ["a\nb", "c", "d"], "u": [1, 0, 3]}).with_columns(v=pl.lit(4))
    frame = frame.with_columns(id=pl.Series(["a,b", "c", "d"]))
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        convert([tmp_path / name], tmp_path / "s", Conversion(force=True))
        assert open_shard(tmp_path / "s").rows.toarray().tolist() == [[1, 4], [0, 4], [3, 4]]


CORNERS: dict[str, tuple[str, Conversion, list[list[float]], list[float] | None, list[str]]] = {
    "comments, blanks and tabs": (
        "# head\n\n+1 1:1\t3:1e0  # end\n-1\n 0  2:0 \n",
        Conversion(),
        [[1, 0, 1], [0, 0, 0], [0, 0, 0]],
        [1, -1, 0],
        ["1", "2", "3"],
    ),
    "ids in comments": (
        "1 1:1 # u1\n0 2:1 #u 2 \n",
        Conversion(id_column="#"),
        [[1, 0], [0, 1]],
        [1, 0],
        ["u1", "u 2"],
    ),
    "unsorted": ("0 4:4 1:1 3:3", Conversion(), [[1, 0, 3, 4]], [0], ["1"]),
    "from 0": ("0 0:1 2:1", Conversion(), [[1, 0, 1]], [0], ["1"]),
    "from 0, by an entry of 0": ("0 0:0 1:3", Conversion(), [[0, 3]], [0], ["1"]),
    "from 0, as said": ("0 2:1", Conversion(first_index=0), [[0, 0, 1]], [0], ["1"]),
    "no labels": ("0 1:1", Conversion(labels=False), [[1]], None, ["1"]),
    "more columns": ("0 1:1", Conversion(columns=3), [[1, 0, 0]], [0], ["1"]),
    "windows lines": ("0 1:1\r\n1 2:1\r\n", Conversion(), [[1, 0], [0, 1]], [0, 1], ["1", "2"]),
    "a byte order mark": ("\ufeff0 1:1\n", Conversion(), [[1]], [0], ["1"]),
    "ids as numbers": (
        "0 1:1 # 007",
        Conversion(id_column="#", id_format="number"),
        [[1]],
        [0],
        ["7"],
    ),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners_of_libsvm(tmp_path: Path, name: str) -> None:
    text, how, table, labels, ids = CORNERS[name]
    shard = converted(tmp_path, "a.libsvm", text, how)
    assert shard.rows.toarray().tolist() == table
    assert (None if shard.labels is None else shard.labels.tolist()) == labels
    assert list(shard.ids) == ids


def test_gzip_is_read_and_a_cut_one_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"1 1:1\n0 2:1\n" * 50)
    assert len(converted(tmp_path, "a.svm.gz", packed).rows) == 100
    with pytest.raises(DataError, match=r"b\.svm\.gz: damaged or truncated"):
        converted(tmp_path, "b.svm.gz", packed[:-9], Conversion(force=True))
    assert len(open_shard(tmp_path / "shard").rows) == 100


@pytest.mark.parametrize(
    ("value", "kind"),
    [("1", None), ("0.5", "float32"), ("0.1", "float64"), ("16777217", "float64")],
)
def test_values_are_as_narrow_as_loses_nothing(
    tmp_path: Path, value: str, kind: str | None
) -> None:
    shard = converted(tmp_path, "a.svm", f"0 1:1 2:1\n0 1:1 2:{value}\n")
    assert shard.header.values == kind
    assert shard.rows.toarray()[:, 1].tolist() == [1.0, float(value)]


def test_large_numbers_that_lose_nothing_and_ids_are_taken(tmp_path: Path) -> None:
    """Fractions are rounded anyway; an id is text, and labels that are left out are not read."""
    large, odd = 2**53 + 2, 2**53 + 1
    text = f"{odd} 1:{large} 2:1e300 3:{odd}.5 # {odd}\n"
    shard = converted(tmp_path, "a.svm", text, Conversion(id_column="#", labels=False))
    assert shard.rows.toarray().tolist() == [[float(large), 1e300, float(f"{odd}.5")]]
    assert shard.ids == (str(odd),)
    text = f"id,u,v,w\n{odd},{large},1e300,{odd}.5\n"
    shard = converted(tmp_path, "a.csv", text, Conversion(force=True))
    assert shard.rows.toarray().tolist() == [[float(large), 1e300, float(f"{odd}.5")]]
    assert shard.ids == (str(odd),)
