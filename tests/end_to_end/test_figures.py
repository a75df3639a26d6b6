"""What a result says beside its scores: each party alone, calibration and the training loss."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from bench.objective import Objective
from securevfl import verdict
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import TrainingResult, data_of
from tests import transfer_data
from tests.jobs import Settings, breast_cancer, fit
from tests.made_data import blocks_of, dataset_of, labels_of
from tests.transfer_data import FTL

BOTH = {"scheme": "bfv", "hide": "both"}


def data(useless: int = 1, classes: int = 2) -> VerticalDataset:
    """The label party knows something; the other has columns of noise only."""
    random = np.random.default_rng(5)
    block = blocks_of(random, 1, rows=400)[0]
    noise = random.standard_normal((400, useless))
    labels = labels_of(random, [block], classes)
    made = dataset_of([block[:100], noise[:100]], labels[:100])
    tables = zip(made.parties, (block, noise), strict=True)
    parties = tuple(replace(table, test=whole[100:]) for table, whole in tables)
    return replace(made, parties=parties, test_labels=labels[100:])


def trained(dataset: VerticalDataset, **settings: object) -> TrainingResult:
    return fit(dataset, **{"rounds": 30, **settings})


@pytest.mark.parametrize("classes", [2, 3])
def test_what_makes_the_model_worse_is_said(classes: int) -> None:
    result = trained(data(useless=80 if classes == 2 else 50, classes=classes))
    better, *_ = result.warnings
    assert (better.kind, result.status) == ("better alone", 4)
    assert better.text.startswith("party 'party0' alone has a held-out")
    assert result.alone["party1"].labels_lent
    assert not result.alone["party0"].labels_lent


def test_a_model_as_good_as_the_label_partys_own_is_fine() -> None:
    result = trained(data())
    assert (result.warnings, result.status) == ((), 0)
    assert result.alone["party0"].score.auc == pytest.approx(result.scores[-1].auc, abs=0.02)
    assert abs(result.alone["party1"].score.auc - 0.5) < 0.12  # chance, at three standard errors


@pytest.mark.parametrize("classes", [2, 3])
def test_a_party_alone_is_what_scikit_learn_makes_of_its_columns(classes: int) -> None:
    made = data(useless=5, classes=classes)
    for table in made.parties:
        theirs = LogisticRegression(max_iter=1000).fit(table.train, made.train_labels)
        expected = theirs.decision_function(table.test).reshape(300, -1)
        found = trained(made, rounds=1, standardize=False).alone[table.name].predictions
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def odd_rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(8)
    usual, labels = random.standard_normal((90, 3)), np.arange(90)
    far = usual + 10.0 * (labels % 3 == 2)[:, None]
    return {
        "two rows": (usual[:2], labels[:2]),
        "more columns than rows": (random.standard_normal((20, 60)), labels[:20] % 2),
        "a column of zeros": (usual * [0, 1, 1], labels % 2),
        "separable": (usual, (usual[:, 0] > 0).astype(int)),
        "squares beyond float64": (usual * [1e200, 1, 1], labels % 2),
        "very small": (usual * [1e-200, 1, 1], labels % 2),
        "three classes, one far off": (far, labels % 3),
    }


@pytest.mark.parametrize("kind", odd_rows())
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_odd_rows_are_fitted_as_scikit_learn_fits_them(kind: str) -> None:
    features, labels = odd_rows()[kind]
    theirs = LogisticRegression(max_iter=1000).fit(features, labels)
    weights, intercepts = verdict._logistic(features, labels)
    np.testing.assert_allclose(weights, theirs.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(intercepts, theirs.intercept_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("better", "error", "kinds"),
    [
        (0.0015, 0.0, []),  # certain, and not worth a word
        (0.0025, 0.0, ["better alone"]),
        (0.011, 0.006, []),  # worth it, and not certain
        (0.013, 0.006, ["better alone"]),
    ],
)
def test_a_party_alone_is_better_by_what_is_certain_and_worth_it(
    monkeypatch: pytest.MonkeyPatch, better: float, error: float, kinds: list[str]
) -> None:
    result = trained(data())
    differences = iter([(better, error, "AUC"), (0.0, error, "AUC")])
    monkeypatch.setattr(verdict, "_difference", lambda *_: next(differences))
    assert [each.kind for each in result.warnings] == kinds


def test_a_party_of_transfer_learning_is_not_better_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is for rows that one party does not hold, and the other has no labels of.
    result = fit(transfer_data.made(rows=200, test=200), **{**FTL, "rounds": 20})
    monkeypatch.setattr(verdict, "_difference", lambda *_: (1.0, 0.0, "AUC"))
    assert result.learned
    assert result.warnings == ()


def test_it_costs_nothing_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("securevfl.training.result.alone", never)
    result = trained(data(), rounds=1)
    with pytest.raises(AssertionError):
        result.alone  # noqa: B018


def test_large_data_are_thinned_out_and_every_class_keeps_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "MOST_ROWS", 60)
    rare = data()
    assert {each.rows for each in trained(rare, rounds=1).alone.values()} == {60}
    kept = np.linspace(0, 99, 60).astype(int)
    labels = np.zeros(100, np.int64)
    labels[np.setdiff1d(np.arange(100), kept)[:3]] = 1
    alone = trained(replace(rare, train_labels=labels), rounds=1).alone
    assert {each.rows for each in alone.values()} == {61}


def test_two_of_three_classes_in_training_still_make_three_columns() -> None:
    three = data(classes=3)
    labels = np.where(three.train_labels == 1, 2, three.train_labels)
    alone = trained(replace(three, train_labels=labels), rounds=1).alone
    assert {each.predictions.shape for each in alone.values()} == {(300, 3)}
    assert all(not (each.predictions.argmax(axis=1) == 1).any() for each in alone.values())


@pytest.mark.parametrize(
    ("useless", "settings", "kinds"),
    [
        (300, {}, ["better alone"]),
        (1, {}, []),
        (1, {"learning_rate": 1e-9, "local_steps": 1}, ["learned nothing"]),
        (1, {"learning_rate": 1e9, "local_steps": 5, "loss": "squared"}, ["went wrong"]),
    ],
)
def test_a_party_says_itself_what_it_can_know(
    useless: int, settings: Settings, kinds: list[str]
) -> None:
    made = data(useless)
    result = trained(made, **settings)
    verdicts = {
        table.name: verdict.own_verdict(
            result.plan, result.outcomes[table.name], data_of(result.plan, made, table)
        )
        for table in made.parties
    }
    alone, warnings = verdicts["party0"]
    assert set(kinds) <= {each.kind for each in warnings} <= {each.kind for each in result.warnings}
    assert bool(warnings) == bool(kinds)
    assert alone is not None
    assert alone.score == result.alone["party0"].score
    alone, warnings = verdicts["party1"]
    assert alone is None
    assert [each.kind for each in warnings] == (kinds if kinds == ["went wrong"] else [])


def test_noise_that_makes_the_scores_worse_is_said() -> None:
    noise = {"noise_multiplier": 6.0, "noise_seed": 3}
    result = fit(breast_cancer(), "dp", rounds=20, batch_size="full", privacy=noise)
    assert result.clear_auc > 0.97
    assert result.status == 4
    assert "joint model's noisy predictions" in result.warnings[0].text


def test_one_round_is_judged_by_its_score() -> None:
    result = trained(data(), rounds=1)
    assert (result.rounds, result.learned) == (1, True)
    assert result.scores[-1].auc > 0.6


# ------------------------------------------------------------------------------ calibration


def test_a_job_reports_scikit_learns_figures() -> None:
    result = fit(breast_cancer(), rounds=8, eval_every=0)
    given = expit(result.predictions[:, 0])
    assert result.calibration is not None
    assert result.calibration.brier == pytest.approx(brier_score_loss(result.test_labels, given))
    assert result.calibration.log_loss == pytest.approx(log_loss(result.test_labels, given))


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ("dp", {"rounds": 8, "privacy": {"noise_multiplier": 0.1}}),
        (BOTH, {"loss": "taylor-logistic"}),
        ("plain", {"loss": "hinge", "learning_rate": 0.1, "local_rule": "frozen"}),
        ("plain", {"eval_every": "never"}),
    ],
    ids=["noise", "sums over classes", "no probabilities", "no scoring"],
)
def test_there_is_none_where_nobody_has_seen_it(
    exchange: str | Settings, settings: Settings
) -> None:
    settings = {"rounds": 2, "eval_every": 0, **settings}
    assert fit(breast_cancer(), exchange, **settings).calibration is None


# ---------------------------------------------------------------------------- training loss

ROUNDS, STEPS = 4, 5
COMMON: Settings = {
    **{"rounds": ROUNDS, "local_steps": STEPS, "batch_size": "full", "learning_rate": 0.1},
    **{"start": "zero", "allow_label_leak": True},
}


@pytest.mark.parametrize(("scheme", "parties"), [("plain", 2), ("masked", 3), ("bfv", 2)], ids=str)
def test_it_is_the_loss_at_each_round_s_exchange(scheme: str, parties: int) -> None:
    dataset = breast_cancer(parties)
    objective = Objective.of(dataset)
    path = objective.follow(Job.of(job={**COMMON, "eval_every": 0}))
    exchanged = [objective.loss(path[index * STEPS]) for index in range(ROUNDS)]
    means = [sum(exchanged[:2]) / 2, sum(exchanged[2:]) / 2]
    for every, expected in ((1, exchanged), (2, means)):
        scores = fit(dataset, scheme, eval_every=every, **COMMON).scores
        assert [score.training_loss for score in scores] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        (BOTH, {"loss": "taylor-logistic"}),
        ("dp", {"batch_size": 114, "start": "random", "privacy": {"noise_multiplier": 1.0}}),
    ],
    ids=["both sides hidden", "noise"],
)
def test_there_is_none_where_predictions_are_hidden_or_noisy(
    exchange: str | Settings, settings: Settings
) -> None:
    scores = fit(breast_cancer(), exchange, **{**COMMON, "eval_every": 1, **settings}).scores
    assert [score.training_loss for score in scores] == [None] * ROUNDS
