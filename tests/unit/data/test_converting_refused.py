"""Files that do not become shards: each is refused in one line, and nothing is left of it."""

from io import BytesIO
from pathlib import Path

import polars as pl
import pytest

from securevfl.data.convert import Conversion, convert
from securevfl.errors import ConfigError, DataError


def parquet(**columns: object) -> bytes:
    file = BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


WRONG: dict[str, tuple[str, str | bytes, Conversion, str]] = {
    "an index twice": ("a.svm", "0 1:1\n\n1 2:1 1:1 2:3\n", Conversion(), r"line 3: index 2:3 is"),
    "an index below 0": ("a.svm", "0 -1:1", Conversion(), "line 1: index -1:1 is below 0"),
    "NaN": ("a.svm", "0 1:1\n0 1:nan", Conversion(), "line 2: 1:nan is not finite"),
    "infinite": ("a.svm", "0 1:1e999", Conversion(), "line 1: 1:inf is not finite"),
    "of 400 digits": ("a.svm", f"0 1:{'9' * 400}", Conversion(), "line 1: 1:inf is not finite"),
    "no value": ("a.svm", "0 1:1\n0 1:1 12", Conversion(), "line 2: '12' is not index:value"),
    "cut": ("a.svm", "0 1:1\n0 1:1 2:", Conversion(), "line 2: '2:' is not index:value"),
    "two colons": ("a.svm", "0 1:1:1", Conversion(), "line 1: '1:1:1' is not index:value"),
    "a query": ("a.svm", "0 qid:3 1:1", Conversion(), "line 1: 'qid:3' is not index:value"),
    "a huge index": ("a.svm", "0 99999999999:1", Conversion(first_index=0), "99999999999"),
    "an index too large to be one": ("a.svm", f"0 {10**30}:1", Conversion(), "is not index:value"),
    "a label of text": ("a.svm", "x 1:1", Conversion(), "line 1: label 'x' is no number"),
    "a label that is NaN": ("a.svm", "nan 1:1", Conversion(), "line 1: label 'nan' is no number"),
    "which is the first": ("a.svm", "0 2:1", Conversion(), "smallest index is 2: --first-index"),
    "not the first": ("a.svm", "0 0:1", Conversion(first_index=1), "index 0, and --first-index"),
    "beyond the columns": (
        "a.svm",
        "0 1:1 4:1",
        Conversion(columns=3),
        "column number 4 occurs: 3 columns, counted from 1, end at 3",
    ),
    "beyond, as said": (
        "a.svm",
        "0 1:1 4:1",
        Conversion(columns=3, first_index=1),
        "column number 3, expected 0 to 2",
    ),
    "no id": ("a.svm", "0 1:1 # a\n0 1:1", Conversion(id_column="#"), "line 2: no id after a #"),
    "an id twice": ("a.svm", "0 1:1 #a\n0 #a", Conversion(id_column="#"), "1 duplicate ids"),
    "no id that is a number": (
        "a.svm",
        "0 1:1 # u1",
        Conversion(id_column="#", id_format="number"),
        "1 ids are no whole numbers",
    ),
    "no rows": ("a.svm", "# nothing\n", Conversion(), "no rows"),
    "nothing at all": ("a.svm", "", Conversion(), "a.svm has no rows"),
    "not text": ("a.svm", b"0 1:1 \xff\xfe", Conversion(), "not UTF-8"),
    "a column of LIBSVM": ("a.svm", "0 1:1", Conversion(id_column="id"), "only '#'"),
    "a label of LIBSVM": ("a.svm", "0 1:1", Conversion(label_column="y"), "columns have names"),
    "another suffix": ("a.xyz", "0 1:1", Conversion(), "expected .parquet, .csv"),
    "no id column": (
        "a.csv",
        "u,v\n1,2\n3,4\n",
        Conversion(),
        "'id'; it has u, v; --id-column",
    ),
    "id and numbers": (
        "a.csv",
        "id,v\n1,2\n",
        Conversion(id_column="id", row_numbers=True),
        "give one of them",
    ),
    "id and numbers of LIBSVM": (
        "a.svm",
        "0 1:1 # a\n",
        Conversion(id_column="#", row_numbers=True),
        "give one of them",
    ),
    "labels and none": (
        "a.csv",
        "id,y,v\n1,0,2\n",
        Conversion(label_column="y", labels=False),
        "give one of them",
    ),
    "first of CSV": ("a.csv", "id,v\n1,2\n", Conversion(first_index=1), "a.csv have names"),
    "first of wide Parquet": (
        "a.parquet",
        parquet(id=["a"], v=[1.0]),
        Conversion(first_index=0),
        "a.parquet have names",
    ),
    "text in CSV": ("a.csv", "id,v\n1,2\n2,x\n", Conversion(), "'v' is String, expected numbers"),
    "a gap in CSV": ("a.csv", "id,u,v\n1,2,3\n2,,4\n", Conversion(), "row 2: no value in column"),
    "NaN in Parquet": (
        "a.parquet",
        parquet(id=["a", "b"], v=[1.0, float("nan")]),
        Conversion(),
        "row 2: 0:nan is not finite",
    ),
    "text in Parquet": ("a.parquet", parquet(id=["a"], v=["x"]), Conversion(), "'v' is String"),
    "a list beside numbers": (
        "a.parquet",
        parquet(id=["a"], v=[1], at=[[1]]),
        Conversion(),
        "column 'v' beside lists",
    ),
    "an index twice in a list": (
        "a.parquet",
        parquet(id=["a", "b"], at=[[1], [4, 4]]),
        Conversion(),
        "row 2: index 4 is there twice",
    ),
    "lists of text": (
        "a.parquet",
        parquet(id=["a"], at=[["x"]]),
        Conversion(),
        "expected one of integers",
    ),
    "two lists of integers": (
        "a.parquet",
        parquet(id=["a"], at=[[1]], count=[[3]]),
        Conversion(),
        "lists of 'at' and 'count' are both of integers; --index-column names those that are",
    ),
    "indices that are none": (
        "a.parquet",
        parquet(id=["a"], at=[[1]], share=[[0.5]]),
        Conversion(index_column="share"),
        "--index-column 'share': no lists of integers there",
    ),
    "indices where there are no lists": (
        "a.parquet",
        parquet(id=["a"], v=[1]),
        Conversion(index_column="v"),
        "--index-column 'v': no lists of integers there",
    ),
    "lists of CSV": ("a.csv", "id,v\n1,2\n", Conversion(index_column="v"), "for lists in Parquet"),
    "three lists": (
        "a.parquet",
        parquet(id=["a"], at=[[1]], u=[[0.5]], v=[[0.5]]),
        Conversion(),
        "expected one of integers, and one of their values",
    ),
    "lists of other lengths": (
        "a.parquet",
        parquet(id=["a"], at=[[1]], v=[[1.0, 2.0]]),
        Conversion(),
        "differ in length",
    ),
    "a gap in a list": ("a.parquet", parquet(id=["a"], at=[[1, None]]), Conversion(), "1 gaps"),
    "whole numbers that would be rounded": (
        "a.parquet",
        parquet(id=["a"], v=[2**53 + 1]),
        Conversion(),
        "that no float64 is",
    ),
    "whole numbers in lists that would be rounded": (
        "a.parquet",
        parquet(id=["a"], at=[[1]], v=[[2**53 + 1]]),
        Conversion(index_column="at"),
        "that no float64 is",
    ),
    "the largest whole number": (
        "a.parquet",
        parquet(id=["a"], v=[2**63 - 1]),
        Conversion(),
        "column 'v' has whole numbers that no float64 is",
    ),
    "labels that would be rounded": (
        "a.parquet",
        parquet(id=["a"], v=[1], y=[2**53 + 1]),
        Conversion(label_column="y"),
        "column 'y' has whole numbers that no float64 is",
    ),
    "whole numbers in CSV that would be rounded": (
        "a.csv",
        f"id,u,v\n1,3,0.5\n2,4, {2**53 + 1}\n",
        Conversion(),
        "column 'v' has whole numbers that no float64 is",
    ),
    "those with marks between thousands": (
        "a.csv",
        "id;v;w\n1;1,5;2\n2;9.007.199.254.740.993;3\n",
        Conversion(),
        "column 'v' has whole numbers that no float64 is",
    ),
    "labels in CSV that would be rounded": (
        "a.csv",
        f"id,v,y\n1,3,{2**53}\n2,4,{2**53 + 1}\n",
        Conversion(label_column="y"),
        "column 'y' has whole numbers that no float64 is",
    ),
    "whole numbers in LIBSVM that would be rounded": (
        "a.svm",
        f"0 1:1\n0 1:2 2:-{2**53 + 1}\n",
        Conversion(),
        f"line 2: '2:-{2**53 + 1}' has a whole number that no float64 is",
    ),
    "labels in LIBSVM that would be rounded": (
        "a.svm",
        f"0 1:1\n{2**53 + 1} 1:2\n",
        Conversion(),
        f"line 2: label '{2**53 + 1}' is a whole number that no float64 is",
    ),
    "ids as labels": (
        "a.csv",
        "id,u\np,1\n",
        Conversion(label_column="id"),
        "--label-column id: is that of ids",
    ),
    "a cut Parquet": (
        "a.parquet",
        parquet(id=["a"], v=[1])[:-20],
        Conversion(),
        "a.parquet: empty, malformed or truncated",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    file, text, how, message = WRONG[name]
    path = tmp_path / file
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises((ConfigError, DataError)) as caught:
        convert([path], tmp_path / "shard", how)
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
