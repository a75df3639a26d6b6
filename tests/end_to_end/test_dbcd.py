"""DBCD: the optimum of scikit-learn, in any order of work, and nothing else on the wire."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.svm import LinearSVC

from securevfl.benchmarks.objective import Trail
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError, TrainingDiverged
from securevfl.models.local_model import LocalModel
from securevfl.models.storage import load_model
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.scoring import Verdict
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import MaskedPenalties, Penalties
from securevfl.training import Environment, save_models
from tests.end_to_end.l1 import (
    coefficients,
    columns_of,
    intercept,
    objective,
    objective_of,
    run,
    slopes,
)
from tests.jobs import breast_cancer
from tests.made_data import blocks_of, dataset_of, labels_of

L1 = 0.01


def reference(dataset: VerticalDataset, loss: str, l1: float) -> np.ndarray:
    """scikit-learn's coefficients without intercept, which liblinear would penalize."""
    inputs, labels = columns_of(dataset), dataset.train_labels
    many: dict[str, Any] = {"fit_intercept": False, "tol": 1e-9}
    strength = 1 / (len(labels) * l1)
    if loss == "logistic":
        model = LogisticRegression(
            l1_ratio=1, solver="liblinear", C=strength, max_iter=5000, **many
        )
    elif loss == "squared-hinge":
        model = LinearSVC(penalty="l1", dual=False, C=strength, max_iter=100_000, **many)
    else:
        model = Lasso(alpha=l1, max_iter=100_000, **many)
    return np.ravel(model.fit(inputs, labels).coef_)


def made(parties: int) -> VerticalDataset:
    generator = np.random.default_rng(5)
    blocks = blocks_of(generator, parties, rows=200, columns=6)
    labels = labels_of(generator, blocks)
    # Half of the columns have nothing to do with labels.
    noise = [generator.standard_normal(block.shape) for block in blocks]
    return dataset_of([np.hstack(each) for each in zip(blocks, noise, strict=True)], labels)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared-hinge"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("name", ["breast_cancer", "made"])
def test_the_optimum_is_that_of_scikit_learn(name: str, parties: int, loss: str) -> None:
    dataset = made(parties) if name == "made" else load(name, parties=parties)
    l1 = 0.1 if loss == "squared-hinge" else 0.03
    result = run(dataset, l1=l1, loss=loss, intercept=False)
    expected = reference(dataset, loss, l1)
    least = objective(dataset, expected, 0.0, loss=loss, l1=l1)
    assert result.ended == "settled"
    assert objective_of(result, dataset) == pytest.approx(least, rel=1e-6)
    assert np.array_equal(coefficients(result) != 0, expected != 0)
    assert 0 < np.count_nonzero(expected) < len(expected)


def test_the_intercept_is_not_penalized() -> None:
    result = run(breast_cancer(), l1=0.05)
    gradient, weights = slopes(result, breast_cancer()), coefficients(result)
    assert abs(intercept(result)) > 0.1
    assert np.abs(gradient[-1]) < 1e-6
    inside = weights == 0
    assert np.allclose(gradient[:-1][~inside], -0.05 * np.sign(weights[~inside]), atol=1e-6)
    assert (np.abs(gradient[:-1][inside]) <= 0.05 + 1e-6).all()


def test_l2_beside_l1_is_the_elastic_net() -> None:
    result = run(breast_cancer(), l1=0.02, l2=0.03, loss="squared", intercept=False)
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
def test_every_way_to_work_leads_to_the_same_optimum(settings: dict[str, Any]) -> None:
    usual, other = run(breast_cancer(), l1=L1), run(breast_cancer(), l1=L1, **settings)
    assert other.ended == "settled"
    assert other.rounds != usual.rounds
    assert objective_of(other, breast_cancer()) == pytest.approx(
        objective_of(usual, breast_cancer()), rel=1e-9
    )
    assert np.array_equal(coefficients(other) != 0, coefficients(usual) != 0)


def test_a_greedy_party_moves_so_many_columns_a_round() -> None:
    dbcd = {"working_set": "greedy", "size": 2}
    result = run(breast_cancer(), l1=1e-3, rounds=1, dbcd=dbcd)
    moved = [np.count_nonzero(each.model.weights) for each in result.outcomes.values()]
    assert moved == [2, 2]


def test_masked_is_plain_up_to_rounding() -> None:
    dataset = breast_cancer(3)
    environment = Environment(record_views=True)
    plain = run(dataset, l1=L1, rounds=10)
    masked = run(dataset, {"scheme": "masked"}, l1=L1, rounds=10, environment=environment)
    np.testing.assert_allclose(coefficients(masked), coefficients(plain), atol=1e-6)
    received = masked.views[dataset.label_party].received()
    kinds = {type(each.message) for each in received}
    assert not kinds & {Predictions, Penalties}
    shares = [each.message for each in received if isinstance(each.message, MaskedPenalties)]
    # Each share alone is uniform: none is a small number.
    assert len(shares) == 2 * masked.rounds
    assert all(np.median(each.table) > 2**60 for each in shares)


