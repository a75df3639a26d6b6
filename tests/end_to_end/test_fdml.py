"""FDML: exact where it is synchronous, bounded where it is not, and who sees what."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.benchmarks import in_one_place
from securevfl.benchmarks.in_one_place import one_table, train_in_one_place
from securevfl.data.partition import BatchSchedule
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.losses import loss_for
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.early_stopping import KeepState
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, PushedPredictions
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.runtime.costs import FixedCosts, Slower
from securevfl.training import TrainingResult, train
from tests.end_to_end.fdml_jobs import FEW, run
from tests.jobs import breast_cancer


def with_straggler(dataset: VerticalDataset, limit: int | str, factor: float = 4) -> TrainingResult:
    slow = dataset.parties[0].name
    return run(
        dataset,
        fdml={"staleness": limit},
        stopwatch=FixedCosts({"local": 1e-3}),
        paces={slow: Slower(factor), SERVER: Slower(0.01)},
    )


@pytest.mark.parametrize(
    ("name", "parties"), [("breast_cancer", 2), ("breast_cancer", 3), ("digits", 2)]
)
def test_bulk_synchronous_steps_are_those_of_one_trainer(name: str, parties: int) -> None:
    dataset = load(name, parties=parties)
    result = run(dataset, {"l2": 1e-3})
    loss = loss_for("logistic", dataset.classes)
    blocks = []
    for table in dataset.parties:
        columns = table.train
        if dataset.standardize:
            scale = columns.std(axis=0)
            columns = (columns - columns.mean(axis=0)) / np.where(scale > 0, scale, 1)
        if table.name == dataset.label_party:
            columns = np.hstack([columns, np.ones((len(columns), 1))])
        blocks.append(columns)
    joint = np.hstack(blocks)
    free = np.concatenate(
        [
            np.append(
                np.ones(block.shape[1] - 1), 0.0 if table.name == dataset.label_party else 1.0
            )
            for block, table in zip(blocks, dataset.parties, strict=True)
        ]
    )
    weights = np.zeros((joint.shape[1], loss.outputs))
    schedule = BatchSchedule(dataset.row_digests, 64, seed=0, sampling="shuffle")
    for index in range(FEW["rounds"]):
        rows = schedule.batch(index)
        gradient = joint[rows].T @ loss.residuals(joint[rows] @ weights, dataset.train_labels[rows])
        gradient = gradient / len(rows) + 1e-3 * free[:, None] * weights
        weights = weights - 0.5 / np.sqrt(index + 1) * gradient
    found = np.vstack([result.outcomes[table.name].model.weights for table in dataset.parties])
    np.testing.assert_allclose(found, weights, atol=1e-12)


def test_networks_are_trained_as_in_one_place() -> None:
    settings = {"model": "mlp", "hidden": [6], "start": "random"}
    result = run(breast_cancer(), settings)
    alone = train_in_one_place(result.job, breast_cancer())
    assert result.clear_auc == pytest.approx(alone.auc, abs=1e-12)
    assert result.clear_loss == pytest.approx(alone.loss, abs=1e-12)
    assert result.scores[-1].auc == result.clear_auc


def test_one_model_over_all_columns_is_the_sum_of_linear_ones_and_of_no_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = one_table(breast_cancer())
    assert table.train.shape[1] == sum(len(each.columns) for each in breast_cancer().parties)
    assert len(set(table.columns)) == len(table.columns)
    linear = Job.of(job=FEW)
    sizes: list[int] = []

    class Counted(LocalPart):
        def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **more)
            sizes.append(self.model.weights.size)

    monkeypatch.setattr(in_one_place, "LocalPart", Counted)
    summed, one = (
        train_in_one_place(linear, breast_cancer(), one_model=one) for one in (False, True)
    )
    assert one.auc == summed.auc
    assert one.loss == pytest.approx(summed.loss, abs=1e-12)
    networks = Job.of(job={**FEW, "model": "mlp", "hidden": [6], "start": "random"})
    summed, one = (
        train_in_one_place(networks, breast_cancer(), one_model=one) for one in (False, True)
    )
    assert one.loss != summed.loss
    # Together as many hidden units in each, 12, and in one network all 30 columns at every unit.
    assert sizes[3:] == [15 * 6 + 6 + 6 + 1, 15 * 6 + 6 + 6 + 1, 30 * 12 + 12 + 12 + 1]


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_no_pull_is_answered_beyond_the_limit(limit: int) -> None:
    result = with_straggler(breast_cancer(), limit)
    slow, fast = (table.name for table in breast_cancer().parties)
    served = result.others[SERVER]
    # At a lead of τ the paper refuses, here a pull is answered still.
    assert max(served.leads[fast]) == limit
    assert set(served.leads[slow]) == {0}
    assert served.refused[fast] > 20
    assert {len(leads) for leads in served.leads.values()} == {40}


def test_without_a_limit_the_fast_party_runs_away() -> None:
    slow, fast = (table.name for table in breast_cancer().parties)
    bounded, free = (with_straggler(breast_cancer(), limit) for limit in (0, "unbounded"))
    served = free.others[SERVER]
    assert served.refused == {slow: 0, fast: 0}
    assert max(served.leads[fast]) > 10

    def end(result: TrainingResult, name: str) -> float:
        return sum(result.ledgers[name].snapshots[-1].path.values())

    assert end(free, fast) < 0.6 * end(bounded, fast)
    assert end(free, slow) == pytest.approx(end(bounded, slow), rel=0.1)


def test_stale_sums_change_the_steps_and_runs_repeat_to_the_bit() -> None:
    first, same = (with_straggler(breast_cancer(), 3) for _ in range(2))
    bulk = with_straggler(breast_cancer(), 0)
    for name in first.outcomes:
        weights = first.outcomes[name].model.weights
        np.testing.assert_array_equal(weights, same.outcomes[name].model.weights)
        assert not np.allclose(weights, bulk.outcomes[name].model.weights)


def test_a_pull_holds_the_newest_predictions_of_the_others() -> None:
    """Replayed from the server's own view, message by message."""
    result = with_straggler(breast_cancer(), 5)
    names = [table.name for table in breast_cancer().parties]
    schedule = BatchSchedule(breast_cancer().row_digests, 64, seed=0, sampling="shuffle")
    matrix = {name: np.zeros((schedule.rows, 1)) for name in names}
    possible: dict[tuple[str, int], list[bytes]] = {}
    for entry in result.views[SERVER].received(PushedPredictions):
        message = entry.message
        assert isinstance(message, PushedPredictions)
        matrix[entry.sender][schedule.batch(message.step)] = message.values
        for name, other in (names, names[::-1]):
            for step in range(40):
                rows = schedule.batch(step)
                possible.setdefault((name, step), []).append(matrix[other][rows].tobytes())
    for name in names:
        for entry in result.views[name].received(PulledSums):
            assert isinstance(entry.message, PulledSums)
            assert entry.message.values.tobytes() in possible[name, entry.message.step]


