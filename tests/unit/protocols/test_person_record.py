"""What the label guard counts of a person, over jobs, peers and restarts."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from securevfl.data.tables import row_digests
from securevfl.errors import DataError, LabelLeakRefused
from securevfl.protocols.guards.person_record import (
    LEAST_ROWS,
    MODEL_LIMIT,
    OTHERS_LIMIT,
    PersonRecord,
    Revealing,
    label_variance,
)

BALANCED = 0.25


def equations(
    rows: np.ndarray, peer: str = "shop", name: str = "a", *, values: int = 10, model: bool = True
) -> Revealing:
    return Revealing(peer, values, rows, name, model)


def people(*numbers: int) -> np.ndarray:
    return row_digests(range(*numbers))


def job(record: PersonRecord, ids: np.ndarray, gradients: Iterable[Revealing]) -> np.ndarray:
    places = record.welcome(ids)
    record.add(gradients, places)
    return places


def everyone(count: int) -> np.ndarray:
    return np.arange(count)


def test_the_first_population_is_what_a_model_tells_and_the_same_again_is_nothing_new() -> None:
    record, places = PersonRecord(), everyone(0)
    for _ in range(3):
        places = job(record, people(1000), [equations(everyone(1000))])
    assert record.revealed(places, BALANCED) == pytest.approx((10 / 250, 0))


def test_other_columns_of_the_same_rows_are_another_model() -> None:
    record, places = PersonRecord(), everyone(0)
    for name in "abc":
        places = job(record, people(1000), [equations(everyone(1000), name=name)])
    assert record.revealed(places, BALANCED) == pytest.approx((30 / 250, 0))


def test_peers_may_pool_what_they_see() -> None:
    record = PersonRecord()
    both = [equations(everyone(1000), "shop"), equations(everyone(1000), "lab", values=5)]
    places = job(record, people(1000), both)
    assert record.revealed(places, BALANCED)[0] == pytest.approx(15 / 250)
    # A peer of an earlier job counts although it takes no part now.
    places = job(record, people(1000), [equations(everyone(1000), "bank", values=5)])
    assert record.revealed(places, BALANCED)[0] == pytest.approx(20 / 250)


def test_minibatches_tell_more_than_any_model() -> None:
    record = PersonRecord()
    halves = [equations(half, model=False) for half in np.split(everyone(1000), 2)]
    places = job(record, people(1000), halves)
    assert record.revealed(places, BALANCED) == pytest.approx((0, 10 / 125))


def test_one_row_less_is_another_set_for_all_who_stay() -> None:
    record = PersonRecord()
    job(record, people(1000), [equations(everyone(1000))])
    places = job(record, people(999), [equations(everyone(999))])
    assert record.revealed(places, BALANCED) == pytest.approx((10 / 250, 10 / 999 * 4))


def test_the_order_of_rows_and_of_jobs_does_not_matter() -> None:
    record = PersonRecord()
    job(record, people(1000), [equations(everyone(1000))])
    places = job(record, people(1000)[::-1].copy(), [equations(everyone(1000))])
    assert record.revealed(places, BALANCED) == pytest.approx((10 / 250, 0))


def test_other_people_have_a_model_of_their_own() -> None:
    record = PersonRecord()
    job(record, people(1000), [equations(everyone(1000))])
    places = job(record, people(1000, 2000), [equations(everyone(1000))])
    assert record.revealed(places, BALANCED) == pytest.approx((10 / 250, 0))


def test_what_may_not_repeat_counts_every_time() -> None:
    record, places = PersonRecord(), everyone(0)
    for _ in range(2):
        visit = Revealing("shop", 10, everyone(1000), "visit 0", model=False, may_repeat=False)
        places = job(record, people(1000), [visit])
    assert record.revealed(places, BALANCED)[1] == pytest.approx(2 * 10 / 250)


def test_rare_labels_follow_from_few_equations() -> None:
    rare = np.repeat([0, 1], [990, 10])
    assert label_variance(rare) == pytest.approx(0.0099)
    assert label_variance(np.repeat([0, 1, 2], [500, 400, 100])) == pytest.approx(0.09)
    record = PersonRecord()
    places = job(record, people(1000), [equations(everyone(1000))])
    record.require_within_limits(places, BALANCED, "take less")
    with pytest.raises(LabelLeakRefused, match=r"of all rows.* take less, or"):
        record.require_within_limits(places, label_variance(rare), "take less")


def within(rows: int, values: int, *, model: bool) -> None:
    record = PersonRecord()
    places = job(record, people(rows), [equations(everyone(rows), values=values, model=model)])
    record.require_within_limits(places, BALANCED, "take less")


def test_the_limits_are_allowed_and_what_is_above_is_refused() -> None:
    within(1000, int(1000 * BALANCED * MODEL_LIMIT), model=True)
    with pytest.raises(LabelLeakRefused, match="of all rows"):
        within(1000, int(1000 * BALANCED * MODEL_LIMIT) + 1, model=True)
    rows = round(1 / BALANCED / OTHERS_LIMIT)
    within(rows, 1, model=False)
    with pytest.raises(LabelLeakRefused, match="of batches, networks or other rows"):
        within(rows - 1, 1, model=False)


@pytest.mark.parametrize(
    ("then", "now"),
    [((0, 1000), (1, 1000)), ((1, 1000), (0, 1000)), ((0, 1000), (1, 1001))],
    ids=["one row less", "one row more", "one for another"],
)
def test_nobody_is_distinguished_with_few_others(
    then: tuple[int, int], now: tuple[int, int]
) -> None:
    record = PersonRecord()
    job(record, people(*then), [equations(everyone(then[1] - then[0]))])
    record.welcome(people(*now))
    history = record.history.copy()
    job(record, people(*now), [equations(everyone(now[1] - now[0]))])
    with pytest.raises(LabelLeakRefused, match="1 rows would be in other sets"):
        record.require_company(history, 1, BALANCED)


@pytest.mark.parametrize("moved", [799, 800])
def test_as_many_may_come_and_go_at_once_as_a_batch_must_have(moved: int) -> None:
    record = PersonRecord()
    job(record, people(2000), [equations(everyone(2000), values=1)])
    record.welcome(people(2000 - moved))
    history = record.history.copy()
    job(record, people(2000 - moved), [equations(everyone(2000 - moved), values=1)])
    if moved < 800:
        with pytest.raises(LabelLeakRefused, match=f"{moved} rows would"):
            record.require_company(history, 1, BALANCED)
    else:
        record.require_company(history, 1, BALANCED)


@pytest.mark.parametrize("rows", [LEAST_ROWS - 1, LEAST_ROWS])
def test_so_few_rows_are_refused_whatever_the_columns(rows: int) -> None:
    record = PersonRecord()
    history = np.zeros(rows, np.uint64)
    places = job(record, people(rows), [equations(everyone(rows), values=1)])
    record.require_company(history, 1, BALANCED)
    if rows < LEAST_ROWS:
        with pytest.raises(LabelLeakRefused, match="fewer than 200"):
            record.require_within_limits(places, BALANCED, "take more")
    else:
        record.require_within_limits(places, BALANCED, "take more")


def test_what_was_split_before_does_not_hold_up_others() -> None:
    record = PersonRecord()
    job(record, people(1000), [equations(part) for part in np.split(everyone(1000), 100)])
    record.welcome(people(2000, 3000))
    history = record.history.copy()
    job(record, people(2000, 3000), [equations(everyone(1000))])
    record.require_company(history, 1, BALANCED)


def filled() -> PersonRecord:
    record = PersonRecord()
    job(record, people(50), [equations(everyone(50)), equations(np.arange(9), "lab", model=False)])
    job(record, people(20, 90), [equations(everyone(70), name="b")])
    return record


def test_a_record_comes_back_after_a_restart(tmp_path: Path) -> None:
    record = filled()
    record.save(tmp_path / "new" / "people")
    again = PersonRecord.load(tmp_path / "new" / "people")
    assert (again.sets, again.seen) == (record.sets, record.seen)
    for name in ("people", "history", "population"):
        np.testing.assert_array_equal(getattr(again, name), getattr(record, name))
    for ours, theirs in ((record.model, again.model), (record.others, again.others)):
        assert ours.keys() == theirs.keys()
        for peer, shares in ours.items():
            np.testing.assert_array_equal(shares, theirs[peer])
    assert len(PersonRecord.load(tmp_path / "none").people) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 64, b"\0" * 64])
def test_a_damaged_record_is_refused_and_never_taken_as_empty(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "people").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        PersonRecord.load(tmp_path / "people")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model.shop", np.full(90, np.nan)),
        ("model.shop", np.full(90, -1.0)),
        ("others.lab", np.zeros(3)),
        ("history", np.zeros(90)),
        ("people", np.zeros(90, np.uint64)),
    ],
)
def test_a_record_with_anything_but_counts_is_refused(
    tmp_path: Path, name: str, values: np.ndarray
) -> None:
    path = tmp_path / "people"
    filled().save(path)
    header = '{"sets": [], "seen": {}}'
    save_file({**load_file(path), name: values}, path, {"seen": header})
    with pytest.raises(DataError, match="damaged"):
        PersonRecord.load(path)


def test_a_folder_in_the_records_place_is_reported(tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        PersonRecord.load(tmp_path / "people")


def test_a_failed_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "people"
    filled().save(path)
    old = path.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match="No space left"):
        PersonRecord().save(path)
    assert path.read_bytes() == old


def test_real_targets_are_as_easy_to_read_as_a_class_that_stands_out_as_far() -> None:
    generator = np.random.default_rng(0)
    rare = np.repeat([0.0, 1.0], [9500, 500])
    assert label_variance(rare) == pytest.approx(label_variance(rare.astype(np.int64)))
    # Fewer than 1 %: those that differ from the commonest value.
    sparse = np.repeat([7.0, 20.0], [9980, 20])
    assert label_variance(sparse) == pytest.approx(0.002 * 0.998)
    normal = generator.standard_normal(10_000)
    assert label_variance(3 * normal - 8) == pytest.approx(label_variance(normal))
    assert 0.08 < label_variance(normal) < 0.12
    assert label_variance(np.exp(2 * normal)) < 0.03 < label_variance(np.exp(0.1 * normal))
    assert label_variance(np.repeat([-1.0, 1.0], 500)) == pytest.approx(0.25)
