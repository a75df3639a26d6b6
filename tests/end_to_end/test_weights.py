"""Class weights: the optimum of scikit-learn, and a refusal where they are not accounted for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from securevfl import VerticalLogisticRegression
from securevfl.arrays import FloatArray, IntArray
from securevfl.auditing.matrix import AuditSettings, audit
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.reports.trained import comparison_notes, training_row
from securevfl.training import Environment, plan_for, train
from tests.jobs import SmallKeys, breast_cancer

BENIGN = {"malignant": 1.0, "benign": 6.0}
GIVEN = {"no": 0.5, "yes": 8.0}
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


def test_a_party_alone_has_the_same_weights() -> None:
    dataset = breast_cancer(2)
    result = train(Job.of(job={"class_weight": "balanced", "rounds": 3}), dataset)
    own = dataset.parties[0]
    scaler = StandardScaler().fit(own.train)
    expected = LogisticRegression(class_weight="balanced", tol=1e-8, max_iter=1000)
    expected.fit(scaler.transform(own.train), dataset.train_labels)
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


def test_the_label_guard_says_to_drop_weights(tmp_path: Any) -> None:  # noqa: ANN401
    job = Job.of(job={"class_weight": BENIGN}, exchange={"scheme": "bfv"})
    with pytest.raises(LabelLeakRefused, match="drop class_weight"):
        train(job, breast_cancer(2), Environment(guard_directory=tmp_path))


def test_no_attack_is_said_to_fail_that_knows_no_weights() -> None:
    job = Job.of(job={"class_weight": "balanced"})
    with pytest.raises(
        ConfigError, match="class_weight, weight_column: no attack takes weights into account"
    ):
        audit(breast_cancer(2), AuditSettings({"plain": job}, ("changed_labels",), 1, 1))
