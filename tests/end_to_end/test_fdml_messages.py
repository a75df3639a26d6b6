"""What FDML's messages may hold: several batches, and float32."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.errors import TrainingDiverged
from securevfl.models.losses import Logistic
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, PushedPredictions, as_it_travels
from securevfl.runtime.costs import FixedCosts, Slower
from tests.end_to_end.fdml_jobs import FEW, run
from tests.jobs import breast_cancer

SEVERAL = {"staleness": 3, "batches_a_message": 4}


def replayed(dataset: VerticalDataset, together: int, precision: type) -> list[np.ndarray]:
    """FDML without parties: messages of so many batches, all parties in step with each other."""
    blocks = []
    for table in dataset.parties:
        scaled = (table.train - table.train.mean(axis=0)) / table.train.std(axis=0)
        if table.name == dataset.label_party:
            scaled = np.hstack([scaled, np.ones((len(scaled), 1))])
        blocks.append(scaled)
    weights = [np.zeros((block.shape[1], 1)) for block in blocks]
    schedule = BatchSchedule(dataset.row_digests, 64, seed=0, sampling="shuffle")
    for first in range(0, FEW["rounds"], together):
        before = list(weights)
        for index in range(first, min(first + together, FEW["rounds"])):
            rows = schedule.batch(index)
            stepped = []
            for own, (block, theta) in enumerate(zip(blocks, weights, strict=True)):
                sent = [
                    (other[rows] @ then).astype(precision)
                    for place, (other, then) in enumerate(zip(blocks, before, strict=True))
                    if place != own
                ]
                total = block[rows] @ theta + np.sum(sent, axis=0, dtype=precision)
                residuals = Logistic().residuals(total, dataset.train_labels[rows])
                gradient = block[rows].T @ residuals / len(rows)
                stepped.append(theta - 0.5 / np.sqrt(index + 1) * gradient)
            weights = stepped
    return weights


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("settings", "together", "precision"),
    [
        (SEVERAL, 4, np.float64),
        ({"staleness": 6, "batches_a_message": 7}, 7, np.float64),
        ({"precision": "single"}, 1, np.float32),
        (SEVERAL | {"precision": "single"}, 4, np.float32),
    ],
)
def test_steps_are_those_of_parties_that_go_so_many_batches_together(
    parties: int, settings: dict[str, Any], together: int, precision: type
) -> None:
    dataset = breast_cancer(parties)
    result = run(dataset, fdml=settings)
    expected = replayed(dataset, together, precision)
    tolerance = 1e-12 if precision is np.float64 else 1e-6
    for table, weights in zip(dataset.parties, expected, strict=True):
        found = result.outcomes[table.name].model.weights
        np.testing.assert_allclose(found, weights, atol=tolerance)
    # The last message is of what is left.
    messages = -(-FEW["rounds"] // together)
    kinds = Counter(type(entry.message) for entry in result.views[SERVER].received())
    assert kinds[PushedPredictions] == parties * messages
    assert kinds[HeldOutPredictions] == parties
    assert result.costs().messages == 2 * parties * messages


def test_every_round_has_its_costs_however_many_share_a_message() -> None:
    result = run(breast_cancer(), fdml=SEVERAL)
    for ledger in result.ledgers.values():
        assert len(ledger.snapshots) == FEW["rounds"]
    assert result.costs(3).messages == result.costs(4).messages == 4
    assert result.costs(5).messages == 8


def test_several_batches_go_with_any_staleness_that_has_no_limit() -> None:
    free = run(breast_cancer(), fdml={"staleness": "unbounded", "batches_a_message": 5})
    assert free.rounds == FEW["rounds"]


@pytest.mark.parametrize(("staleness", "lead"), [(3, 0), (6, 0), (7, 4), (12, 8)])
def test_the_age_of_the_last_batch_counts_as_lead(staleness: int, lead: int) -> None:
    slow, fast = (table.name for table in breast_cancer().parties)
    result = run(
        breast_cancer(),
        fdml={"staleness": staleness, "batches_a_message": 4},
        stopwatch=FixedCosts({"local": 1e-3}),
        paces={slow: Slower(8), SERVER: Slower(0.01)},
    )
    served = result.others[SERVER]
    assert max(served.leads[fast]) == lead
    assert served.refused[fast] > 0


@pytest.mark.parametrize("own", ["exact", "noisy"])
def test_noise_promises_the_same_and_is_drawn_once_a_visit(own: str) -> None:
    privacy = {"noise_multiplier": 1.0}
    single, several = (
        run(breast_cancer(), privacy=privacy, fdml={**fdml, "own_prediction": own})
        for fdml in ({}, SEVERAL)
    )
    assert several.privacy == single.privacy
    schedule = BatchSchedule(breast_cancer().row_digests, 64, seed=0, sampling="shuffle")
    visited = sum(len(schedule.batch(index)) for index in range(FEW["rounds"]))
    name = breast_cancer().parties[0].name
    for result in (single, several):
        values = [
            entry.message.values
            for entry in result.views[SERVER].received(PushedPredictions)
            if entry.sender == name and isinstance(entry.message, PushedPredictions)
        ]
        released = np.vstack(values)
        assert len(released) == visited
        # Noise lies on a grid: two draws may be one number.
        assert len(np.unique(released)) > 0.95 * visited


def test_what_a_party_pulls_in_single_is_rounded_and_what_it_scores_is_not() -> None:
    result = run(breast_cancer(), fdml={"precision": "single"})
    double = run(breast_cancer())
    name = breast_cancer().parties[0].name
    for entry in result.views[name].received(PulledSums):
        assert isinstance(entry.message, PulledSums)
        assert entry.message.values.dtype == np.float32
    traffic = [each.costs().bytes_sent for each in (result, double)]
    headers = 40 * 4 * (6 + 8 + 1 + 1 + 16)
    assert traffic[0] - headers == (traffic[1] - headers) / 2
    assert result.clear_loss == pytest.approx(double.clear_loss, rel=1e-5)
    assert result.clear_loss != double.clear_loss


def test_predictions_that_leave_float32_are_refused() -> None:
    for value in (1.1e30, -1e200, np.inf, np.nan):
        with pytest.raises(TrainingDiverged, match="leave float32"):
            as_it_travels(np.array([[0.0], [value]]), "single")
    assert as_it_travels(np.array([[1e30]]), "single").dtype == np.float32
    with pytest.raises(TrainingDiverged):
        run(breast_cancer(), {"learning_rate": 1e10, "l2": 10.0}, fdml={"precision": "single"})
