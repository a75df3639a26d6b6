"""Shards: what is written comes back, whole or not at all, and nothing else is opened."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securevfl import files
from securevfl.arrays import FloatArray
from securevfl.data import shards
from securevfl.data.ids import is_held_out
from securevfl.data.shard_writing import GrowingArray, RowIds, ShardWriter, write_shard
from securevfl.data.shards import open_shard
from securevfl.data.tables import row_digests, rows_fingerprint
from securevfl.errors import DataError

VALUES = st.one_of(
    st.just(1.0), st.floats(-8.0, 8.0, width=32), st.floats(allow_nan=False, allow_infinity=False)
)
ROW = st.dictionaries(st.integers(0, 80_000) | st.integers(0, 9), VALUES, max_size=6)


def write(
    path: Path,
    rows: list[dict[int, float]],
    *,
    at_once: int = 2,
    labels: FloatArray | list[str] | None = None,
    columns: int | None = None,
    force: bool = False,
) -> None:
    with write_shard(path, columns=columns, force=force) as writer:
        for start in range(0, len(rows), at_once):
            some = [dict(sorted(row.items())) for row in rows[start : start + at_once]]
            writer.append(
                RowIds.of([f"r{start + place}" for place in range(len(some))]),
                np.array([len(row) for row in some]),
                np.array([column for row in some for column in row], np.int64),
                np.array([value for row in some for value in row.values()], np.float64),
                None if labels is None else labels[start : start + at_once],
            )


@given(st.lists(ROW, min_size=1, max_size=8), st.integers(1, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_rows_come_back_as_they_were_written(
    tmp_path: Path, rows: list[dict[int, float]], at_once: int
) -> None:
    columns = 80_001 if any(column > 9 for row in rows for column in row) else 10
    write(tmp_path / "shard", rows, at_once=at_once, columns=columns, force=True)
    shard = open_shard(tmp_path / "shard")
    values = [value for row in rows for _, value in sorted(row.items())]
    assert shard.rows.indices.tolist() == [column for row in rows for column in sorted(row)]
    assert np.diff(shard.rows.pointers).tolist() == [len(row) for row in rows]
    assert shard.rows.indices.dtype == (np.uint16 if columns == 10 else np.uint32)
    if shard.rows.values is None:
        assert set(values) <= {1.0}
    else:
        assert shard.rows.values.tolist() == values
        with np.errstate(over="ignore"):
            exact = (np.array(values, np.float32) == np.array(values)).all()
        assert shard.rows.values.dtype == (np.float32 if exact else np.float64)
    ids = [f"r{row}" for row in range(len(rows))]
    assert shard.ids == tuple(ids)
    assert shard.digests.tolist() == row_digests(ids).tolist()
    assert shard.held_out.tolist() == [is_held_out(row_id) for row_id in ids]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard"]


def test_65536_columns_are_narrow_and_one_more_is_wide(tmp_path: Path) -> None:
    for columns, kind in ((1 << 16, "uint16"), ((1 << 16) + 1, "uint32")):
        write(tmp_path / f"{columns}", [{columns - 1: 1.0}])
        shard = open_shard(tmp_path / f"{columns}")
        assert (shard.header.columns, shard.header.indices) == (columns, kind)
        assert shard.rows.indices.tolist() == [columns - 1]


def test_labels_are_numbers_or_sorted_names(tmp_path: Path) -> None:
    rows: list[dict[int, float]] = [{0: 1.0}, {}, {1: 1.0}]
    write(tmp_path / "numbers", rows, labels=np.array([2.5, -1.0, 0.0]))
    shard = open_shard(tmp_path / "numbers")
    assert shard.labels is not None
    assert shard.labels.tolist() == [2.5, -1.0, 0.0]
    write(tmp_path / "names", rows, labels=["no", "yes", "maybe"], at_once=1)
    shard = open_shard(tmp_path / "names")
    assert shard.labels is not None
    assert [shard.header.classes[code] for code in shard.labels] == ["no", "yes", "maybe"]
    assert shard.header.classes == ("maybe", "no", "yes")


def test_labels_are_of_one_kind(tmp_path: Path) -> None:
    one = np.array([1])

    def both(writer: ShardWriter) -> None:
        writer.append(RowIds.of(["a"]), one, one, None, np.array([1.0]))
        writer.append(RowIds.of(["b"]), one, one, None, ["x"])

    message = "labels are text from row 1 on and numbers before"
    with pytest.raises(DataError, match=message), write_shard(tmp_path / "both") as writer:
        both(writer)


REFUSED: dict[str, tuple[list[str], list[int], list[int], str]] = {
    "an id twice": (["a", "b", "a"], [1, 0, 0], [0], "1 duplicate ids"),
    "beyond the columns": (["a"], [1], [5], "column number 5, expected 0 to 4"),
    "an id of two lines": (["a\nb"], [0], [0], "line break"),
    "an empty id": ([""], [0], [0], "an id is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_written(tmp_path: Path, name: str) -> None:
    ids, lengths, indices, message = REFUSED[name]
    with pytest.raises(DataError, match=message), write_shard(tmp_path / "s", columns=5) as writer:
        writer.append(RowIds.of(ids), np.array(lengths), np.array(indices))
    assert list(tmp_path.iterdir()) == []


def test_no_rows_and_labels_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"), write_shard(tmp_path / "s"):
        pass
    row = RowIds.of(["a"]), np.array([1]), np.array([0]), None, np.array([np.inf])
    message = "1 NaN or infinite labels"
    with pytest.raises(DataError, match=message), write_shard(tmp_path / "s") as writer:
        writer.append(*row)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "s", [{0: 1.0}])
    with pytest.raises(DataError, match=r"s already exists; --force replaces a shard"):
        write(tmp_path / "s", [{1: 1.0}])
    write(tmp_path / "s", [{1: 1.0}], force=True)
    assert open_shard(tmp_path / "s").rows.indices.tolist() == [1]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="is not a shard: it is not replaced"):
        write(tmp_path / "mine", [{1: 1.0}], force=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("when", ["append", "mapped"])  # among the rows, after the last
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    write(tmp_path / "s", [{0: 1.0}])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GrowingArray, when, full)
    with pytest.raises(DataError, match=r"s cannot be written: No space left on device"):
        write(tmp_path / "s", [{1: 1.0}], force=True)
    assert open_shard(tmp_path / "s").rows.indices.tolist() == [0]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_one_shard_is_written_by_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.05)
    path = tmp_path / "s"
    with write_shard(path) as writer:
        with pytest.raises(DataError, match="another job holds it"), write_shard(path):
            pytest.fail("two write it")
        one = np.ones(1, np.int64)
        writer.append(RowIds.of(["a"]), one, one)
    assert open_shard(path).header.rows == 1  # the second one threw nothing away


@pytest.mark.parametrize(
    ("error", "raised", "error_text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(errno.EIO, "Input/output error"), DataError, "s cannot be written: Input/output"),
    ],
)
def test_an_interrupt_leaves_nothing(
    tmp_path: Path, error: BaseException, raised: type[BaseException], error_text: str | None
) -> None:
    def interrupted(writer: ShardWriter) -> None:
        writer.append(RowIds.of(["a"]), np.array([1]), np.array([0]))
        raise error

    with pytest.raises(raised, match=error_text), write_shard(tmp_path / "s") as writer:
        interrupted(writer)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from securevfl.data.shard_writing import RowIds, write_shard
with write_shard(Path(sys.argv[1])) as writer:
    writer.append(RowIds.of(["a"]), np.array([1]), np.array([70000]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_there_is_no_shard_and_the_next_attempt_writes_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "s"], check=False)  # noqa: S603
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".s.part"]
    with pytest.raises(DataError, match=r"is not a shard: it has no header\.json"):
        open_shard(tmp_path / ".s.part")
    write(tmp_path / "s", [{1: 1.0}])
    assert open_shard(tmp_path / "s").rows.indices.tolist() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def resaved(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        array = np.load(path / f"{name}.npy")
        np.save(path / f"{name}.npy", change(array))

    return apply


def said(**changes: object) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        header = json.loads((path / "header.json").read_text())
        (path / "header.json").write_text(json.dumps(header | changes))

    return apply


def put(array: NDArray[Any], place: int, value: object) -> NDArray[Any]:
    array[place] = value
    return array


def zipped() -> bytes:
    file = BytesIO()
    np.savez(file, np.zeros(5))
    return file.getvalue()


LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no header": (lambda path: (path / "header.json").unlink(), "is not a shard"),
    "half a header": (lambda path: os.truncate(path / "header.json", 40), "header.json file"),
    "another key": (said(more=1), "header.json more"),
    "another version": (said(format=2), "format 2, expected 1"),
    "no rows": (said(rows=0), "0 rows"),
    "more columns than there can be": (said(columns=1 << 33), "columns"),
    "the wrong width": (said(columns=1 << 20), "uint16 for 1048576 columns"),
    "a name twice": (said(names=["a"] * 9), "1 different names of 9 columns"),
    "an object array": (resaved("indices", lambda a: a.astype(object)), "cannot be mapped"),
    "another type": (resaved("indices", lambda a: a.astype(np.int16)), "indices.npy is int16"),
    "another length": (resaved("indices", lambda a: a[:-1]), r"indices.npy is uint16 \(4,\)"),
    "another shape": (resaved("values", lambda a: a[:, None]), "values.npy is float32"),
    "a cut file": (lambda path: os.truncate(path / "indices.npy", 130), "cannot be mapped"),
    "an archive": (lambda path: (path / "values.npy").write_bytes(zipped()), "is no array"),
    "no file": (lambda path: (path / "pointers.npy").unlink(), "pointers.npy cannot be mapped"),
    "pointers fall": (resaved("pointers", lambda a: put(a, 1, 5)), "pointers.npy falls"),
    "pointers wrap": (
        resaved("pointers", lambda a: np.array([0, LARGEST, SMALLEST, -1, 5])),
        "pointers.npy falls",
    ),
    "pointers end early": (resaved("pointers", lambda a: put(a, -1, 4)), "spans 0..4"),
    "pointers start late": (resaved("pointers", lambda a: put(a, 0, 1)), "spans 1..5"),
    "beyond the columns": (resaved("indices", lambda a: put(a, -1, 9)), "column 9 of 9"),
    "falling in the last row": (resaved("indices", lambda a: put(a, 3, 8)), "row 3 do not ascend"),
    "twice in the first row": (resaved("indices", lambda a: put(a, 0, 4)), "row 0 do not ascend"),
    "a NaN": (resaved("values", lambda a: put(a, 2, np.nan)), "1 NaN or infinite values"),
    "a label that is NaN": (resaved("labels", lambda a: put(a, 0, np.nan)), "infinite labels"),
    "other ids": (resaved("digests", lambda a: put(a, 0, 7)), "do not match its fingerprint"),
    "an id twice": (
        lambda path: (
            resaved("digests", lambda a: put(a, 0, a[1]))(path),
            said(fingerprint=rows_fingerprint(np.load(path / "digests.npy")))(path),
        )[0],
        "1 duplicate ids",
    ),
}


@pytest.mark.parametrize("block", [2, shards.BLOCK], ids=["by blocks", "at once"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_opened(
    tmp_path: Path, name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "BLOCK", block)
    rows: list[dict[int, float]] = [{2: 1.0, 4: 0.5}, {}, {0: 2.0}, {7: 1.0, 8: 3.0}]
    write(tmp_path / "s", rows, labels=np.array([0.0, 1, 0, 1]))
    open_shard(tmp_path / "s")
    wrong, message = HOSTILE[name]
    wrong(tmp_path / "s")
    with pytest.raises(DataError, match=message):
        open_shard(tmp_path / "s")


def test_a_shard_is_its_owners_alone(tmp_path: Path) -> None:
    write(tmp_path / "s", [{0: 1.0}])
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700


def test_a_shard_has_a_place_of_its_own() -> None:
    with pytest.raises(DataError, match="expected a new folder"):
        write_shard(Path()).__enter__()


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "s", [{0: 1.0}, {1: 1.0}], labels=["a", "b"])
    resaved("labels", lambda a: put(a, 0, 2))(tmp_path / "s")
    with pytest.raises(DataError, match="labels beyond its 2 classes"):
        open_shard(tmp_path / "s")


@pytest.mark.parametrize(
    ("ids", "message"), [(b"r0\n", "1 ids of 2 rows"), (b"r0\n\xff\n", "ids.txt cannot be read")]
)
def test_ids_that_are_too_few_or_no_text(tmp_path: Path, ids: bytes, message: str) -> None:
    write(tmp_path / "s", [{0: 1.0}, {1: 1.0}])
    (tmp_path / "s" / "ids.txt").write_bytes(ids)
    with pytest.raises(DataError, match=message):
        _ = open_shard(tmp_path / "s").ids


def test_a_header_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "s", [{0: 1.0}])

    def unreadable(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(DataError, match=r"header\.json cannot be read \(Input/output error\)"):
        open_shard(tmp_path / "s")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc to count pages by")
def test_pages_that_were_only_checked_are_not_held(tmp_path: Path) -> None:
    """A process's peak would else be the whole shard beside all that it works with."""
    write(tmp_path / "shard", [dict.fromkeys(range(400), 0.5)] * 1000, at_once=1000)
    shard = open_shard(tmp_path / "shard")
    text = Path("/proc/self/smaps").read_text()

    def held(name: str) -> int:
        of_map = text[text.index(f"{tmp_path}/shard/{name}.npy") :]
        return int(of_map.partition("Rss:")[2].split()[0])

    assert [held(name) for name in ("values", "indices")] == [0, 0]
    assert shard.rows[-1:].toarray().sum() == 200.0
