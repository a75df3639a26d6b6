"""Weights of classes and rows: scikit-learn's optimum, or refused where not accounted for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from securevfl import VerticalLogisticRegression
from securevfl.arrays import FloatArray, IntArray
from securevfl.auditing.matrix import AuditSettings, audit
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError, LabelLeakRefused
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.reports.trained import comparison_notes, training_row
from securevfl.reports.training import before
from securevfl.training import Environment, plan_for, train
from tests.jobs import SmallKeys, breast_cancer

BENIGN = {"malignant": 1.0, "benign": 6.0}
GIVEN = {"no": 0.5, "yes": 8.0}
ROWS: dict[str, Any] = {"learning_rate": 0.5, "batch_size": "full", "random_state": 0}
Weights = str | Mapping[str, float]


def rare(rows: int = 3000, classes: int = 2) -> tuple[FloatArray, IntArray]:
    chance = np.random.default_rng(0)
    features = chance.standard_normal((rows, 6))
    scores = features @ chance.standard_normal((6, classes)) * 0.6 + chance.gumbel(
        size=(rows, classes)
    )
    scores[:, 0] += 3
    return StandardScaler().fit_transform(features), scores.argmax(axis=1)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize("weights", ["balanced", GIVEN])
def test_steps_of_a_given_size_reach_the_optimum_of_scikit_learn(
    algorithm: str, weights: Weights
) -> None:
    features, codes = rare()
    labels = np.array(["no", "yes"])[codes]
    expected = LogisticRegression(class_weight=weights, tol=1e-9).fit(features, labels)
    found = VerticalLogisticRegression(
        algorithm=algorithm,
        class_weight=weights,
        learning_rate=0.5,
        local_steps=3,
        rounds=600,
        batch_size="full",
        random_state=0,
        job={"job": {"start": "zero"}},  # without row offsets
    ).fit(features, labels)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-3)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-3)
    unweighted = LogisticRegression().fit(features, labels)
    assert np.abs(found.intercept_ - unweighted.intercept_) > 1


@pytest.mark.parametrize(
    ("exchange", "parties"), [("plain", 2), ("masked", 3), ("bfv", 2), ("ckks", 2), ("paillier", 2)]
)
def test_exact_steps_rank_as_scikit_learn_under_every_exchange(exchange: str, parties: int) -> None:
    dataset = breast_cancer(parties)
    job = Job.of(
        job={"class_weight": BENIGN, "rounds": 30, "tolerance": 0.0},  # settles in none of them
        exchange={"scheme": exchange},
    )
    result = train(job, dataset, Environment(keys=SmallKeys()))
    scaler = StandardScaler().fit(np.hstack([each.train for each in dataset.parties]))
    features = scaler.transform(np.hstack([each.train for each in dataset.parties]))
    expected = LogisticRegression(class_weight={0: 1, 1: 6}, tol=1e-9).fit(
        features, dataset.train_labels
    )
    held_out = scaler.transform(np.hstack([each.test for each in dataset.parties]))
    best = auc(expected.decision_function(held_out)[:, None], dataset.test_labels)
    assert result.scores[-1].auc == pytest.approx(best, abs=1e-3)
    clear = train(job.without_protection, dataset)
    assert np.allclose(result.predictions, clear.predictions, atol=0.05)


def of_rows(rows: int, seed: int = 0) -> FloatArray:
    """Weights of mean 1, some of them 50 times as large as others."""
    weights = np.exp(np.random.default_rng(seed).standard_normal(rows))
    return np.asarray(weights / weights.mean())


def weighed(parties: int = 2, seed: int = 0) -> VerticalDataset:
    dataset = breast_cancer(parties)
    label, *others = dataset.parties
    weights = of_rows(len(dataset.train_labels), seed)
    return replace(dataset, parties=(replace(label, weights=weights), *others))


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize("weights", [None, "balanced", {0: 0.5, 1: 8.0}])
def test_rows_weigh_as_in_scikit_learn(algorithm: str, weights: Any) -> None:  # noqa: ANN401
    features, labels = rare()
    sample = of_rows(len(labels))
    expected = LogisticRegression(class_weight=weights, tol=1e-9)
    expected.fit(features, labels, sample_weight=sample)
    found = VerticalLogisticRegression(
        **{"algorithm": algorithm, "class_weight": weights, **ROWS},
        local_steps=3,
        rounds=1500 if algorithm == "fedsgd" else 600,
        job={"job": {"start": "zero"}},
    ).fit(features, labels, sample_weight=sample)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=2e-3)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=2e-3)
    plain = LogisticRegression(class_weight=weights, tol=1e-9).fit(features, labels)
    assert np.abs(plain.coef_ - expected.coef_).max() > 0.05


def test_a_weight_of_two_is_a_row_twice_and_of_zero_is_no_row() -> None:
    features, labels = rare(400)
    times = np.random.default_rng(1).integers(0, 4, len(labels))
    settings = {**ROWS, "standardize": False, "job": {"job": {"start": "zero"}}}
    models = [VerticalLogisticRegression(**settings, rounds=2000) for _ in range(2)]
    models[0].fit(features, labels, sample_weight=times)
    models[1].fit(features.repeat(times, axis=0), labels.repeat(times))
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-6)
    np.testing.assert_allclose(models[0].intercept_, models[1].intercept_, atol=1e-6)
    without = VerticalLogisticRegression(**settings, rounds=2000)
    without.fit(features[times > 0], labels[times > 0])
    assert np.abs(without.coef_ - models[0].coef_).max() > 0.01


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_derived_steps_follow_the_unit_of_weights(unit: float) -> None:
    """As many rounds, to the same coefficients: 1/C has that unit too."""
    features, labels = rare()
    sample = of_rows(len(labels)) * unit
    expected = LogisticRegression(C=1 / unit, tol=1e-12, max_iter=10_000)
    expected.fit(features, labels, sample_weight=sample)
    found = VerticalLogisticRegression(C=1 / unit, rounds=60, random_state=0)
    found.fit(features, labels, sample_weight=sample)
    assert found.n_iter_ < 40
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=0.06)


@pytest.mark.parametrize("classes", [None, "balanced", {0: 0.5, 1: 8.0}])
@pytest.mark.parametrize("sample", [False, True])
def test_a_rise_that_l2_explains_is_no_step_too_long(
    classes: Any,  # noqa: ANN401
    sample: bool,
) -> None:
    features, labels = rare()
    weights = of_rows(len(labels)) if sample else None
    expected = LogisticRegression(C=0.001, class_weight=classes, tol=1e-9)
    expected.fit(features, labels, sample_weight=weights)
    found = VerticalLogisticRegression(
        C=0.001, class_weight=classes, rounds=300, tol=1e-6, random_state=0
    ).fit(features, labels, sample_weight=weights)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=2e-3)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, -1.0, 1.0, 1.0], "sample_weight: 1 value outside .*, the first in row 2"),
        ([1.0, 1.0, np.nan, 1.0], "sample_weight: 1 value outside .*, the first in row 3"),
        ([0.0] * 4, "sample_weight: 4 values outside 1e-12 to 1e\\+12, zero, missing or"),
        ([1.0] * 3, r"sample_weight: shape \(3,\), expected \(4,\)"),
        ([[1.0]] * 4, r"sample_weight: shape \(4, 1\), expected \(4,\)"),
        ([1.0, 0.0, 1.0, 0.0], "y: one class only"),
    ],
)
def test_an_estimator_refuses_what_are_no_weights(weights: Any, said: str) -> None:  # noqa: ANN401
    features = np.arange(8.0).reshape(4, 2)
    with pytest.raises(DataError, match=said):
        VerticalLogisticRegression().fit(features, [0, 1, 0, 1], sample_weight=weights)


def test_masked_predictions_with_weights_train_what_plain_ones_do() -> None:
    plain, masked = (
        train(Job.of(job={"rounds": 8, "tolerance": 0.0}, exchange={"scheme": each}), weighed(3))
        for each in ("plain", "masked")
    )
    np.testing.assert_allclose(masked.predictions, plain.predictions, atol=1e-6)
    without = train(Job.of(job={"rounds": 8, "tolerance": 0.0}), breast_cancer(3))
    assert np.abs(without.predictions - plain.predictions).max() > 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "logistic", "learning_rate": 0.5},
        {"batch_size": 64, "learning_rate": 0.5, "sampling": "shuffle"},
        {"model": "mlp", "hidden": [4], "learning_rate": 0.5},
    ],
)
def test_weights_reach_every_kind_of_step(settings: dict[str, Any]) -> None:
    job = Job.of(job={"rounds": 20, "start": "random", **settings})
    results = [train(job, each) for each in (weighed(), weighed(), weighed(seed=1))]
    assert np.array_equal(results[0].predictions, results[1].predictions)
    assert np.abs(results[0].predictions - results[2].predictions).max() > 1e-4
    assert results[0].scores[-1].auc > 0.9


def test_what_is_told_of_weights_is_said_before_and_after() -> None:
    job, dataset = Job.of(job={"rounds": 3}), weighed()
    said = "every party learns: the mean weight of rows, rounded up to a power of two, and each"
    assert any(line.startswith(said) for line in before(plan_for(job, dataset), dataset))
    known = breast_cancer(2)
    assert not any(line.startswith(said) for line in before(plan_for(job, known), known))
    row = training_row(train(job, dataset), dataset)
    assert comparison_notes(row)[-1].startswith("weights: probabilities")


def test_a_session_does_not_go_on_with_other_weights() -> None:
    job = Job.of(job={"rounds": 4, "batch_size": 64, "learning_rate": 0.1})
    states: dict[str, Any] = {}
    train(job, weighed(), Environment(keep_state=lambda each: states.setdefault(each.party, each)))
    assert train(job, weighed(), Environment(resume=states)).rounds == 4
    with pytest.raises(DataError, match="'party1': its data differ from those of the session"):
        train(job, weighed(seed=1), Environment(resume=states))


def test_several_classes_have_weights_too() -> None:
    features, labels = rare(classes=3)
    expected = LogisticRegression(class_weight="balanced", tol=1e-9).fit(features, labels)
    found = VerticalLogisticRegression(
        class_weight="balanced",
        learning_rate=0.5,
        rounds=600,
        batch_size="full",
        random_state=0,
        job={"job": {"start": "zero"}},
    ).fit(features, labels)
    np.testing.assert_allclose(
        found.predict_proba(features), expected.predict_proba(features), atol=1e-3
    )


@pytest.mark.parametrize("sample", [False, True])
def test_a_party_alone_has_the_same_weights(sample: bool) -> None:
    dataset = weighed() if sample else breast_cancer(2)
    result = train(Job.of(job={"class_weight": "balanced", "rounds": 3}), dataset)
    own = dataset.parties[0]
    scaler = StandardScaler().fit(own.train)
    expected = LogisticRegression(class_weight="balanced", tol=1e-8, max_iter=1000)
    expected.fit(scaler.transform(own.train), dataset.train_labels, sample_weight=own.weights)
    np.testing.assert_allclose(
        result.alone["party1"].predictions[:, 0],
        expected.decision_function(scaler.transform(own.test)),
        rtol=0.01,
        atol=0.02,
    )
    note = comparison_notes(training_row(result, dataset))[-1]
    assert note.startswith("weights: probabilities")


REFUSED: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"job": {"loss": "squared"}}, "takes loss = 'logistic' of classes"),
    ({"job": {"algorithm": "fdml"}}, "takes algorithm 'fedsgd', 'fedbcd-p' or 'fedbcd-s'"),
    ({"job": {"algorithm": "dbcd"}}, "takes algorithm 'fedsgd', 'fedbcd-p' or 'fedbcd-s'"),
    (
        {"exchange": {"scheme": "blind"}},
        "takes 'plain' or 'masked', or .*: under encryption the label guard",
    ),
    (
        {"exchange": {"scheme": "dp"}, "privacy": {"noise_multiplier": 1.0}},
        "takes 'plain' or 'masked', or encryption with hide = 'residuals'",
    ),
    (
        {"exchange": {"scheme": "bfv"}},
        "takes a weight for each class under encryption, by its name: class_weight = { no = 1, "
        "yes = 20 } .* label guard refuses most jobs with weights",
    ),
    (
        {"job": {"local_rule": "exact", "learning_rate": 0.1}},
        "takes no local_rule = 'exact', for which peers need the weights",
    ),
    ({"job": {"batch_size": 64}}, "takes batch_size = 'full' and no l1, or a learning_rate"),
]


@pytest.mark.parametrize(("sections", "why"), REFUSED)
def test_weights_are_refused_where_they_are_not_accounted_for(
    sections: dict[str, dict[str, Any]], why: str
) -> None:
    job = Job.of(**{**sections, "job": {"class_weight": "balanced", **sections.get("job", {})}})
    with pytest.raises(ConfigError, match=f"^class_weight {why}"):
        plan_for(job, breast_cancer(2))


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        *((sections, why) for sections, why in REFUSED if "exchange" not in sections),
        *(
            ({"exchange": {"scheme": each}}, "takes exchange 'plain' or 'masked'$")
            for each in ("bfv", "ckks", "paillier", "blind")
        ),
        ({"exchange": {"scheme": "bfv", "hide": "both"}}, "takes exchange 'plain' or 'masked'$"),
        (
            {"exchange": {"scheme": "dp"}, "privacy": {"noise_multiplier": 1.0}},
            "takes exchange 'plain' or 'masked'$",
        ),
        ({"job": {"algorithm": "ftl"}}, "takes loss = 'logistic' of classes$"),
    ],
)
def test_weights_of_rows_are_refused_by_name_too(
    sections: dict[str, dict[str, Any]], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"^weight_column {why}"):
        plan_for(Job.of(**sections), weighed())


@pytest.mark.parametrize("names", [["no", "yes"], ["benign"]])
def test_weights_name_every_class(names: list[str]) -> None:
    job = Job.of(job={"class_weight": dict.fromkeys(names, 1.0)})
    told = f"weights of {', '.join(names)}, expected one of each class: malignant, benign"
    with pytest.raises(ConfigError, match=told):
        train(job, breast_cancer(2))


def test_a_word_that_is_no_weight_is_refused_in_words_of_toml() -> None:
    with pytest.raises(
        ConfigError, match=r"job.class_weight = 'balance': Input should be 'balanced', or a table$"
    ):
        Job.of(job={"class_weight": "balance"})


def test_a_job_without_a_single_weight_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"job.class_weight = \{\}: Input should be 'balanced', or "
    ):
        Job.of(job={"class_weight": {}})


def test_an_estimator_takes_weights_as_scikit_learn_does() -> None:
    """Classes without a weight have 1, whole numbers of NumPy pass, and other classes do not."""
    features, labels = rare(300)
    few: list[dict[int, Any]] = [{1: np.int64(20)}, {0: 1.0, 1: 20.0}]
    found = [
        VerticalLogisticRegression(class_weight=each, random_state=0).fit(features, labels)
        for each in few
    ]
    assert np.array_equal(found[0].coef_, found[1].coef_)
    for other in ("1", 2):
        weights = {0: 1.0, other: 20.0}
        with pytest.raises(ConfigError, match=f"class_weight: {other!r} is no class of y"):
            VerticalLogisticRegression(class_weight=weights).fit(features, labels)
        with pytest.raises(ValueError, match="class_weight"):
            LogisticRegression(class_weight=weights).fit(features, labels)


def test_gradients_with_weights_reveal_something_new_each_round() -> None:
    """The weight of a label's class multiplies σ(H), which moves."""
    dataset = breast_cancer(2)
    jobs = [
        Job.of(job={"rounds": 5, "tolerance": 0.0, **more}, exchange={"scheme": "bfv"})
        for more in ({}, {"class_weight": BENIGN})
    ]
    once, every = (train(job, dataset).label_guard_ratio for job in jobs)
    assert once is not None
    assert every == pytest.approx(5 * once)


def test_the_label_guard_says_to_drop_weights(tmp_path: Path) -> None:
    job = Job.of(job={"class_weight": BENIGN}, exchange={"scheme": "bfv"})
    with pytest.raises(LabelLeakRefused, match="drop class_weight"):
        train(job, breast_cancer(2), Environment(guard_directory=tmp_path))


@pytest.mark.parametrize("sample", [False, True])
def test_no_attack_is_said_to_fail_that_knows_no_weights(sample: bool) -> None:
    job = Job.of(job={} if sample else {"class_weight": "balanced"})
    dataset = weighed() if sample else breast_cancer(2)
    with pytest.raises(
        ConfigError, match="class_weight, weight_column: no attack takes weights into account"
    ):
        audit(dataset, AuditSettings({"plain": job}, ("changed_labels",), 1, 1))