def test_the_objective_falls_every_round() -> None:
    trails: dict[str, Trail] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        trails[name] = Trail(model)
        return trails[name]

    result = run(breast_cancer(), l1=1e-3, environment=Environment(wrap_model=keep))
    label = breast_cancer().label_party
    values = []
    # What a trail has first are the random start and zero.
    for number in range(1, result.rounds + 2):
        now = {name: trail.past[number][:, 0] for name, trail in trails.items()}
        constant = float(now[label][-1])
        now[label] = now[label][:-1]
        weights = np.concatenate(list(now.values()))
        values.append(objective(breast_cancer(), weights, constant, loss="logistic", l1=1e-3))
    gains = -np.diff(values)
    assert (gains[:-5] > 0).all()
    # The last ones are at the rounding of the objective, and zeros are made at the end.
    assert (gains > -1e-12).all()
    assert values[0] == pytest.approx(np.log(2))
    point = result.outcomes[label].path[-1]
    assert point.objective == pytest.approx(values[-1], rel=1e-9)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_the_gap_is_what_the_tolerance_asks_and_a_bound(tolerance: float) -> None:
    rough, fine = run(breast_cancer(), l1=L1, tolerance=tolerance), run(breast_cancer(), l1=L1)
    assert rough.ended == "settled"
    assert rough.rounds < fine.rounds
    point = rough.outcomes[breast_cancer().label_party].path[-1]
    assert point.gap is not None
    assert 0 < point.gap <= tolerance
    least = objective_of(fine, breast_cancer())
    assert objective_of(rough, breast_cancer()) - least <= point.gap * least * (1 + tolerance)
    before = run(breast_cancer(), l1=L1, tolerance=tolerance, rounds=rough.rounds - 1)
    assert before.ended == "rounds"


def test_above_the_largest_lambda_nothing_is_learned() -> None:
    inputs, labels = columns_of(breast_cancer()), breast_cancer().train_labels
    largest = np.abs(inputs.T @ (labels - labels.mean())).max() / len(labels)
    none, some = (run(breast_cancer(), l1=factor * largest) for factor in (1.01, 0.9))
    assert not coefficients(none).any()
    assert none.ended == "settled"
    assert not none.learned
    assert intercept(none) == pytest.approx(np.log(labels.mean() / (1 - labels.mean())), abs=1e-6)
    assert coefficients(some).any()
    assert some.learned


def test_a_path_ends_where_each_of_its_lambdas_would() -> None:
    dataset = breast_cancer(3)
    values = (0.1, 0.03, 0.01, 0.003)
    path = run(dataset, dbcd={"path": values}, rounds=1000)
    cold = [run(dataset, l1=each) for each in values]
    points = path.outcomes[dataset.label_party].path
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
    rounds = run(breast_cancer(), l1=0.1).rounds + 3
    result = run(breast_cancer(), dbcd={"path": [0.1, 0.01]}, rounds=rounds)
    first, second = result.outcomes[breast_cancer().label_party].path
    assert (first.settled, second.settled, second.l1) == (True, False, 0.01)
    assert (result.ended, second.rounds) == ("rounds", rounds)


def test_every_model_of_a_path_is_saved(tmp_path: Any) -> None:  # noqa: ANN401
    result = run(breast_cancer(), dbcd={"path": [0.1, 0.01]})
    saved = {each.name: each for each in save_models(result, tmp_path)}
    for name, outcome in result.outcomes.items():
        last = load_model(saved[f"{name}.safetensors"]).weights
        assert np.array_equal(last, outcome.model.weights)
        for point in outcome.path:
            kept = load_model(saved[f"{name}-l1-{point.l1}.safetensors"]).weights
            assert np.array_equal(kept, point.model.weights)
    assert len(saved) == 6


def test_who_is_sent_what() -> None:
    dataset = breast_cancer(3)
    environment = Environment(record_views=True)
    result = run(dataset, l1=L1, rounds=7, environment=environment)
    for name, view in result.views.items():
        kinds = Counter(type(entry.message) for entry in view.received())
        if name == dataset.label_party:
            assert kinds == {Hello: 2, Predictions: 14, Penalties: 14, HeldOutPredictions: 2}
        else:
            assert kinds == {Hello: 2, Residuals: 7, StepTaken: 7, Verdict: 1}
    assert result.costs().messages == 7 * 4 * 2


