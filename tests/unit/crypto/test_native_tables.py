"""Products of long tables, which the library in C encodes block by block as it multiplies."""

import tracemalloc

import numpy as np
import pytest

from securevfl import blocks
from securevfl.arrays import FloatArray
from securevfl.blocks import BlockedRows
from securevfl.crypto.bfv import EncodedTable
from securevfl.crypto.fixed_point import encode, unmask
from securevfl.errors import RangeExceeded
from securevfl.sparse import standardized
from tests.unit.crypto.test_native_products import bfv, compiled


def long_table(rows: int, columns: int) -> BlockedRows:
    """Columns of two widths, within 8 as scaled."""
    drawn = np.random.default_rng(4)
    wide, narrow = drawn.uniform(-15, 15, (rows, columns - 1)), drawn.integers(-9, 9, (rows, 1))
    parts, places = (wide, narrow.astype(np.int8)), (np.arange(1, columns), np.array([0]))
    return BlockedRows(parts, places).standardized(np.zeros(columns), np.full(columns, 2.0))


@compiled
@pytest.mark.parametrize(("rows", "columns"), [(200, 300), (1000, 5), (20_000, 3)])
def test_products_of_a_long_table_are_those_of_its_encoding(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 40 * columns)
    ends = bfv(rows, columns)
    evaluator, fmt = ends.evaluator(), ends.evaluator()._format
    table = long_table(rows - rows // 3, columns)
    prepared = evaluator.prepare_table(table)
    matrix = encode(table.toarray(), fmt.matrix_fraction_bits, fmt.matrix_bound, "X")
    assert np.array_equal(prepared.rows[:, 5:150], matrix[5:150].T)
    found = []
    for each in (prepared, evaluator.prepare(matrix)):
        reply = evaluator.masked_product(ends.encrypted, each)
        decrypted = ends.owner.decrypt(reply.ciphertext, columns)
        found.append(unmask(decrypted, reply.mask, ends.owner.modulus_bits))
    assert np.array_equal(found[0], found[1])


BOUNDS = np.array([[-1.0, -20.0, -2.0], [1.0, 20.0, 0.5]])


@compiled
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("bounds", [None, BOUNDS])
@pytest.mark.parametrize("constant", [False, True])
def test_columns_of_one_width_are_encoded_as_they_are_scaled_and_clipped(
    dtype: type, bounds: FloatArray | None, constant: bool
) -> None:
    drawn = np.random.default_rng(5)
    array: np.ndarray = drawn.normal(3, 2, (200, 3)).astype(dtype)
    scaling = np.array([3.0, 2.5, -1.0]), np.full(3, 2.5), bounds
    table = BlockedRows.of(array).standardized(*scaling)
    scaled = standardized(array.astype(np.float64), *scaling)
    if constant:
        table, scaled = table.with_constant(), np.hstack([scaled, np.ones((200, 1))])
    expected = encode(scaled, 16, 8, "X")[5:150].T
    assert np.array_equal(EncodedTable(table, 16)[:, 5:150], expected)


@compiled
def test_a_long_table_is_checked_before_anything_is_sent() -> None:
    ends = bfv(100, 3)
    table = long_table(50, 3)
    table.parts[0][49, 1] = 16.1
    with pytest.raises(RangeExceeded, match=r"features: largest \|value\| is 8.05, at most 8"):
        ends.evaluator().prepare_table(table)
    with pytest.raises(RangeExceeded, match="101 rows"):
        ends.evaluator().prepare_table(long_table(101, 3))
    with pytest.raises(RangeExceeded, match="4 columns"):
        ends.evaluator().prepare_table(long_table(50, 4))


@compiled
def test_a_long_table_that_changes_later_is_refused() -> None:
    ends = bfv(100, 3)
    table = long_table(50, 3)
    prepared = ends.evaluator().prepare_table(table)
    table.parts[0][49, 1] = 1e9
    with pytest.raises(RangeExceeded, match="changed"):
        ends.evaluator().masked_product(ends.encrypted, prepared)


def test_seal_takes_a_long_table_as_an_array() -> None:
    assert bfv(100, 3).evaluator(native=False).prepare_table(long_table(50, 3)) is None


@compiled
def test_a_long_table_is_not_copied() -> None:
    evaluator, table = bfv(30_000, 100).evaluator(), long_table(20_000, 100)
    tracemalloc.start()
    evaluator.prepare_table(table)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < table.nbytes / 2
