import numpy as np
import pytest

from securevfl.data.features import FIRST, suspicious
from securevfl.data.tables import PartyTable

ROWS = 60


def found(columns: dict[str, np.ndarray], labels: np.ndarray | None = None) -> dict[str, str]:
    values = np.column_stack([np.asarray(each, float) for each in columns.values()])
    table = PartyTable("bank", tuple(columns), values, values[:2])
    return {note.column or "": note.kind for note in suspicious(table, labels)}


@pytest.fixture
def numbers(generator: np.random.Generator) -> np.ndarray:
    return generator.normal(size=ROWS)


@pytest.fixture
def labels(generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, 2, ROWS)


def test_ordinary_columns_are_not_worth_a_word(
    numbers: np.ndarray, labels: np.ndarray, generator: np.random.Generator
) -> None:
    prices = generator.permutation(10_000)[:ROWS]
    assert found({"x": numbers, "price": prices, "noisy": labels + numbers}, labels) == {}


def test_a_copy_of_the_label_is_a_warning(numbers: np.ndarray, labels: np.ndarray) -> None:
    copies = {"a": labels, "b": 3 - 2 * labels, "c": labels + numbers / 1000, "d": numbers}
    assert found(copies, labels) == {"a": "label", "b": "label", "c": "label"}
    # Whoever has no labels cannot know.
    assert found(copies) == {}
    table = PartyTable("bank", ("a",), labels[:, None].astype(float), np.ones((1, 1)))
    assert [note.warning for note in suspicious(table, labels)] == [True]


def test_so_is_one_of_a_class_among_many_or_of_a_real_target(
    numbers: np.ndarray, generator: np.random.Generator
) -> None:
    classes = generator.integers(0, 4, ROWS)
    columns = {"two": (classes == 2).astype(float), "codes": classes.astype(float)}
    assert found(columns, classes) == {"two": "label", "codes": "label"}
    assert found({"y": 2 * numbers}, numbers) == {"y": "label"}


def test_columns_that_overflow_are_not_worth_a_word(labels: np.ndarray) -> None:
    columns = {"a": 1.7e308 * np.linspace(-1, 1, ROWS), "copy": labels}
    assert found(columns, labels) == {"copy": "label"}


def test_constants_copies_and_ids_are_reported(
    numbers: np.ndarray, generator: np.random.Generator
) -> None:
    columns = {
        "one": np.ones(ROWS),
        "x": numbers,
        "again": numbers,
        "running": generator.permutation(ROWS) + 7,
        "customer_id": generator.permutation(10_000)[:ROWS],
        "paid": generator.permutation(10_000)[:ROWS],
    }
    assert found(columns) == {
        "one": "constant", "again": "duplicate", "running": "id", "customer_id": "id",
    }  # fmt: skip


def test_the_first_rows_alone_prove_nothing(generator: np.random.Generator) -> None:
    numbers = generator.normal(size=FIRST + ROWS)
    late, whole = numbers.copy(), np.arange(FIRST + ROWS, dtype=float)
    late[-1] += 1
    same, fraction = np.r_[np.zeros(FIRST), np.ones(ROWS)], whole.copy()
    fraction[-1] += 0.5
    columns = {"x": numbers, "almost x": late, "almost constant": same, "almost an id": fraction}
    assert found(columns) == {}
    assert found({"x": numbers, "again": numbers, "n": whole}) == {"again": "duplicate", "n": "id"}
