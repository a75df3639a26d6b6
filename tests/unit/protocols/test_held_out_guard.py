from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import DataError, HeldOutLeakRefused
from securevfl.files import only_one
from securevfl.protocols.guards import held_out_guard
from securevfl.protocols.guards.held_out_guard import (
    LIMIT,
    HeldOutCount,
    HeldOutRecord,
    names_of_rows,
)

ROWS = ("ann", "bob")


@pytest.mark.parametrize(
    ("outputs", "rank", "allowed"),
    [(1, 4, 1), (1, 63, 1), (1, 64, 2), (1, 320, 10), (10, 27, 10), (10, 640, 20)],
)
def test_one_scoring_is_always_allowed_and_a_share_of_the_rank(
    outputs: int, rank: int, allowed: int
) -> None:
    count = HeldOutCount(1, outputs, rank)
    assert count.allowed == allowed == max(outputs, int(LIMIT * rank))
    count.require_below_limit(allowed)
    with pytest.raises(HeldOutLeakRefused, match=f"show {allowed + 1} columns"):
        count.require_below_limit(allowed + 1)


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 1), (15, 14)])
def test_where_rounds_show_training_rows_fewer_than_the_rank_are_allowed(
    rank: int, allowed: int
) -> None:
    assert HeldOutCount(1, 1, rank, rounds_show=True).allowed == allowed


def test_jobs_add_up_by_row() -> None:
    count = HeldOutCount(3, 2, 100)
    assert count.planned({"bob": 5, "eve": 9}, ROWS, resumes=False) == {"ann": 6, "bob": 11}


def test_a_job_that_goes_on_counts_once() -> None:
    count = HeldOutCount(3, 2, 100)
    first = count.planned({"bob": 5}, ROWS, resumes=False)
    assert count.planned(first, ROWS, resumes=True) == first
    # Nor is it let off where its record is not there.
    assert count.planned({}, ROWS, resumes=True) == {"ann": 6, "bob": 6}


def test_the_refusal_says_what_earlier_jobs_showed() -> None:
    with pytest.raises(HeldOutLeakRefused, match="after 2 of earlier jobs show 3 columns"):
        HeldOutCount(1, 1, 15).require_below_limit(3)


def test_a_row_has_the_same_name_among_others() -> None:
    features = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, -0.0]])
    names = names_of_rows(features)
    assert names[0] == names[2] != names[1]
    assert names_of_rows(features[1:]) == names[1:]
    assert names_of_rows(features[:, :1]) != names


def test_a_record_comes_back_after_a_restart(tmp_path: Path) -> None:
    HeldOutRecord(tmp_path / "new").save(lambda: {"ann": 3})
    assert HeldOutRecord(tmp_path / "new").load() == {"ann": 3}
    assert HeldOutRecord(tmp_path).load() == {}


def test_a_record_is_counted_while_nobody_else_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else of two jobs that begin at once the later one would forget the earlier one."""
    first, second = HeldOutRecord(tmp_path), HeldOutRecord(tmp_path)

    @contextmanager
    def after_another(path: Path, what: str) -> Iterator[None]:
        monkeypatch.undo()
        second.save(lambda: second.load() | {"bob": 1})
        with only_one(path, what):
            yield

    monkeypatch.setattr(held_out_guard, "only_one", after_another)
    first.save(lambda: first.load() | {"ann": 3})
    assert first.load() == {"ann": 3, "bob": 1}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b'{"ann": "many"}', b'{"ann": 0}', b'{"ann": 0.9}', b"\xff"]
)
def test_a_damaged_record_is_refused_and_never_taken_as_empty(tmp_path: Path, data: bytes) -> None:
    record = HeldOutRecord(tmp_path)
    record.path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        record.load()


def test_a_folder_in_the_records_place_is_reported(tmp_path: Path) -> None:
    record = HeldOutRecord(tmp_path)
    record.path.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        record.load()
