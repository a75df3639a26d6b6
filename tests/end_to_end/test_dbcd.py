"""L1: DBCD ends at scikit-learn's optimum, in any order of work, and thresholds of FedBCD there.

And nothing else is on the wire.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.svm import LinearSVC

from bench.objective import Trails
from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, DataError
from securevfl.models.losses import loss_for
from securevfl.models.storage import load_model
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.scoring import Verdict
from securevfl.protocols.session.workplace import PathPoint
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import MaskedPenalties, Penalties
from securevfl.training import Environment, TrainingResult, save_models
from tests.jobs import Settings, breast_cancer, fit, picked, received, scaled_blocks
from tests.made_data import dataset_of, made

L1 = 0.01
LABEL = breast_cancer().label_party
HARD: dict[str, Any] = {"loss": "squared-hinge", "intercept": False, "l1": 1e-6, "tolerance": 1e-6}


def run(
    dataset: VerticalDataset | None = None,
    *how: Any,  # noqa: ANN401
    **settings: object,
) -> TrainingResult:
    """A job of dbcd to 1e-7 of the least objective, unless it says other."""
    job = {"algorithm": "dbcd", "rounds": 300, "tolerance": 1e-7, "eval_every": 0, "l1": L1}
    return fit(dataset or breast_cancer(), *how, **{**job, **settings})


def columns_of(dataset: VerticalDataset) -> FloatArray:
    blocks = scaled_blocks(dataset)
    label = blocks[dataset.label_party]
    return np.hstack(list((blocks | {dataset.label_party: label[:, :-1]}).values()))


def coefficients(result: TrainingResult) -> FloatArray:
    """All parties' weights but the intercept's, in the order of the columns."""
    parts = [outcome.model for outcome in result.outcomes.values()]
    return np.concatenate([part.weights[: len(part.header.columns), 0] for part in parts])


def intercept(result: TrainingResult) -> float:
    part = result.outcomes[result.plan.facts.label_party].model
    return float(part.weights[-1, 0]) if part.header.intercept else 0.0


def objective(
    dataset: VerticalDataset, weights: FloatArray, constant: float, *, loss: str, l1: float
) -> float:
    predictions = columns_of(dataset) @ weights[:, None] + constant
    value = loss_for(loss, 2).value(predictions, dataset.train_labels)
    return value + l1 * float(np.abs(weights).sum())


def objective_of(result: TrainingResult, dataset: VerticalDataset | None = None) -> float:
    settings, at = result.job.job, (coefficients(result), intercept(result))
    return objective(dataset or breast_cancer(), *at, loss=settings.loss, l1=settings.l1)


def path_of(result: TrainingResult) -> tuple[PathPoint, ...]:
    return tuple(result.outcomes[result.plan.facts.label_party].path)


def optimum(dataset: VerticalDataset, loss: str, l1: float) -> FloatArray:
    """scikit-learn's coefficients without intercept, which liblinear would penalize."""
    labels = dataset.train_labels
    many: dict[str, Any] = {"fit_intercept": False, "tol": 1e-9, "max_iter": 100_000}
    strength = 1 / (len(labels) * l1)
    model = {
        "logistic": LogisticRegression(l1_ratio=1, solver="liblinear", C=strength, **many),
        "squared-hinge": LinearSVC(penalty="l1", dual=False, C=strength, **many),
        "squared": Lasso(alpha=l1, **many),
    }[loss]
    return np.ravel(model.fit(columns_of(dataset), labels).coef_)


def with_noise(parties: int) -> VerticalDataset:
    """Six columns a party that labels depend on, and as many that have nothing to do with them."""
    dataset, generator = made(5, parties, rows=200, columns=6), np.random.default_rng(6)
    blocks = [
        np.hstack([t.train, generator.standard_normal(t.train.shape)]) for t in dataset.parties
    ]
    return dataset_of(blocks, as_classes(dataset.train_labels))


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared-hinge"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("name", ["breast_cancer", "made"])
def test_the_optimum_is_that_of_scikit_learn(name: str, parties: int, loss: str) -> None:
    dataset = with_noise(parties) if name == "made" else breast_cancer(parties)
    l1 = 0.1 if loss == "squared-hinge" else 0.03
    result = run(dataset, l1=l1, loss=loss, intercept=False)
    expected = optimum(dataset, loss, l1)
    least = objective(dataset, expected, 0.0, loss=loss, l1=l1)
    assert result.ended == "settled"
    assert objective_of(result, dataset) == pytest.approx(least, rel=1e-6)
    assert np.array_equal(coefficients(result) != 0, expected != 0)
    assert 0 < np.count_nonzero(expected) < len(expected)


