"""Files that do not become shards: each is refused in one line, and nothing is left of it."""

from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from securevfl.data.convert import Conversion, convert
from securevfl.errors import ConfigError, DataError


def parquet(**columns: list[Any]) -> bytes:
    file = BytesIO()
    ids = list("abc")[: len(next(iter(columns.values())))]
    pl.DataFrame({"id": ids, **columns}).write_parquet(file)
    return file.getvalue()


ROUNDED = "integers that float64 would round"
ODD = 2**53 + 1
Case = tuple[str | bytes, str] | tuple[str | bytes, str, dict[str, Any]]
Cases = dict[str, Case]
LIBSVM: Cases = {
    "an index twice": ("0 1:1\n\n1 2:1 1:1 2:3\n", r"line 3: index 2:3 is"),
    "an index below 0": ("0 -1:1", "line 1: index -1:1 is below 0"),
    "NaN": ("0 1:1\n0 1:nan", "line 2: 1:nan is not finite"),
    "infinite": ("0 1:1e999", "line 1: 1:inf is not finite"),
    "of 400 digits": (f"0 1:{'9' * 400}", "line 1: 1:inf is not finite"),
    "no value": ("0 1:1\n0 1:1 12", "line 2: '12' is not index:value"),
    "cut": ("0 1:1\n0 1:1 2:", "line 2: '2:' is not index:value"),
    "two colons": ("0 1:1:1", "line 1: '1:1:1' is not index:value"),
    "a query": ("0 qid:3 1:1", "line 1: 'qid:3' is not index:value"),
    "a huge index": ("0 99999999999:1", "99999999999", {"first_index": 0}),
    "an index too large to be one": (f"0 {10**30}:1", "is not index:value"),
    "a label of text": ("x 1:1", "line 1: label 'x' is not a number"),
    "a label that is NaN": ("nan 1:1", "line 1: label 'nan' is not a number"),
    "which is the first": ("0 2:1", "smallest index is 2: --first-index"),
    "not the first": ("0 0:1", "index 0, and --first-index", {"first_index": 1}),
    "beyond the columns": (
        "0 1:1 4:1",
        "column number 4 occurs: 3 columns, counted from 1, end at 3",
        {"columns": 3},
    ),
    "beyond, as said": (
        "0 1:1 4:1",
        "column number 3, expected 0 to 2",
        {"columns": 3, "first_index": 1},
    ),
    "no id": ("0 1:1 # a\n0 1:1", "line 2: no id after #", {"id_column": "#"}),
    "an id twice": ("0 1:1 #a\n0 #a", "1 duplicate ids", {"id_column": "#"}),
    "an id of text": (
        "0 1:1 # u1",
        "1 ids are not whole numbers",
        {"id_column": "#", "id_format": "number"},
    ),
    "no entries": ("0\n1\n", "no entries, expected at least 1"),
    "no rows": ("# nothing\n", "no rows"),
    "nothing at all": ("", "a.svm has no rows"),
    "not text": (b"0 1:1 \xff\xfe", "not UTF-8"),
    "a column of LIBSVM": ("0 1:1", "only '#'", {"id_column": "id"}),
    "a label of LIBSVM": ("0 1:1", "columns have names", {"label_column": "y"}),
    "id and numbers": ("0 1:1 # a\n", "give one of them", {"id_column": "#", "row_numbers": True}),
    "a rounded number": (
        f"0 1:1\n0 1:2 2:-{ODD}\n",
        f"line 2: '2:-{ODD}' has an integer that float64 would round",
    ),
    "a rounded label": (f"0 1:1\n{ODD} 1:2\n", f"line 2: float64 would round label '{ODD}'"),
}
OTHER: Cases = {"another suffix": ("0 1:1", "expected .parquet, .csv", {})}
CSV: Cases = {
    "no id column": ("u,v\n1,2\n3,4\n", "'id'; it has u, v; --id-column"),
    "id and numbers": ("id,v\n1,2\n", "give one of them", {"id_column": "id", "row_numbers": True}),
    "labels and none": ("id,y,v\n1,0,2\n", "give one of", {"label_column": "y", "labels": False}),
    "first of CSV": ("id,v\n1,2\n", "a.csv have names", {"first_index": 1}),
    "text in CSV": ("id,v\n1,2\n2,x\n", "'v' is String, expected numbers"),
    "a gap in CSV": ("id,u,v\n1,2,3\n2,,4\n", "row 2: no value in column"),
    "lists of CSV": ("id,v\n1,2\n", "for lists in Parquet", {"index_column": "v"}),
    "a rounded number": (f"id,u,v\n1,3,0.5\n2,4, {ODD}\n", f"column 'v' has {ROUNDED}"),
    "marks between thousands": (
        "id;v;w\n1;1,5;2\n2;9.007.199.254.740.993;3\n",
        f"column 'v' has {ROUNDED}",
    ),
    "a rounded label": (
        f"id,v,y\n1,3,{2**53}\n2,4,{ODD}\n",
        f"column 'y' has {ROUNDED}",
        {"label_column": "y"},
    ),
    "no features": ("id,y\n1,2\n", "no feature columns, expected", {"label_column": "y"}),
    "an id missing": ("id,v\na,1\n,2\n", "1 missing value, the first in row 2"),
    "a label missing": (
        "id,y,v\n1,0,2\n2,,3\n",
        "column 'y' has 1 missing value",
        {"label_column": "y"},
    ),
    "columns of CSV": ("id,v\n1,2\n", "--columns: ", {"columns": 2}),
    "ids as labels": ("id,u\np,1\n", "--label-column id: is the id column", {"label_column": "id"}),
}
PARQUET: Cases = {
    "first of wide Parquet": (parquet(v=[1.0]), "a.parquet have names", {"first_index": 0}),
    "NaN in Parquet": (parquet(v=[1.0, float("nan")]), "row 2: 0:nan is not finite"),
    "text in Parquet": (parquet(v=["x"]), "'v' is String"),
    "a list beside numbers": (parquet(v=[1], at=[[1]]), "column 'v' beside lists"),
    "an index twice in a list": (parquet(at=[[1], [4, 4]]), "row 2: index 4 is repeated"),
    "lists of text": (parquet(at=[["x"]]), "expected one of integers"),
    "two lists of integers": (
        parquet(at=[[1]], count=[[3]]),
        "lists of 'at' and 'count' are both of integers; --index-column names those that are",
    ),
    "indices that are none": (
        parquet(at=[[1]], share=[[0.5]]),
        "--index-column 'share': no lists of integers there",
        {"index_column": "share"},
    ),
    "indices without lists": (
        parquet(v=[1]),
        "--index-column 'v': no lists of integers there",
        {"index_column": "v"},
    ),
    "three lists": (
        parquet(at=[[1]], u=[[0.5]], v=[[0.5]]),
        "expected one of integers, and one of their values",
    ),
    "a row without a list": (parquet(at=[[1], None]), "'at' has 1 rows without a list"),
    "fractions for ids": (
        parquet(share=[0.5], v=[1.0]),
        "ids in 'share' are Float64, expected text or integers",
        {"id_column": "share", "drop": ("id",)},
    ),
    "lists of other lengths": (parquet(at=[[1]], v=[[1.0, 2.0]]), "differ in length"),
    "a gap in a list": (parquet(at=[[1, None]]), "1 missing entries"),
    "a rounded number": (parquet(v=[ODD]), ROUNDED),
    "a rounded one in a list": (parquet(at=[[1]], v=[[ODD]]), ROUNDED, {"index_column": "at"}),
    "the largest whole number": (parquet(v=[2**63 - 1]), f"column 'v' has {ROUNDED}"),
    "a label": (parquet(v=[1], y=[ODD]), f"column 'y' has {ROUNDED}", {"label_column": "y"}),
    "a cut Parquet": (parquet(v=[1])[:-20], "a.parquet: empty, malformed or truncated"),
}
WRONG = [
    pytest.param(file, case[0], case[1], *(case[2:] or [{}]), id=f"{file}: {name}")
    for file, cases in (("a.svm", LIBSVM), ("a.csv", CSV), ("a.parquet", PARQUET), ("a.xyz", OTHER))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("file", "text", "message", "said"), WRONG)
def test_what_is_refused(
    tmp_path: Path, file: str, text: str | bytes, message: str, said: dict[str, Any]
) -> None:
    path = tmp_path / file
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises((ConfigError, DataError)) as caught:
        convert([path], tmp_path / "shard", Conversion(**said))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a.svm", "b.csv"], "files of 2 formats"), (["b.csv", "c.csv"], "differ in their columns")],
)
def test_files_that_do_not_go_together(tmp_path: Path, names: list[str], message: str) -> None:
    texts = {"a.svm": "0 1:1", "b.csv": "id,u\n1,2\n", "c.csv": "id,v\n2,2\n"}
    for name in names:
        (tmp_path / name).write_text(texts[name])
    with pytest.raises((ConfigError, DataError), match=message):
        convert([tmp_path / name for name in names], tmp_path / "s", Conversion())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("a.svm", "a.csv", "a.parquet"):
        with pytest.raises(DataError, match=name):
            convert([tmp_path / name], tmp_path / "s", Conversion())
