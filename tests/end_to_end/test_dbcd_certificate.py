"""DBCD: what the label party says of its objective is so, on data that are hard on it too."""

from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from tests.end_to_end.l1 import coefficients, intercept, objective, objective_of, run
from tests.jobs import breast_cancer
from tests.made_data import dataset_of

L1 = 1e-6


@pytest.fixture(scope="module")
def separable() -> VerticalDataset:
    generator = np.random.default_rng(11)
    blocks = [generator.standard_normal((400, 5)) for _ in range(2)]
    labels = (np.hstack(blocks).sum(axis=1) > 0).astype(np.int64)
    return dataset_of(blocks, labels)


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
def test_a_gap_is_a_bound_where_columns_separate_the_classes(
    separable: VerticalDataset, rounds: int
) -> None:
    hard: dict[str, Any] = {"loss": "squared-hinge", "intercept": False, "tolerance": 1e-6}
    least = objective_of(run(separable, rounds=150, l1=L1, **hard), separable)
    after = run(separable, rounds=rounds, l1=L1, **hard)
    assert after.rounds == rounds
    before = 1.0
    if rounds > 1:
        before = objective_of(run(separable, rounds=rounds - 1, l1=L1, **hard), separable)
    gap = after.outcomes[separable.label_party].path[-1].gap
    assert gap is not None
    assert gap >= (before - least) / before > 0


def test_predictions_stay_those_of_the_weights_where_the_next_lambda_begins() -> None:
    dataset = breast_cancer()
    settings: dict[str, Any] = {"tolerance": 0.1, "loss": "squared-hinge"}
    first = run(dataset, dbcd={"path": (0.05,)}, **settings)
    on = run(dataset, dbcd={"path": (0.05, 0.03)}, rounds=first.rounds + 1, **settings)
    point = on.outcomes[dataset.label_party].path[-1]
    assert not point.settled
    exact = objective(dataset, coefficients(on), intercept(on), loss="squared-hinge", l1=point.l1)
    assert point.objective == pytest.approx(exact, rel=1e-9)