def test_the_intercept_is_not_penalized() -> None:
    result, labels = run(l1=0.05), breast_cancer().train_labels
    inputs = np.hstack([columns_of(breast_cancer()), np.ones((len(labels), 1))])
    predictions = inputs @ np.append(coefficients(result), intercept(result))[:, None]
    residuals = loss_for("logistic", 2).residuals(predictions, labels)
    gradient, weights = (inputs.T @ residuals)[:, 0] / len(inputs), coefficients(result)
    assert abs(intercept(result)) > 0.1
    assert np.abs(gradient[-1]) < 1e-6
    inside = weights == 0
    assert np.allclose(gradient[:-1][~inside], -0.05 * np.sign(weights[~inside]), atol=1e-6)
    assert (np.abs(gradient[:-1][inside]) <= 0.05 + 1e-6).all()


def test_l2_beside_l1_is_the_elastic_net() -> None:
    result = run(l1=0.02, l2=0.03, loss="squared", intercept=False)
    net = ElasticNet(alpha=0.05, l1_ratio=0.4, fit_intercept=False, tol=1e-10, max_iter=100_000)
    expected = net.fit(columns_of(breast_cancer()), breast_cancer().train_labels).coef_
    np.testing.assert_allclose(coefficients(result), expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"dbcd": {"working_set": "greedy", "size": 3}, "rounds": 2000},
        {"dbcd": {"momentum": False}, "rounds": 1000},
        {"local_steps": 2},
        {"proximal": 0.01},
    ],
)
def test_every_way_to_work_leads_to_the_same_optimum(settings: Settings) -> None:
    usual, other = run(), run(**settings)
    assert other.ended == "settled"
    assert other.rounds != usual.rounds
    assert objective_of(other) == pytest.approx(objective_of(usual), rel=1e-9)
    assert np.array_equal(coefficients(other) != 0, coefficients(usual) != 0)


def test_a_greedy_party_moves_so_many_columns_a_round() -> None:
    result = run(l1=1e-3, rounds=1, dbcd={"working_set": "greedy", "size": 2})
    moved = [np.count_nonzero(each.model.weights) for each in result.outcomes.values()]
    assert moved == [2, 2]


def test_masked_is_plain_up_to_rounding() -> None:
    plain, masked = run(breast_cancer(3), rounds=10), run(breast_cancer(3), "masked", rounds=10)
    np.testing.assert_allclose(coefficients(masked), coefficients(plain), atol=1e-6)
    kinds = {type(each.message) for each in masked.views[LABEL].received()}
    assert not kinds & {Predictions, Penalties}
    shares = received(masked, LABEL, MaskedPenalties)
    # Each share alone is uniform: none is a small number.
    assert len(shares) == 2 * masked.rounds
    assert all(np.median(each.table) > 2**60 for each in shares)


def test_the_objective_falls_every_round() -> None:
    trails = Trails()
    result = run(None, None, Environment(wrap_model=trails.keep), l1=1e-3)
    values = []
    # What a trail has first are the random start and zero.
    for number in range(1, result.rounds + 2):
        now = {name: trail.past[number][:, 0] for name, trail in trails.items()}
        constant = float(now[LABEL][-1])
        now[LABEL] = now[LABEL][:-1]
        weights = np.concatenate(list(now.values()))
        values.append(objective(breast_cancer(), weights, constant, loss="logistic", l1=1e-3))
    gains = -np.diff(values)
    assert (gains[:-5] > 0).all()
    # The last ones are at the rounding of the objective, and zeros are made at the end.
    assert (gains > -1e-12).all()
    assert values[0] == pytest.approx(np.log(2))
    assert path_of(result)[-1].objective == pytest.approx(values[-1], rel=1e-9)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_the_gap_is_what_the_tolerance_asks_and_a_bound(tolerance: float) -> None:
    rough, fine = run(tolerance=tolerance), run()
    assert rough.ended == "settled"
    assert rough.rounds < fine.rounds
    gap, least = path_of(rough)[-1].gap, objective_of(fine)
    assert gap is not None
    assert 0 < gap <= tolerance
    assert objective_of(rough) - least <= gap * least * (1 + tolerance)
    assert run(tolerance=tolerance, rounds=rough.rounds - 1).ended == "rounds"


