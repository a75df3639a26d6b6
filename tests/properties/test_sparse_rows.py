"""Sparse rows are the arrays that they stand for, whatever is in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from securevfl.sparse import lengths_of, standardized
from tests.sparse_data import sparse_rows

VALUES = st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 1e-3])
TABLES = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=VALUES)
SHIFTS = st.floats(-3, 3)
SCALES = st.floats(0.1, 10)


@given(cells=st.sampled_from([1, 5, 1000]), table=TABLES, data=st.data())
def test_whatever_is_asked_of_rows_is_what_the_array_says(
    cells: int, table: np.ndarray, data: st.DataObject
) -> None:
    rows, columns = table.shape
    sparse, x = sparse_rows(table), table
    if data.draw(st.booleans()):
        shift = data.draw(arrays(np.float64, columns, elements=SHIFTS))
        scale = data.draw(arrays(np.float64, columns, elements=SCALES))
        sparse, x = standardized(sparse, shift, scale), standardized(table, shift, scale)
    if data.draw(st.booleans()):
        sparse, x = sparse.with_constant(), np.hstack([x, np.ones((rows, 1))])
    chosen = data.draw(
        st.one_of(
            arrays(np.int64, st.integers(0, 9), elements=st.integers(-rows, rows - 1)),
            arrays(np.bool_, rows),
            st.slices(rows),
        )
    )
    sparse, x = sparse[chosen], x[chosen]
    assert (sparse.shape, sparse.ndim, len(sparse)) == (x.shape, 2, len(x))
    generator = np.random.default_rng(0)
    outputs = data.draw(st.sampled_from([(), (1,), (3,)]))
    weights = generator.standard_normal((x.shape[1], *outputs))
    residuals = generator.standard_normal((len(x), *outputs))
    left = generator.standard_normal((4, x.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        for room in ("BATCH_ONES", "BLOCK_ONES"):
            patch.setattr(f"securevfl.sparse.{room}", cells)
        for ours, theirs in (
            (sparse.toarray(), x),
            (sparse @ weights, x @ weights),
            (sparse.T @ residuals, x.T @ residuals),
            (sparse.T @ sparse, x.T @ x),
            (left @ sparse.T, left @ x.T),
            (lengths_of(sparse), lengths_of(x)),
        ):
            # Of rows that lie where the shift does hardly anything of the squares is left.
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-4)
