import numpy as np
import pytest

from securevfl.benchmarks.in_one_place import side_by_side
from securevfl.errors import ConfigError
from securevfl.sparse import SparseRows
from tests.sparse_data import sparse_rows


def test_values_stand_side_by_side_with_ones_and_kinds_do_not_mix() -> None:
    ones = sparse_rows(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    values = sparse_rows(np.array([[0.0, 2.5], [-1.0, 0.0], [0.0, 0.0]]))
    assert ones.values is None
    both = side_by_side([ones, values, ones])
    assert isinstance(both, SparseRows)
    expected = np.hstack([each.toarray() for each in (ones, values, ones)])
    np.testing.assert_array_equal(both.toarray(), expected)
    with pytest.raises(ConfigError, match="side by side"):
        side_by_side([ones, np.ones((3, 1))])
    with pytest.raises(ValueError, match="as they are stored"):
        side_by_side([ones, ones.with_constant()])