@pytest.fixture(scope="module")
def separable() -> VerticalDataset:
    generator = np.random.default_rng(11)
    blocks = [generator.standard_normal((400, 5)) for _ in range(2)]
    return dataset_of(blocks, (np.hstack(blocks).sum(axis=1) > 0).astype(np.int64))


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
def test_a_gap_is_a_bound_where_columns_separate_the_classes(
    separable: VerticalDataset, rounds: int
) -> None:
    least = objective_of(run(separable, rounds=150, **HARD), separable)
    after, before = run(separable, rounds=rounds, **HARD), 1.0
    assert after.rounds == rounds
    if rounds > 1:
        before = objective_of(run(separable, rounds=rounds - 1, **HARD), separable)
    gap = path_of(after)[-1].gap
    assert gap is not None
    assert gap >= (before - least) / before > 0


def test_predictions_stay_those_of_the_weights_where_the_next_lambda_begins() -> None:
    settings: dict[str, Any] = {"tolerance": 0.1, "loss": "squared-hinge", "l1": 0.0}
    first = run(dbcd={"path": (0.05,)}, **settings)
    on = run(dbcd={"path": (0.05, 0.03)}, rounds=first.rounds + 1, **settings)
    point = path_of(on)[-1]
    assert not point.settled
    at = coefficients(on), intercept(on)
    exact = objective(breast_cancer(), *at, loss="squared-hinge", l1=point.l1)
    assert point.objective == pytest.approx(exact, rel=1e-9)


def test_above_the_largest_lambda_nothing_is_learned() -> None:
    inputs, labels = columns_of(breast_cancer()), breast_cancer().train_labels
    largest = np.abs(inputs.T @ (labels - labels.mean())).max() / len(labels)
    none, some = (run(l1=factor * largest) for factor in (1.01, 0.9))
    assert not coefficients(none).any()
    assert none.ended == "settled"
    assert not none.learned
    assert intercept(none) == pytest.approx(np.log(labels.mean() / (1 - labels.mean())), abs=1e-6)
    assert coefficients(some).any()
    assert some.learned


def test_a_path_ends_where_each_of_its_lambdas_would() -> None:
    dataset, values = breast_cancer(3), (0.1, 0.03, 0.01, 0.003)
    path = run(dataset, l1=0.0, dbcd={"path": values}, rounds=1000)
    cold, points = [run(dataset, l1=each) for each in values], path_of(path)
    assert [point.l1 for point in points] == list(values)
    assert all(point.settled for point in points)
    assert path.rounds == points[-1].rounds < sum(each.rounds for each in cold)
    for number, alone in enumerate(cold):
        parts = [outcome.path[number].model for outcome in path.outcomes.values()]
        warm = np.concatenate([part.weights[: len(part.header.columns), 0] for part in parts])
        np.testing.assert_allclose(warm, coefficients(alone), atol=2e-3)
        assert np.array_equal(warm != 0, coefficients(alone) != 0)
        assert points[number].objective == pytest.approx(objective_of(alone, dataset), rel=1e-6)


def test_a_path_that_runs_out_of_rounds_says_so() -> None:
    rounds = run(l1=0.1).rounds + 3
    result = run(l1=0.0, dbcd={"path": [0.1, 0.01]}, rounds=rounds)
    first, second = path_of(result)
    assert (first.settled, second.settled, second.l1) == (True, False, 0.01)
    assert (result.ended, second.rounds) == ("rounds", rounds)


def test_every_model_of_a_path_is_saved(tmp_path: Path) -> None:
    result = run(l1=0.0, dbcd={"path": [0.1, 0.01]})
    saved = {each.name: load_model(each).weights for each in save_models(result, tmp_path)}
    for name, outcome in result.outcomes.items():
        assert np.array_equal(saved[f"{name}.safetensors"], outcome.model.weights)
        for point in outcome.path:
            kept = saved[f"{name}-l1-{point.l1}.safetensors"]
            assert np.array_equal(kept, point.model.weights)
    assert len(saved) == 6


def test_who_is_sent_what() -> None:
    result = run(breast_cancer(3), rounds=7)
    for name, view in result.views.items():
        kinds = Counter(type(entry.message) for entry in view.received())
        if name == LABEL:
            assert kinds == {Hello: 2, Predictions: 14, Penalties: 14, HeldOutPredictions: 2}
        else:
            assert kinds == {Hello: 2, Residuals: 7, StepTaken: 7, Verdict: 1}
    assert result.costs().messages == 7 * 4 * 2


def test_predictions_that_travel_say_where_a_party_goes() -> None:
    """The label party follows X_kθ_k through all rounds: a sum of what it was sent."""
    result = run(rounds=9, dbcd={"momentum": False})
    feature = next(table for table in breast_cancer().parties if table.name != LABEL)
    steps, given = received(result, feature.name, StepTaken), received(result, LABEL, Predictions)
    known = np.zeros((len(feature.train), 1))
    for message, taken in zip(given, steps, strict=True):
        known = known + taken.length[0] * (message.values - known)
    truth = result.outcomes[feature.name].model.predict(feature.train)
    np.testing.assert_allclose(known, truth, atol=1e-9)


