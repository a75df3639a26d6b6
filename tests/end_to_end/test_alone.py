"""The joint model beside each party alone."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from securevfl import verdict
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import TrainingResult, train
from tests import transfer_data
from tests.jobs import breast_cancer, job_of
from tests.made_data import blocks_of, dataset_of, labels_of
from tests.transfer_data import FTL


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
    return train(Job.of(job={"rounds": 30, **settings}), dataset)


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


def odd_rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels that a fit could trip over."""
    random = np.random.default_rng(8)
    rows, columns = {"two rows": (2, 3), "more columns than rows": (20, 60)}.get(kind, (90, 3))
    features = random.standard_normal((rows, columns))
    labels = np.arange(rows) % (3 if kind == "three classes, one far off" else 2)
    scales = {"a column of zeros": 0.0, "squares beyond float64": 1e200, "very small": 1e-200}
    features[:, 0] *= scales.get(kind, 1.0)
    if kind == "separable":
        labels = (features[:, 0] > 0).astype(int)
    if kind == "three classes, one far off":
        features[labels == 2] += 10.0
    return features, labels


@pytest.mark.parametrize(
    "kind",
    [
        "two rows",
        "more columns than rows",
        "a column of zeros",
        "separable",
        "squares beyond float64",
        "very small",
        "three classes, one far off",
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_odd_rows_are_fitted_as_scikit_learn_fits_them(kind: str) -> None:
    features, labels = odd_rows(kind)
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
    job = {**FTL, "rounds": 20}
    result = train(job_of(**job), transfer_data.made(rows=200, test=200))
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


def test_large_data_are_thinned_out_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_ROWS", 60)
    assert {each.rows for each in trained(data(), rounds=1).alone.values()} == {60}


def test_thinning_out_leaves_every_class_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_ROWS", 60)
    rare = data()
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


def test_noise_that_makes_the_scores_worse_is_said() -> None:
    job = Job.of(
        job={"rounds": 20, "batch_size": "full"},
        exchange={"scheme": "dp"},
        privacy={"noise_multiplier": 6.0, "noise_seed": 3},
    )
    result = train(job, breast_cancer())
    assert result.clear_auc > 0.97
    assert result.status == 4
    assert "joint model's noisy predictions" in result.warnings[0].text


def test_one_round_is_judged_by_its_score() -> None:
    result = trained(data(), rounds=1)
    assert result.rounds == 1
    assert result.learned == (result.scores[-1].auc > 0.6)
    assert result.learned