def test_who_is_sent_what() -> None:
    dataset = breast_cancer(3)
    result = run(dataset)
    for name, view in result.views.items():
        kinds = Counter(type(entry.message) for entry in view.received())
        senders = {entry.sender for entry in view.received() if entry.message.stage != "setup"}
        if name == SERVER:
            assert kinds == {Hello: 3, PushedPredictions: 120, HeldOutPredictions: 3}
        else:
            told: dict[type, int] = {} if name == dataset.label_party else {KeepState: 1}
            assert kinds == {Hello: 2, PulledSums: 40, HeldOutPredictions: 1, **told}
            assert senders == ({SERVER, dataset.label_party} if told else {SERVER})
    assert result.costs().messages == 40 * 3 * 2


def test_every_party_scores_the_same() -> None:
    result = run(breast_cancer(), privacy={"noise_multiplier": 1})
    first, second = (outcome.scores[0].auc for outcome in result.outcomes.values())
    assert first == pytest.approx(second, abs=1e-12)


def test_the_servers_name_is_taken() -> None:
    first, second = breast_cancer().parties
    named = replace(breast_cancer(), parties=(replace(first, name=SERVER), second))
    with pytest.raises(ConfigError, match="name of fdml's server"):
        run(replace(named, label_party=second.name))


def test_divergence_is_said_and_nothing_that_is_no_number_kept() -> None:
    result = run(breast_cancer(), {"learning_rate": 1e10, "l2": 10.0})
    assert result.status in {3, 5}
    assert any("left float64" in each.text for each in result.warnings)
    assert all(np.isfinite(each.model.weights).all() for each in result.outcomes.values())


def test_with_nothing_set_it_learns_from_small_batches() -> None:
    """Noise is not counted twice, nor as that of exact steps: with both it guesses."""
    job = {"algorithm": "fdml", "batch_size": 64, "eval_every": 0}
    assert train(Job.of(job=job), load("digits")).scores[-1].accuracy > 0.5


@pytest.mark.slow
def test_the_papers_table_on_a9a(real_data: Callable[..., VerticalDataset]) -> None:
    """Table 2 of Hu et al.: local 0.885, centralized 0.9025, FDML 0.9026."""
    a9a = real_data("a9a")
    first, second = (table.name for table in a9a.parties)
    a9a = replace(a9a, label_party=second)
    result = run(
        a9a, {"rounds": 20 * 325, "batch_size": 100, "learning_rate": 3.0}, record_views=False
    )
    assert result.clear_auc >= 0.9020
    assert train_in_one_place(result.job, a9a).auc == pytest.approx(result.clear_auc, abs=1e-6)
    assert train_in_one_place(result.job, a9a, [first]).auc == pytest.approx(0.885, abs=1e-3)
