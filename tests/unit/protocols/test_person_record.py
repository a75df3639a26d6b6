"""What the label guard counts of a person, over jobs, peers and restarts."""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from securevfl.data.tables import row_digests
from securevfl.errors import DataError, LabelLeakRefused
from securevfl.protocols.guards.people import Population
from securevfl.protocols.guards.person_record import (
    LEAST_ROWS,
    MODEL_LIMIT,
    OTHERS_LIMIT,
    PersonRecord,
    Revealing,
    label_variance,
)

BALANCED = 0.25
FIVE = {"shop": ("a", 5)}
NEW = ("labels", "current", "changes")  # since version 0.2


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


ALL, SAME = equations(everyone(1000)), people(1000)
VISIT = Revealing("shop", 10, everyone(1000), "visit 0", model=False, may_repeat=False)
POOLED = (SAME, [ALL, equations(everyone(1000), "lab", values=5)])
REVEALED: dict[str, tuple[list[tuple[np.ndarray, list[Revealing]]], tuple[float, float]]] = {
    "the same again is nothing new": ([(SAME, [ALL])] * 3, (10 / 250, 0)),
    "nor is it in another order": ([(SAME, [ALL]), (SAME[::-1].copy(), [ALL])], (10 / 250, 0)),
    "other columns are another model": (
        [(SAME, [equations(everyone(1000), name=name)]) for name in "abc"],
        (30 / 250, 0),
    ),
    "peers may pool what they see": ([POOLED], (15 / 250, 0)),
    "a peer of an earlier job counts although it takes no part now": (
        [POOLED, (SAME, [equations(everyone(1000), "bank", values=5)])],
        (20 / 250, 0),
    ),
    "minibatches tell more than any model": (
        [(SAME, [equations(half, model=False) for half in np.split(everyone(1000), 2)])],
        (0, 10 / 125),
    ),
    "one row less is another set for all who stay": (
        [(SAME, [ALL]), (people(999), [equations(everyone(999))])],
        (10 / 250, 10 / 999 * 4),
    ),
    "other people have a model of their own": (
        [(SAME, [ALL]), (people(1000, 2000), [ALL])],
        (10 / 250, 0),
    ),
    "what may not repeat counts every time": ([(SAME, [VISIT])] * 2, (0, 2 * 10 / 250)),
}


@pytest.mark.parametrize(("jobs", "revealed"), REVEALED.values(), ids=REVEALED)
def test_what_jobs_reveal_of_the_last_ones_people(
    jobs: list[tuple[np.ndarray, list[Revealing]]], revealed: tuple[float, float]
) -> None:
    record, places = PersonRecord(), everyone(0)
    for ids, gradients in jobs:
        places = job(record, ids, gradients)
    assert record.revealed(places, BALANCED) == pytest.approx(revealed)


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
    with pytest.raises(LabelLeakRefused, match="of batches, networks, hinges or other rows"):
        within(rows - 1, 1, model=False)


def require_company(
    then: np.ndarray, now: np.ndarray, first: list[Revealing], values: int = 10
) -> None:
    """After a job of some people, one of others."""
    record = PersonRecord()
    job(record, then, first)
    record.welcome(now)
    history = record.history.copy()
    job(record, now, [equations(everyone(len(now)), values=values)])
    record.require_company(history, 1, BALANCED)


@pytest.mark.parametrize(
    ("then", "now"),
    [((0, 1000), (1, 1000)), ((1, 1000), (0, 1000)), ((0, 1000), (1, 1001))],
    ids=["one row less", "one row more", "one for another"],
)
def test_nobody_is_told_apart_with_few_others(then: tuple[int, int], now: tuple[int, int]) -> None:
    with pytest.raises(LabelLeakRefused, match="1 rows would be in other sets"):
        require_company(people(*then), people(*now), [equations(everyone(then[1] - then[0]))])


def test_as_many_may_come_and_go_at_once_as_a_batch_must_have() -> None:
    first = [equations(everyone(2000), values=1)]
    require_company(people(2000), people(1200), first, values=1)
    with pytest.raises(LabelLeakRefused, match="799 rows would"):
        require_company(people(2000), people(1201), first, values=1)


def test_so_few_rows_are_refused_whatever_the_columns() -> None:
    within(LEAST_ROWS, 1, model=True)
    with pytest.raises(LabelLeakRefused, match="fewer than 200"):
        within(LEAST_ROWS - 1, 1, model=True)


def test_what_was_split_before_does_not_hold_up_others() -> None:
    split = [equations(part) for part in np.split(everyone(1000), 100)]
    require_company(people(1000), people(2000, 3000), split)


def filled() -> PersonRecord:
    record = PersonRecord(populations=[Population(name="people", columns=["age"])])
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
    path = tmp_path / "people"
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        PersonRecord.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        PersonRecord.load(path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model.shop", np.full(90, np.nan)),
        ("model.shop", np.full(90, -1.0)),
        ("others.lab", np.zeros(3)),
        ("history", np.zeros(90)),
        ("people", np.zeros(90, np.uint64)),
        ("of", np.ones(90, np.int64)),
        ("values", np.zeros(90)),
    ],
)
def test_a_record_with_anything_but_counts_is_refused(
    tmp_path: Path, name: str, values: np.ndarray
) -> None:
    path = tmp_path / "people"
    filled().save(path)
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    save_file({**load_file(path), name: values}, path, header)
    with pytest.raises(DataError, match="damaged"):
        PersonRecord.load(path)


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


