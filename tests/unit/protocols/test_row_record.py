from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from securevfl.blocks import BlockedRows
from securevfl.data.tables import row_digests
from securevfl.errors import DataError
from securevfl.files import only_one
from securevfl.protocols.guards import people
from securevfl.protocols.guards.people import CountedJob, digests_of_values
from securevfl.protocols.guards.row_record import Attempt, NamedRows, RowRecord
from securevfl.sparse import SparseRows
from tests.sparse_data import sparse_rows

JOB = CountedJob(name="first", hash="ab", day="2026-11-24")
COLUMNS = ("age", "income")
AGES = np.array([[30.0, 1000.25], [40.0, 2e6], [50.0, 0.0]])


def named(
    record: RowRecord,
    values: np.ndarray = AGES,
    ids: tuple[str, ...] = ("a", "b", "c"),
    population: str = "people.csv",
    columns: tuple[str, ...] = COLUMNS,
) -> NamedRows:
    digests = digests_of_values(values, columns)
    return record.rows(digests, row_digests(ids), population, columns)


def counted(**where: object) -> tuple[RowRecord, NamedRows]:
    record = RowRecord()
    rows = named(record, **where)  # type: ignore[arg-type]
    record.note("trained", rows, np.array([3, 4, 5]))
    record.note_job(rows, COLUMNS, JOB)
    return record, rows


def test_neither_a_pseudonym_nor_noise_makes_another_row() -> None:
    record, _ = counted()
    for values, ids in ((AGES * (1 + 1e-9), "xyz"), (AGES + 1e-9, "xyz"), (AGES + 7, "abc")):
        rows = named(record, values, tuple(ids))
        assert record.shown("trained", rows).tolist() == [3, 4, 5]
        assert not record.shown("scored", rows).any()
    assert not record.shown("trained", named(record, AGES + 7, tuple("xyz"))).any()


def test_six_digits_in_a_file_are_the_same_row(generator: np.random.Generator) -> None:
    values = generator.uniform(1e4, 9e4, (500, 3))
    written = np.array([[float(f"{value:.6g}") for value in row] for row in values])
    known = digests_of_values(values, "abc") == digests_of_values(written, "abc")
    assert known.mean() > 0.99


def test_noise_in_the_last_digits_makes_few_new_rows(generator: np.random.Generator) -> None:
    values = generator.uniform(1, 2, (5000, 3))
    known = digests_of_values(values, "abc") == digests_of_values(values * (1 + 1e-9), "abc")
    assert known.mean() > 0.98


def test_row_numbers_of_another_table_are_other_people() -> None:
    record, _ = counted()
    for population, columns in (("other.csv", COLUMNS), ("people.csv", ("height", "weight"))):
        rows = named(record, AGES + 7, population=population, columns=columns)
        assert not record.shown("trained", rows).any()
    assert [each.name for each in record.populations] == [
        "people.csv",
        "other.csv",
        "people.csv (2)",
    ]
    # A column more is not another table.
    wider = named(record, np.hstack([AGES, AGES]), columns=(*COLUMNS, "height", "weight"))
    assert record.shown("trained", wider).tolist() == [3, 4, 5]


def test_without_a_population_ids_say_nothing() -> None:
    record, _ = counted(population="")
    assert not record.shown("trained", named(record, AGES + 7, population="")).any()
    assert record.shown("trained", named(record, population="")).any()


def test_values_of_sparse_rows_have_the_digests_of_dense_ones() -> None:
    dense = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    rows = sparse_rows(dense)
    assert isinstance(rows, SparseRows)
    np.testing.assert_array_equal(digests_of_values(rows, "abc"), digests_of_values(dense, "abc"))


def test_digests_tell_columns_apart_and_take_any_value() -> None:
    rows = np.array(
        [[1, 2], [2, 1], [9.9999999, 0], [10.0, -0.0], [np.nan, 1e308], [-1e308, np.inf]]
    )
    digests = digests_of_values(rows, "ab")
    assert digests[2] == digests[3]
    assert len(set(digests.tolist())) == 5