def test_noise_is_on_all_that_says_something_of_rows() -> None:
    quiet = run(None, "dp", privacy={"noise_multiplier": 0, "clip": 0.3}, rounds=5)
    assert max(np.abs(e.values).max() for e in received(quiet, LABEL, Predictions)) == 0.3
    privacy = {"noise_multiplier": 1, "clip": 1.0, "noise_seed": 3}
    loud = run(None, "dp", privacy=privacy, rounds=30)
    assert loud.rounds == 30
    assert loud.privacy is not None
    assert loud.privacy.releases == 30
    assert loud.privacy.epsilon_end_to_end is None
    for each in received(loud, LABEL, Penalties):
        assert not each.optimality.any()  # how far from optimal a party is depends on its rows
        assert each.table.shape[1] == 1
    assert loud.clear_auc > 0.9


def test_a_target_ends_it() -> None:
    result = run(target_auc=0.95, eval_every=1)
    assert result.ended == "target"
    assert result.scores[-1].auc >= 0.95
    assert len(result.scores) == result.rounds


def test_where_it_starts_is_zero_whatever_a_job_says() -> None:
    one, other = (coefficients(run(seed=seed)) for seed in (1, 2))
    assert np.array_equal(one, other)


def test_it_does_not_go_on_from_a_state() -> None:
    names = [table.name for table in breast_cancer().parties]
    states = {name: SessionState("00", name, 1, np.zeros((15, 1)), {}, {}) for name in names}
    with pytest.raises(ConfigError, match="no state to resume from"):
        run(None, None, Environment(resume=states))


def with_cells(at: Any, value: float) -> VerticalDataset:  # noqa: ANN401
    first, *others = breast_cancer().parties
    train = first.train.copy()
    train[at] = value
    return replace(breast_cancer(), parties=(replace(first, train=train), *others))


def test_constant_columns_stay_out() -> None:
    result = run(with_cells(np.s_[:, 2], 7.0))
    assert result.ended == "settled"
    assert result.outcomes[breast_cancer().parties[0].name].model.weights[2, 0] == 0


def test_what_is_no_number_or_too_large_is_refused() -> None:
    with pytest.raises(DataError, match=r"NaN|infinite"):
        run(with_cells((0, 0), np.nan))
    with pytest.raises(DataError, match="column 'mean radius' has no finite"):
        run(with_cells((0, 0), 1e200), standardize=False, start="zero")


def test_one_row_and_two() -> None:
    both = np.argsort(breast_cancer().train_labels, kind="stable")[[0, -1]]
    with pytest.raises(DataError):
        run(picked(breast_cancer(), both[:1]))
    assert run(picked(breast_cancer(), both), standardize=True).ended == "settled"


# ------------------------------------------------- a soft threshold after every local step


@pytest.mark.parametrize(
    ("algorithm", "exchange", "parties"),
    [
        *(("fedbcd-p", "plain", 2), ("fedbcd-p", "masked", 3)),
        *(("fedbcd-s", "plain", 3), ("fedsgd", "plain", 2)),
    ],
)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_local_steps_with_a_threshold_lead_to_the_optimum(
    algorithm: str, exchange: str, parties: int, loss: str
) -> None:
    dataset, settings = made(5, parties, rows=200, columns=6), {"l1": 0.03, "loss": loss}
    best = run(dataset, **settings)
    result = run(dataset, exchange, algorithm=algorithm, batch_size="full", **settings)
    assert result.rounds == 300
    assert objective_of(result, dataset) == pytest.approx(objective_of(best, dataset), rel=1e-6)
    assert np.array_equal(coefficients(result) != 0, coefficients(best) != 0)
    assert not coefficients(best).all()


def test_a_step_size_of_ones_own() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.5, "local_steps": 3, "batch_size": "full"}
    some, none = (
        coefficients(run(algorithm="fedbcd-p", l1=l1, rounds=200, **settings)) for l1 in (0.03, 0.0)
    )
    assert np.count_nonzero(none) == 30
    assert np.count_nonzero(some) < 20


def test_l2_is_left_out_unless_it_is_asked_for() -> None:
    assert run(rounds=1).plan.l2 == 0
    assert run(algorithm="fedbcd-p", rounds=1).plan.l2 == 0
    assert run(algorithm="fedbcd-p", l1=0.0, rounds=1).plan.l2 == 1 / 456
    assert run(algorithm="fedbcd-p", l2=0.1, rounds=1).plan.l2 == 0.1