def marks(changed: Iterable[int] = (), to: int = 9) -> np.ndarray:
    found = np.full(1000, 7, np.uint64)
    found[list(changed)] = to
    return np.stack([found, found], axis=1)


def relabel(
    record: PersonRecord,
    labels: np.ndarray,
    people_of_job: np.ndarray = SAME,
    columns: dict[str, tuple[str, int]] = FIVE,
    *,
    batches: int = 1,
    allowed: bool = False,
) -> None:
    places = record.welcome(people_of_job)
    together = np.split(everyone(len(people_of_job)), batches)
    record.relabel(places, labels, columns, together, allowed=allowed)


def named(people_changed: int, alike: int, least: int = 40) -> str:
    return f"over jobs: {people_changed}; .* alike: {alike}, expected at least {least}"


def test_few_changed_labels_are_refused_and_many_are_not() -> None:
    record = PersonRecord()
    for _ in range(2):
        relabel(record, marks())
    for count in (1, 39, 961, 999):
        with pytest.raises(LabelLeakRefused, match=named(count, min(count, 1000 - count))):
            relabel(deepcopy(record), marks(range(count)))
    for count in (40, 960, 1000):
        relabel(deepcopy(record), marks(range(count)))
    relabel(record, marks(range(1)), allowed=True)
    with pytest.raises(LabelLeakRefused, match=named(1, 1)):
        relabel(record, marks(range(1)))


JOBS: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {
    "back, but for one": [(marks(range(40)), SAME), (marks(range(1)), SAME)],
    "a third label and back, but for one": [
        (marks(everyone(1000)), SAME),
        (np.concatenate([marks(everyone(1))[:1], marks()[1:]]), SAME),
    ],
    "back while one is away": [
        (marks(range(41)), SAME),
        (marks()[1:], SAME[1:]),
        (marks(range(1)), SAME),
    ],
}


@pytest.mark.parametrize("jobs", JOBS.values(), ids=JOBS)
def test_labels_are_compared_with_those_of_all_earlier_jobs(
    jobs: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    record = PersonRecord()
    relabel(record, marks())
    *first, (last, ids) = jobs
    for labels, of in first:
        relabel(record, labels, of)
    with pytest.raises(LabelLeakRefused, match="alike: 1,"):
        relabel(record, last, ids)


def test_a_label_is_the_same_if_one_of_its_two_digests_is() -> None:
    record = PersonRecord()
    relabel(record, marks())
    for grid in (0, 1):
        moved = marks()
        moved[:5, grid] = 9
        relabel(record, moved)
    with pytest.raises(LabelLeakRefused, match=named(5, 5)):
        relabel(record, marks(range(5)))


def test_every_batch_needs_as_many_that_changed_alike() -> None:
    record = PersonRecord()
    relabel(record, marks(), batches=2)
    changed = [*range(0, 39), 500]  # 39 in one batch and one in the other
    relabel(deepcopy(record), marks(changed))
    with pytest.raises(LabelLeakRefused, match=named(40, 39)):
        relabel(record, marks(changed), batches=2)


def test_later_columns_count_for_earlier_changes() -> None:
    record, one = PersonRecord(), {"shop": ("a", 1)}
    for changed in (range(0), range(8)):
        relabel(record, marks(changed), columns=one)
    for columns in ({"shop": ("b", 1)}, {"bank": ("a", 1)}, {"shop": ("a", 2)}):
        with pytest.raises(LabelLeakRefused, match=named(8, 8, 16)):
            relabel(deepcopy(record), marks(range(8)), columns=columns)
    relabel(record, marks(range(8)), columns=one)


def test_people_of_other_jobs_do_not_hide_a_change_nor_make_one() -> None:
    record = PersonRecord()
    relabel(record, marks(), people(1000, 2000))
    relabel(record, marks())
    with pytest.raises(LabelLeakRefused, match=named(999, 1)):
        relabel(deepcopy(record), marks(range(1, 1000)))
    relabel(record, marks(range(500)))
    relabel(record, marks(), people(1000, 2000))  # away meanwhile, and unchanged
    relabel(record, marks(), people(1990, 2990))  # most of them new


def test_labels_are_kept_and_a_record_of_an_earlier_version_is_not_taken_as_empty(
    tmp_path: Path,
) -> None:
    record = PersonRecord(populations=[Population(name="people", columns=["age"])])
    path = tmp_path / "labels.safetensors"
    relabel(record, marks())
    relabel(record, marks(range(500)))
    record.save(path)
    again = PersonRecord.load(path)
    assert (again.columns, again.steady) == ({"shop": {"a": 5}}, record.steady)
    assert again.steady != 0
    with pytest.raises(LabelLeakRefused):
        relabel(again, marks(range(499)))
    arrays = {name: each for name, each in load_file(path).items() if name not in NEW}
    earlier = tmp_path / "earlier.safetensors"
    save_file(arrays, earlier, {"seen": '{"sets": [], "seen": {}}'})
    with pytest.raises(DataError, match="of an earlier version"):
        PersonRecord.load(earlier)
