import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import DataError, LabelLeakRefused
from securevfl.protocols.session.label_guard import (
    LIMIT,
    GuardRecord,
    LeakageCount,
    batch_digest,
    planned,
)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def count(total: int = 160, outputs: int = 1) -> LeakageCount:
    return LeakageCount(total, outputs, {"shop": 10, "bank": 5})


def test_every_distinct_batch_counts_once_whatever_the_order_of_its_rows() -> None:
    leakage = count()
    for batch in (rows(0, 1, 2), rows(2, 0, 1), rows(0, 1, 2)):
        leakage.add("shop", batch)
    assert leakage.ratio == 10 / 160
    leakage.add("shop", rows(3, 4, 5))
    assert leakage.ratio == 20 / 160


def test_a_batch_is_counted_by_its_rows() -> None:
    leakage = count()
    for _ in range(2):
        leakage.add("shop", rows(0, 1))
    assert leakage.revealed == {"shop": {f"{batch_digest(rows(0, 1))} x 10": 10}}


def test_peers_may_collude_and_are_added_up() -> None:
    leakage = count()
    leakage.add("shop", rows(0, 1))
    leakage.add("bank", rows(0, 1))
    assert leakage.ratio == 15 / 160


def test_class_probabilities_sum_to_one_so_ten_outputs_hold_nine_unknowns() -> None:
    leakage = count(outputs=10)
    leakage.add("shop", rows(0))
    assert leakage.ratio == 10 * 10 / (160 * 9)


def test_the_limit_is_allowed_and_what_is_above_is_refused() -> None:
    leakage = count(total=80)
    leakage.add("shop", rows(*range(11)))
    assert leakage.ratio == LIMIT
    leakage.require_below_limit()
    leakage.add("bank", rows(*range(11)))
    with pytest.raises(LabelLeakRefused, match=r"ratio of 0\.188, above 0\.125"):
        leakage.require_below_limit()


@pytest.mark.parametrize(("columns", "remedy"), [(4, "larger batches"), (40, "fewer columns")])
def test_the_refusal_names_what_helps(columns: int, remedy: str) -> None:
    leakage = LeakageCount(80, 1, {"peer": columns})
    for batch in np.split(np.arange(80), 4):
        leakage.add("peer", batch)
    with pytest.raises(LabelLeakRefused, match=remedy):
        leakage.require_below_limit()


def test_planning_leaves_the_count_as_it_is() -> None:
    leakage = count()
    leakage.add("shop", rows(0))
    after = planned(leakage, ["shop", "bank"], [rows(0), rows(1), rows(1)])
    assert after.ratio == (20 + 10) / 160
    assert leakage.ratio == 10 / 160


def test_different_rows_have_different_names() -> None:
    names = {batch_digest(rows(*numbers)) for numbers in [(0,), (1,), (0, 1), (0, 256), ()]}
    assert len(names) == 5


def test_a_record_comes_back_after_a_restart(tmp_path: Path) -> None:
    leakage = count()
    leakage.add("shop", rows(0, 1))
    GuardRecord(tmp_path / "new", "f" * 64).save(leakage.revealed)
    assert GuardRecord(tmp_path / "new", "f" * 64).load() == leakage.revealed
    assert GuardRecord(tmp_path / "new", "e" * 64).load() == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"shop": []}', '{"shop": {"a": "many"}}', '{"shop": {"a": null}}']
)
def test_a_damaged_record_is_refused_and_never_taken_as_empty(tmp_path: Path, text: str) -> None:
    record = GuardRecord(tmp_path, "f" * 64)
    record.path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        record.load()


def test_a_failed_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = GuardRecord(tmp_path, "f" * 64)
    record.save({"shop": {"a": 1}})

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match="No space left"):
        record.save({"shop": {"a": 1, "b": 2}})
    assert json.loads(record.path.read_text(encoding="utf-8")) == {"shop": {"a": 1}}


def test_a_peer_with_another_number_of_columns_learns_more_and_never_less() -> None:
    leakage = count()
    leakage.add("shop", rows(0, 1))
    later = LeakageCount(160, 1, {"shop": 4}, leakage.revealed)
    later.add("shop", rows(0, 1))
    assert later.ratio == 14 / 160


def test_a_peer_of_an_earlier_job_counts_although_it_is_not_here_now() -> None:
    earlier = LeakageCount(80, 1, {"lab": 30}, {})
    earlier.add("lab", rows(0))
    now = LeakageCount(80, 1, {"shop": 10}, earlier.revealed)
    with pytest.raises(LabelLeakRefused, match=r"ratio of 0[.]375"):
        now.require_below_limit()


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b'{"a": {"b": Infinity}}', b'{"a": {"b": -5}}', b'{"a": {"b": 0.9}}']
)
def test_a_record_with_anything_but_counts_is_refused(tmp_path: Path, data: bytes) -> None:
    record = GuardRecord(tmp_path, "f" * 64)
    record.path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        record.load()


def test_a_folder_in_the_records_place_is_told(tmp_path: Path) -> None:
    record = GuardRecord(tmp_path, "f" * 64)
    record.path.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        record.load()


def network_count(total: int = 1600) -> LeakageCount:
    return LeakageCount(total, 1, {"shop": 10, "bank": 5}, nonlinear=frozenset({"shop"}))


def test_every_visit_of_a_batch_counts_for_a_network() -> None:
    leakage = network_count()
    for _ in range(3):
        leakage.add("shop", rows(0, 1))
        leakage.add("bank", rows(0, 1))
    assert leakage.ratio == (3 * 10 + 5) / 1600


def test_planning_counts_every_visit_of_a_network_on_top_of_earlier_ones() -> None:
    leakage = network_count()
    leakage.add("shop", rows(0, 1))
    after = planned(leakage, ["shop", "bank"], [rows(0, 1), rows(0, 1)])
    assert after.ratio == (3 * 10 + 5) / 1600
    assert leakage.ratio == 10 / 1600


def test_a_party_that_turns_from_a_linear_model_to_a_network_is_told_more() -> None:
    earlier = count(total=1600)
    earlier.add("shop", rows(0, 1))
    later = LeakageCount(1600, 1, {"shop": 10}, earlier.revealed, frozenset({"shop"}))
    later.add("shop", rows(0, 1))
    assert later.ratio == 20 / 1600


@pytest.mark.parametrize("make", [count, network_count])
def test_a_batch_with_no_more_rows_than_columns_is_refused_at_any_ratio(
    make: Callable[[int], LeakageCount],
) -> None:
    leakage = make(100_000)
    leakage.add("shop", rows(*range(11)))
    leakage.require_below_limit()
    after = planned(leakage, ["shop"], [rows(*range(10))])
    with pytest.raises(LabelLeakRefused, match=r"10 columns, enough to solve .* batch of 10 rows"):
        after.require_below_limit()
    with pytest.raises(LabelLeakRefused):
        planned(after, [], []).require_below_limit()
