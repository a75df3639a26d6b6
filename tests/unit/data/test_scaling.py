import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from securevfl import blocks
from securevfl.blocks import BlockedRows
from securevfl.data import Scaling
from securevfl.data.labels import TargetScaling
from securevfl.data.tables import PartyTable
from securevfl.errors import DataError
from securevfl.sparse import Matrix, dense, scaled_for
from tests.jobs import breast_cancer, fit
from tests.sparse_data import sparse_rows


def test_training_rows_come_out_with_mean_zero_and_deviation_one() -> None:
    train = np.random.default_rng(0).normal(5, 3, (50, 4))
    scaled = Scaling.fit(train).apply(train)
    assert np.allclose(scaled.mean(axis=0), 0)
    assert np.allclose(scaled.std(axis=0), 1)


def test_other_rows_are_scaled_by_the_training_rows() -> None:
    scaling = Scaling.fit(np.array([[0.0], [2.0]]))
    assert scaling.apply(np.array([[5.0]])).tolist() == [[4.0]]


def test_a_constant_column_has_scale_one_and_becomes_exactly_zero() -> None:
    train = np.full((3, 1), 0.1)  # its mean rounds to something else
    scaling = Scaling.fit(train)
    assert scaling.scale.tolist() == [1.0]
    assert scaling.apply(train).tolist() == [[0.0]] * 3
    # So does one whose deviation rounds to zero.
    assert Scaling.fit(np.array([[0.0], [1e-200]])).scale.tolist() == [1.0]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (np.array([[0.0, 1e308], [1.0, -1e308]]), "column 1 has no finite mean"),
        (np.empty((0, 2)), "no training rows"),
        (np.eye(2), "1 columns, expected 2"),
    ],
)
def test_rows_that_cannot_be_scaled_are_refused(train: np.ndarray, told: str) -> None:
    with pytest.raises(DataError, match=told):
        Scaling.fit(train).apply(np.eye(1))


KINDS: dict[str, Callable[[np.ndarray], Matrix]] = {
    "array": np.array,
    "by block": BlockedRows.of,
    "sparse": sparse_rows,
}


def table_of(train: Matrix, test: Matrix) -> PartyTable[Matrix]:
    return PartyTable("bank", ("age", "debt"), train, test)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [[1e308], [1e200], [1e308, -1e308], [1e308] * 20])
@pytest.mark.parametrize("standardize", [True, False])
def test_a_column_whose_squares_overflow_is_refused_by_name(
    kind: str,
    cells: list[float],
    standardize: bool,
    generator: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 16)
    train = generator.standard_normal((40, 2))
    train[: len(cells), 1] = cells
    rows = KINDS[kind](train)
    with pytest.raises(DataError, match="party 'bank': column 'debt' has no finite mean") as raised:
        Scaling.of(table_of(rows, rows), rows, {}, standardize=standardize)
    assert ("job.bounds" in str(raised.value)) == (kind != "sparse")
    if kind != "sparse":
        scaling = Scaling.of(table_of(rows, rows), rows, {"debt": (-1, 1)}, standardize=standardize)
        assert np.isfinite(dense(scaling.apply(rows))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("size", [-1e308, 1e150])
def test_rows_that_are_too_large_for_the_scale_of_others_are_refused_by_name(
    kind: str,
    place: int,
    size: float,
    generator: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 16)
    scaling = Scaling.fit(1e-3 * generator.standard_normal((40, 2)))
    others = np.ones((20, 2))
    scaled_for("bank", ("age", "debt"), KINDS[kind](others), scaling.apply)
    others[17, place] = size
    named = f"party 'bank': column '{['age', 'debt'][place]}' has n"
    with pytest.raises(DataError, match=named) as raised:
        scaled_for("bank", ("age", "debt"), KINDS[kind](others), scaling.apply)
    assert ("job.bounds" in str(raised.value)) == (kind != "sparse")


def test_sparse_rows_without_a_cell_that_others_have_are_refused_by_name() -> None:
    scaling = Scaling.fit(sparse_rows(np.array([[1.0, 1e160], [2.0, 1e160]])))
    scaled_for("bank", ("age", "debt"), np.array([[1.0, 1e160]]), scaling.apply)
    with pytest.raises(DataError, match="party 'bank': column 'debt' has numbers"):
        scaled_for("bank", ("age", "debt"), sparse_rows(np.eye(2)[:1]), scaling.apply)


def test_neither_held_out_nor_new_rows_are_scored_as_infinities() -> None:
    usual = breast_cancer()
    first, *others = usual.parties
    held_out = first.test.copy()
    held_out[3, 2] = 1e308
    cells = replace(first, test=held_out, train=first.train * 1e-3)
    named = f"party '{first.name}': column '{first.columns[2]}' has numbers that are too large"
    with pytest.raises(DataError, match=re.escape(named)):
        fit(replace(usual, parties=(cells, *others)))
    model = fit(usual, rounds=1).outcomes[first.name].model
    with pytest.raises(DataError, match=re.escape(named)):
        replace(model, scale=model.scale * 1e-3).predict(held_out)


@pytest.mark.parametrize("targets", [[3.0, 3.0], [1e308, -1e308], [np.nan, 1.0]])
def test_targets_without_a_scale_are_refused(targets: list[float]) -> None:
    with pytest.raises(DataError, match="targets have no finite mean and standard deviation"):
        TargetScaling.fit(np.array(targets), centered=True)