RECORDED = [
    ([10.0, -1e3, 9.999999], 0x10ABFC2B7B3677C1),
    ([-0.0, np.nan, np.inf], 0xC9D701D38CB186D9),
    ([1e300, -np.inf, 1e-6], 0x3B594C6965FD85E9),
    ([0.1234567, -31.4159265, 2e-5], 0xA84FC644BA1737A9),
    ([99999.96, 1e22, -1.0], 0xE2FC2B50908B498D),
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_digests_are_those_in_records_of_users() -> None:
    table = np.array([values for values, _ in RECORDED])
    for rows in (table, BlockedRows.of(table.astype(np.float32)), sparse_rows(table)):
        digests = digests_of_values(rows, (" Age", "debt", "RATE"))
        assert digests.tolist() == [digest for _, digest in RECORDED]


def test_halves_are_rounded_as_in_records_of_users(generator: np.random.Generator) -> None:
    """Which way depends on the CPU, as the last bit of NumPy's 10⁻⁵ does."""
    halves = generator.integers(-(10**6), 10**6, 5000) / 1e5 + 5e-6
    sizes = np.maximum(np.abs(halves), 1.0)
    grid = 10.0 ** (np.floor(np.log10(sizes)) - 5)
    bits = (np.rint(halves / grid) * grid + 0.0).astype("<f4").view("<u4").astype(np.uint64)
    with np.errstate(over="ignore"):
        expected = np.where(bits == 0, 0, people.mixed((bits * people.ODD) ^ np.uint64(7)))
    np.testing.assert_array_equal(people._cells(halves, np.uint64(7)), expected)


def test_equal_rows_have_the_larger_count() -> None:
    record = RowRecord()
    twins = named(record, np.ones((2, 2)), ("a", "b"))
    record.note("trained", twins, np.array([1, 4]))
    assert record.shown("trained", named(record, np.ones((1, 2)), ("c",))).tolist() == [4]


def test_a_record_comes_back_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.safetensors"
    with RowRecord.changed(path) as record:
        rows = named(record)
        record.note("scored", rows, np.array([1, 2, 3]))
        record.note_models(rows.under("ab" * 32))
        record.note_job(rows, COLUMNS, JOB)
        record.attempts["ef"] = Attempt(at_most=9, ended=True)
    again = RowRecord.load(path)
    assert again.shown("scored", named(again)).tolist() == [1, 2, 3]
    assert np.isin(rows.under("ab" * 32), again.models).all()
    assert not np.isin(rows.under("cd" * 32), again.models).any()
    assert again.last(rows) == "job 'first' of 2026-11-24 (ab)"
    assert again.attempts == {"ef": Attempt(at_most=9, ended=True)}


def test_one_population_is_forgotten_and_no_other() -> None:
    record, _ = counted()
    other = named(record, AGES + 7, population="other.csv")
    record.note("trained", other, np.array([1, 1, 1]))
    assert record.forget("people.csv") == 6
    assert record.shown("trained", named(record, AGES + 7, population="other.csv")).all()
    assert [each.name for each in record.populations] == ["other.csv"]
    assert not record.shown("trained", named(record)).any()


def test_a_record_is_counted_while_nobody_else_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else of two jobs that begin at once the later one would forget the earlier one."""
    path = tmp_path / "rows.safetensors"

    def show(ids: str) -> None:
        with RowRecord.changed(path) as record:
            rows = named(record, AGES + ord(ids[0]), tuple(ids))
            record.note("trained", rows, np.array([1, 1, 1]))

    @contextmanager
    def after_another(path: Path, what: str) -> Iterator[None]:
        monkeypatch.undo()
        show("xyz")
        with only_one(path, what):
            yield

    monkeypatch.setattr(people, "only_one", after_another)
    show("abc")
    assert len(RowRecord.load(path).digests) == 12


def test_a_damaged_record_is_refused_and_never_taken_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    record, rows = counted()

    def refused(what: str) -> None:
        with pytest.raises(DataError, match=what):
            RowRecord.load(path)

    for array, wrong in (
        ("digests", rows.digests[:, 0]),
        ("trained", -record.trained - 1),
        ("of", record.of + 1),
        ("scored", record.scored[1:]),
        ("models", np.array([2, 1], np.uint64)),
    ):
        damaged, _ = counted()
        setattr(damaged, array, wrong)
        damaged.save(path)
        refused("damaged")
    for data in (b"", b"{}", path.read_bytes()[:-1]):
        path.write_bytes(data)
        refused("damaged")
    path.unlink()
    for name in ("held-out.json", path.name):
        old = tmp_path / "party" / name
        old.parent.mkdir(exist_ok=True)
        old.write_text("{}")
        refused("of an earlier version")
        old.unlink()
