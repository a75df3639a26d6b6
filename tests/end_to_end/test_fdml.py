"""FDML: exact where it is synchronous, bounded where it is not, and who sees what."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.objective import LOSS, Trails
from bench.paces import Slower
from securevfl.arrays import FloatArray
from securevfl.benchmarks import in_one_place
from securevfl.benchmarks.in_one_place import one_table, train_in_one_place
from securevfl.data.partition import BatchSchedule, RowNumbers
from securevfl.data.tables import VerticalDataset
from securevfl.errors import BudgetExhausted, ConfigError, TrainingDiverged
from securevfl.job import Job
from securevfl.models.losses import loss_for
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.early_stopping import SelectedCheckpoint
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, PushedPredictions, as_it_travels
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.runtime.costs import SCORING, FixedCosts
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import Settings, all_weights, breast_cancer, digits, fit, received, scaled_blocks

FEW: dict[str, Any] = {
    **{"algorithm": "fdml", "rounds": 40, "batch_size": 64, "learning_rate": 0.5},
    **{"sampling": "shuffle", "start": "zero"},
}
NETWORK = {"model": "mlp", "hidden": [6], "start": "random"}
SEVERAL = {"staleness": 3, "batches_per_message": 4}
NAMES = [table.name for table in breast_cancer().parties]


def run(
    dataset: VerticalDataset | None = None, watched: Settings | None = None, /, **settings: object
) -> TrainingResult:
    exchange = "dp" if "privacy" in settings else None
    environment = Environment(**{"record_views": True, **(watched or {})})
    return fit(dataset or breast_cancer(), exchange, environment, **{**FEW, **settings})


def with_straggler(factor: float = 4, **fdml: object) -> TrainingResult:
    paces = {NAMES[0]: Slower(factor), SERVER: Slower(0.01)}
    watched = {"stopwatch": FixedCosts({"local": 1e-3}), "paces": paces}
    return run(None, watched, fdml=fdml)


def batches(dataset: VerticalDataset) -> BatchSchedule:
    return BatchSchedule(dataset.row_digests, 64, seed=0, sampling="shuffle")


def replayed(
    dataset: VerticalDataset, together: int, precision: type, l2: float
) -> list[FloatArray]:
    """FDML without parties: messages of so many batches, all parties in step with each other."""
    blocks, schedule = scaled_blocks(dataset), batches(dataset)
    loss = loss_for("logistic", dataset.classes)
    weights = [np.zeros((block.shape[1], loss.outputs)) for block in blocks.values()]
    for first in range(0, FEW["rounds"], together):
        before = list(weights)
        for index in range(first, min(first + together, FEW["rounds"])):
            rows = schedule.batch(index)
            stepped = []
            for own, (name, block) in enumerate(blocks.items()):
                sent: list[FloatArray] = [
                    (other[rows] @ then).astype(precision)
                    for place, (other, then) in enumerate(zip(blocks.values(), before, strict=True))
                    if place != own
                ]
                total = block[rows] @ weights[own] + np.sum(sent, axis=0, dtype=precision)
                residuals = loss.residuals(total, dataset.train_labels[rows])
                decayed = l2 * weights[own]
                if name == dataset.label_party:
                    decayed[-1] = 0.0
                gradient = block[rows].T @ residuals / len(rows) + decayed
                stepped.append(weights[own] - 0.5 / np.sqrt(index + 1) * gradient)
            weights = stepped
    return weights


@pytest.mark.parametrize(
    "data", [breast_cancer, lambda: breast_cancer(3), digits], ids=["two", "three", "ten classes"]
)
@pytest.mark.parametrize(
    ("fdml", "together", "precision", "l2"),
    [
        ({}, 1, np.float64, 1e-3),
        (SEVERAL, 4, np.float64, 0.0),
        ({"staleness": 6, "batches_per_message": 7}, 7, np.float64, 0.0),
        ({"precision": "single"}, 1, np.float32, 0.0),
        (SEVERAL | {"precision": "single"}, 4, np.float32, 0.0),
    ],
)
def test_steps_are_those_of_one_trainer_that_goes_so_many_batches_together(
    data: Callable[[], VerticalDataset], fdml: Settings, together: int, precision: type, l2: float
) -> None:
    dataset, parties = data(), len(data().parties)
    result = run(dataset, fdml=fdml, **({"l2": l2} if l2 else {}))
    expected = replayed(dataset, together, precision, l2)
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


def test_networks_are_trained_as_in_one_place() -> None:
    result = run(**NETWORK)
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
    sizes: list[int] = []

    class Counted(LocalPart):
        def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **more)
            sizes.append(self.model.weights.size)

    monkeypatch.setattr(in_one_place, "LocalPart", Counted)
    (summed, one), (summed_networks, one_network) = (
        [train_in_one_place(Job.of(job=job), breast_cancer(), one_model=o) for o in (False, True)]
        for job in (FEW, {**FEW, **NETWORK})
    )
    assert one.auc == summed.auc
    assert one.loss == pytest.approx(summed.loss, abs=1e-12)
    assert one_network.loss != summed_networks.loss
    # Together as many hidden units in each, 12, and in one network all 30 columns at every unit.
    assert sizes[3:] == [15 * 6 + 6 + 6 + 1, 15 * 6 + 6 + 6 + 1, 30 * 12 + 12 + 12 + 1]


@pytest.mark.parametrize(
    ("staleness", "together", "lead"),
    [*((limit, 1, limit) for limit in (0, 1, 5)), (3, 4, 0), (6, 4, 0), (7, 4, 4), (12, 4, 8)],
)
def test_no_pull_is_answered_beyond_the_limit_and_the_age_of_the_last_batch_counts(
    staleness: int, together: int, lead: int
) -> None:
    slow, fast = NAMES
    result = with_straggler(
        4 if together == 1 else 8, staleness=staleness, batches_per_message=together
    )
    served = result.others[SERVER]
    # At a lead of τ the paper refuses, here a pull is answered still.
    assert max(served.leads[fast]) == lead
    assert set(served.leads[slow]) == {0}
    assert served.refused[fast] > (20 if together == 1 else 0)
    assert {len(leads) for leads in served.leads.values()} == {40 // together}


def test_without_a_limit_the_fast_party_runs_away() -> None:
    slow, fast = NAMES
    bounded, free = (with_straggler(staleness=limit) for limit in (0, "unbounded"))
    served = free.others[SERVER]
    assert served.refused == {slow: 0, fast: 0}
    assert max(served.leads[fast]) > 10

    def end(result: TrainingResult, name: str) -> float:
        return sum(result.ledgers[name].snapshots[-1].path.values())

    assert end(free, fast) < 0.6 * end(bounded, fast)
    assert end(free, slow) == pytest.approx(end(bounded, slow), rel=0.1)


def test_stale_sums_change_the_steps_and_runs_repeat_to_the_bit() -> None:
    first, same, bulk = (with_straggler(staleness=limit) for limit in (3, 3, 0))
    for name, outcome in first.outcomes.items():
        weights = outcome.model.weights
        np.testing.assert_array_equal(weights, same.outcomes[name].model.weights)
        assert not np.allclose(weights, bulk.outcomes[name].model.weights)


def test_a_pull_holds_the_newest_predictions_of_the_others() -> None:
    result = with_straggler(staleness=5)
    schedule = batches(breast_cancer())
    matrix = {name: np.zeros((schedule.rows, 1)) for name in NAMES}
    possible: dict[tuple[str, int], list[bytes]] = {}
    for entry in result.views[SERVER].received(PushedPredictions):
        message = entry.message
        assert isinstance(message, PushedPredictions)
        matrix[entry.sender][schedule.batch(message.step)] = message.values
        for name, other in (NAMES, NAMES[::-1]):
            for step in range(40):
                rows = schedule.batch(step)
                possible.setdefault((name, step), []).append(matrix[other][rows].tobytes())
    for name in NAMES:
        for pulled in received(result, name, PulledSums):
            assert pulled.values.tobytes() in possible[name, pulled.step]


@pytest.mark.parametrize(
    ("parties", "staleness", "programs"), [(2, 0, 2), (2, 1, 3), (5, "unbounded", 6)]
)
def test_every_program_that_needs_the_order_of_rows_computes_it_by_itself(
    parties: int, staleness: int | str, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, epochs, shuffled = breast_cancer(parties), Counter[int](), BatchSchedule._shuffled

    def counted(self: BatchSchedule, epoch: int) -> RowNumbers:
        epochs[epoch] += 1
        return shuffled(self, epoch)

    monkeypatch.setattr(BatchSchedule, "_shuffled", counted)
    names = [table.name for table in dataset.parties]
    # Without a limit each party is in an epoch of its own in the end.
    paces = {name: Slower(1 + place) for place, name in enumerate(names)}
    watched = {"stopwatch": FixedCosts({"local": 1e-2}), "paces": paces | {SERVER: Slower(0.01)}}
    run(dataset, watched, rounds=10 * batches(dataset).batches, fdml={"staleness": staleness})
    # The server may lose the slowest party's order where several others are in two epochs each.
    again = 0 if staleness != "unbounded" else 2
    assert epochs.keys() == set(range(10))
    assert all(programs <= times <= programs + again for times in epochs.values())


def test_who_is_sent_what() -> None:
    dataset = breast_cancer(3)
    result = run(dataset)
    for name, view in result.views.items():
        kinds = Counter(type(entry.message) for entry in view.received())
        senders = {entry.sender for entry in view.received() if entry.message.stage != "setup"}
        if name == SERVER:
            assert kinds == {Hello: 3, PushedPredictions: 120, HeldOutPredictions: 3}
        else:
            selected: dict[type, int] = (
                {} if name == dataset.label_party else {SelectedCheckpoint: 1}
            )
            assert kinds == {Hello: 2, PulledSums: 40, HeldOutPredictions: 1, **selected}
            assert senders == ({SERVER, dataset.label_party} if selected else {SERVER})
    assert result.costs().messages == 40 * 3 * 2


def test_the_servers_name_is_taken() -> None:
    first, second = breast_cancer().parties
    named = replace(breast_cancer(), parties=(replace(first, name=SERVER), second))
    with pytest.raises(ConfigError, match="name of fdml's server"):
        run(replace(named, label_party=second.name))


def test_divergence_is_said_and_nothing_that_is_no_number_kept() -> None:
    result = run(learning_rate=1e10, l2=10.0)
    assert result.status in {3, 5}
    assert any("overflowed float64" in each.text for each in result.warnings)
    assert all(np.isfinite(each.model.weights).all() for each in result.outcomes.values())


def test_with_nothing_set_it_learns_from_small_batches() -> None:
    """Noise is not counted twice, nor as that of exact steps: with both it guesses."""
    job = {"algorithm": "fdml", "batch_size": 64, "eval_every": 0}
    assert train(Job.of(job=job), digits()).scores[-1].accuracy > 0.5


@pytest.mark.slow
def test_the_papers_table_on_a9a(real_data: Callable[..., VerticalDataset]) -> None:
    """Table 2 of Hu et al.: local 0.885, centralized 0.9025, FDML 0.9026."""
    a9a = real_data("a9a")
    first, second = (table.name for table in a9a.parties)
    a9a = replace(a9a, label_party=second)
    steps = {"rounds": 20 * 325, "batch_size": 100, "learning_rate": 3.0}
    result = run(a9a, {"record_views": False}, **steps)
    assert result.clear_auc >= 0.9020
    assert train_in_one_place(result.job, a9a).auc == pytest.approx(result.clear_auc, abs=1e-6)
    assert train_in_one_place(result.job, a9a, [first]).auc == pytest.approx(0.885, abs=1e-3)


# ------------------------------------------------------------- several batches, and float32


def test_every_round_has_its_costs_however_many_share_a_message() -> None:
    result = run(fdml=SEVERAL)
    for ledger in result.ledgers.values():
        assert len(ledger.snapshots) == FEW["rounds"]
    assert [result.costs(rounds).messages for rounds in (3, 4, 5)] == [4, 4, 8]
    free = run(fdml={"staleness": "unbounded", "batches_per_message": 5})
    assert free.rounds == FEW["rounds"]


def test_scoring_is_no_part_of_a_round() -> None:
    result = run(None, {"stopwatch": FixedCosts({SCORING: 1.0})}, fdml=SEVERAL)
    assert [ledger.seconds[SCORING] for ledger in result.ledgers.values()] == [2.0, 2.0, 1.0]
    assert result.costs().compute_s == 0.0


def test_what_a_party_pulls_in_single_is_rounded_and_what_it_scores_is_not() -> None:
    result, double = run(fdml={"precision": "single"}), run()
    pulled = received(result, NAMES[0], PulledSums)
    assert {message.values.dtype for message in pulled} == {np.dtype(np.float32)}
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
        run(learning_rate=1e10, l2=10.0, fdml={"precision": "single"})


# ---------------------------------------------------------------------------------- noise


def pushed_by(result: TrainingResult, party: str) -> Sequence[PushedPredictions]:
    return received(result, SERVER, PushedPredictions, party)


@pytest.mark.parametrize("own", ["exact", "noisy"])
def test_noise_promises_the_same_and_is_drawn_once_a_visit(own: str) -> None:
    single, several = (
        run(privacy={"noise_multiplier": 1.0}, fdml={**fdml, "own_prediction": own})
        for fdml in ({}, SEVERAL)
    )
    assert several.privacy == single.privacy
    schedule = batches(breast_cancer())
    visited = sum(len(schedule.batch(index)) for index in range(FEW["rounds"]))
    for result in (single, several):
        released = np.vstack([each.values for each in pushed_by(result, NAMES[0])])
        assert len(released) == visited
        # Noise lies on a grid: two draws may be one number.
        assert len(np.unique(released)) > 0.95 * visited


def test_pushes_carry_noise_and_are_counted() -> None:
    quiet = run(privacy={"noise_multiplier": 0, "clip": 0.1})
    pushed = received(quiet, SERVER, PushedPredictions)
    assert max(np.abs(each.values).max() for each in pushed) == 0.1
    loud = run(privacy={"noise_multiplier": 1, "clip": 0.1})
    # Every party scores the same.
    first, second = (outcome.scores[0].auc for outcome in loud.outcomes.values())
    assert first == pytest.approx(second, abs=1e-12)
    assert loud.plan.account is not None
    released: Counter[int] = Counter()
    for each in pushed_by(loud, breast_cancer().label_party):
        released.update(loud.plan.account.batch(each.step).tolist())
    assert loud.privacy is not None
    assert loud.privacy.releases == max(released.values())
    assert loud.privacy.held_out_releases == 1
    assert loud.privacy.label_releases == 0
    # Within ±0.1 without noise, of deviation 0.2 with: 5,120 draws give 0.2 to 0.224, and
    # more than 6 deviations beyond once in 10^9.
    values = [each.values for each in received(loud, SERVER, PushedPredictions)]
    assert 0.187 < np.std(np.vstack(values)) < 0.24


@pytest.mark.parametrize("own", ["exact", "noisy"])
def test_steps_are_those_that_the_description_says(own: str) -> None:
    """Replayed from what was sent: a mean over the batch, η0/√t, and whose noise is in it."""
    trails = Trails()
    result = run(
        None,
        {"wrap_model": trails.keep},
        start="random",
        privacy={"noise_multiplier": 0.5, "clip": 1},
        fdml={"own_prediction": own, "staleness": 3},
    )
    schedule, labels = result.plan.schedule, breast_cancer().train_labels
    for name, block in scaled_blocks(breast_cancer()).items():
        pushed = {each.step: each.values for each in pushed_by(result, name)}
        past = trails[name].past
        for message in received(result, name, PulledSums):
            rows, before = schedule.batch(message.step), past[message.step]
            mine = {"exact": block[rows] @ before, "noisy": pushed[message.step]}
            assert not np.allclose(mine["exact"], mine["noisy"], atol=0.1)
            gradient = block[rows].T @ LOSS.residuals(message.values + mine[own], labels[rows])
            step = 0.5 / np.sqrt(message.step + 1) * gradient / len(rows)
            np.testing.assert_allclose(past[message.step + 1], before - step, atol=1e-12)


def test_both_own_predictions_promise_the_same_and_differ_by_noise_alone() -> None:
    gradients = {"gradient_clip": 1, "gradient_noise_multiplier": 2}
    noise = {"privacy": {"noise_multiplier": 1, "noise_seed": 0, **gradients}}
    exact, noisy = (run(fdml={"own_prediction": own}, **noise) for own in ("exact", "noisy"))
    assert exact.privacy == noisy.privacy
    for name, outcome in exact.outcomes.items():
        assert not np.allclose(outcome.model.weights, noisy.outcomes[name].model.weights)
    one, same = (all_weights(run(fdml={"own_prediction": own})) for own in ("exact", "noisy"))
    np.testing.assert_array_equal(one, same)


def test_noisy_steps_are_noisy_at_all_parties() -> None:
    clipped = {"noise_multiplier": 0, "noise_seed": 1, "gradient_clip": 100}
    exact, noisy = (
        all_weights(run(rounds=1, privacy={**clipped, "gradient_noise_multiplier": multiplier}))
        for multiplier in (0, 1)
    )
    assert not np.any(exact == noisy)


def test_a_budget_is_kept() -> None:
    with pytest.raises(BudgetExhausted):
        run(privacy={"noise_multiplier": 1, "release_budget": 2})
