"""L1 under FedBCD: a soft threshold after every local step, to the optimum of DBCD."""

from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from tests.end_to_end.l1 import coefficients, objective_of, run
from tests.jobs import breast_cancer
from tests.made_data import blocks_of, dataset_of, labels_of

L1 = 0.03


def made(parties: int) -> VerticalDataset:
    generator = np.random.default_rng(5)
    blocks = blocks_of(generator, parties, rows=200, columns=6)
    return dataset_of(blocks, labels_of(generator, blocks))


@pytest.mark.parametrize(
    ("algorithm", "exchange", "parties"),
    [
        ("fedbcd-p", "plain", 2),
        ("fedbcd-p", "masked", 3),
        ("fedbcd-s", "plain", 3),
        ("fedsgd", "plain", 2),
    ],
)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_local_steps_lead_to_the_optimum(
    algorithm: str, exchange: str, parties: int, loss: str
) -> None:
    dataset = made(parties)
    optimum = run(dataset, l1=L1, loss=loss)
    result = run(
        dataset,
        {"scheme": exchange},
        algorithm=algorithm,
        l1=L1,
        loss=loss,
        rounds=300,
        batch_size="full",
    )
    least = objective_of(optimum, dataset)
    assert result.rounds == 300
    assert objective_of(result, dataset) == pytest.approx(least, rel=1e-6)
    assert np.array_equal(coefficients(result) != 0, coefficients(optimum) != 0)
    assert not coefficients(optimum).all()


def test_a_step_size_of_ones_own() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.5, "local_steps": 3, "batch_size": "full"}
    some = run(breast_cancer(), algorithm="fedbcd-p", l1=L1, rounds=200, **settings)
    none = run(breast_cancer(), algorithm="fedbcd-p", l1=0.0, rounds=200, **settings)
    assert np.count_nonzero(coefficients(none)) == 30
    assert np.count_nonzero(coefficients(some)) < 20


def test_l2_is_left_out_unless_it_is_asked_for() -> None:
    dataset = breast_cancer()
    assert run(dataset, l1=L1, rounds=1).plan.l2 == 0
    assert run(dataset, algorithm="fedbcd-p", l1=L1, rounds=1).plan.l2 == 0
    assert run(dataset, algorithm="fedbcd-p", rounds=1).plan.l2 == 1 / 456
    assert run(dataset, algorithm="fedbcd-p", l1=L1, l2=0.1, rounds=1).plan.l2 == 0.1