def test_predictions_that_travel_say_where_a_party_goes() -> None:
    """The label party follows X_kθ_k through all rounds: a sum of what it was sent."""
    environment = Environment(record_views=True)
    result = run(
        breast_cancer(), l1=L1, rounds=9, dbcd={"momentum": False}, environment=environment
    )
    label = breast_cancer().label_party
    feature = next(table for table in breast_cancer().parties if table.name != label)
    steps = [e.message for e in result.views[feature.name].received(StepTaken)]
    given = [e.message for e in result.views[label].received(Predictions)]
    known = np.zeros((len(breast_cancer().train_labels), 1))
    for message, taken in zip(given, steps, strict=True):
        assert isinstance(message, Predictions)
        assert isinstance(taken, StepTaken)
        known = known + taken.length[0] * (message.values - known)
    truth = result.outcomes[feature.name].model.predict(feature.train)
    np.testing.assert_allclose(known, truth, atol=1e-9)


def test_noise_is_on_all_that_says_something_of_rows() -> None:
    environment = Environment(record_views=True)
    privacy = {"noise_multiplier": 0, "clip": 0.3}
    quiet = run(
        breast_cancer(), {"scheme": "dp"}, privacy=privacy, l1=L1, rounds=5, environment=environment
    )
    received = quiet.views[breast_cancer().label_party].received(Predictions)
    values = [
        np.abs(e.message.values).max() for e in received if isinstance(e.message, Predictions)
    ]
    assert max(values) == 0.3
    loud = run(
        breast_cancer(),
        {"scheme": "dp"},
        privacy={"noise_multiplier": 1, "clip": 1.0, "noise_seed": 3},
        l1=L1,
        rounds=30,
        environment=environment,
    )
    assert loud.rounds == 30
    assert loud.privacy is not None
    assert loud.privacy.releases == 30
    assert loud.privacy.epsilon_end_to_end is None
    said = [e.message for e in loud.views[breast_cancer().label_party].received(Penalties)]
    # How far from optimal a party is depends on its rows.
    assert all(isinstance(each, Penalties) and not each.optimality.any() for each in said)
    assert all(isinstance(each, Penalties) and each.table.shape[1] == 1 for each in said)
    assert loud.clear_auc > 0.9


def test_a_target_ends_it() -> None:
    result = run(breast_cancer(), l1=L1, target_auc=0.95, eval_every=1)
    assert result.ended == "target"
    assert result.scores[-1].auc >= 0.95
    assert len(result.scores) == result.rounds


def test_where_it_starts_is_zero_whatever_a_job_says() -> None:
    one, other = (run(breast_cancer(), l1=L1, seed=seed) for seed in (1, 2))
    assert np.array_equal(coefficients(one), coefficients(other))


def test_it_does_not_go_on_from_a_state() -> None:
    names = [table.name for table in breast_cancer().parties]
    states = {name: SessionState("00", name, 1, np.zeros((15, 1)), {}, {}) for name in names}
    with pytest.raises(ConfigError, match="no state to go on from"):
        run(breast_cancer(), l1=L1, environment=Environment(resume=states))


def test_constant_columns_stay_out() -> None:
    table = breast_cancer().parties[0]
    train = table.train.copy()
    train[:, 2] = 7.0
    changed = replace(table, train=train)
    dataset = replace(breast_cancer(), parties=(changed, *breast_cancer().parties[1:]))
    result = run(dataset, l1=L1)
    assert result.ended == "settled"
    assert result.outcomes[table.name].model.weights[2, 0] == 0


def test_what_is_no_number_or_too_large_is_refused() -> None:
    table = breast_cancer().parties[0]

    def changed(value: float) -> VerticalDataset:
        train = table.train.copy()
        train[0, 0] = value
        other = replace(table, train=train)
        return replace(breast_cancer(), parties=(other, *breast_cancer().parties[1:]))

    with pytest.raises(DataError, match=r"NaN|infinite"):
        run(changed(np.nan), l1=L1)
    with pytest.raises(TrainingDiverged, match="standardize"):
        run(changed(1e200), l1=L1, standardize=False, start="zero")


def test_one_row_and_two() -> None:
    def first(rows: int) -> VerticalDataset:
        some = np.argsort(breast_cancer().train_labels, kind="stable")[[0, -1]][:rows]
        parties = tuple(replace(t, train=t.train[some]) for t in breast_cancer().parties)
        return replace(
            breast_cancer(),
            parties=parties,
            train_labels=breast_cancer().train_labels[some],
            row_digests=breast_cancer().row_digests[some],
        )

    with pytest.raises(DataError):
        run(first(1), l1=L1)
    result = run(first(2), l1=L1, standardize=True)
    assert result.ended == "settled"
