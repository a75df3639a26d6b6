import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.auditing.figures import (
    LabelScore,
    best,
    binary_ones,
    boosted_model,
    feature_error,
    features_alone,
    label_finding,
    own_model,
    own_models,
    recall_and_precision,
    score,
)
from securevfl.auditing.judging import (
    ACCURACY,
    AUC,
    TOP_PRECISION,
    TRUE_POSITIVES,
    Finding,
    decisive,
    verdict_of,
)
from securevfl.auditing.measures import features as measure
from securevfl.auditing.measures.features import Recovered
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job

ROWS = 4000


def numbers(values: object) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def made(share: float, seed: int = 0) -> tuple[FloatArray, NDArray[np.int64]]:
    """A column that tells the labels a little, linearly."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(ROWS) < share * ROWS).astype(np.int64)
    return generator.standard_normal((ROWS, 1)) + labels[:, None], labels


def scored(values: FloatArray, labels: NDArray[np.int64]) -> LabelScore:
    return score(LabelEstimate(np.arange(len(labels)), values), labels)


def finding(values: FloatArray, inputs: FloatArray, labels: NDArray[np.int64]) -> Finding:
    estimate = LabelEstimate(np.arange(len(labels)), values)
    return label_finding(estimate, labels, own_models(inputs, labels), {"rounds": 3})


def by_name(found: Finding) -> dict[str, Finding]:
    return {each.metric.name: each for each in (found, *found.beside)}


@pytest.mark.parametrize("turned", [False, True])
def test_true_positives_are_of_the_rarest_class_above_all_but_one_in_a_hundred(
    turned: bool,
) -> None:
    # 100 rare rows of 1,100: 30 above all others, 20 below five of them, 50 below fifty.
    ranks = np.concatenate([np.full(30, 9.0), np.full(20, 7.0), np.full(50, 1.0)])
    others = np.concatenate([np.full(5, 8.0), np.full(45, 5.0), np.zeros(950)])
    values = np.concatenate([ranks, others])[:, None]
    labels = (np.arange(1100) < 100).astype(np.int64)
    found = scored(-values if turned else values, abs(int(turned) - labels))
    assert found.true_positives == pytest.approx(0.5)
    # Ten others share a rank with the rare ones: half of them pass, and half of those.
    values[np.r_[50:100, 105:115], 0] = 6
    found = scored(-values if turned else values, abs(int(turned) - labels))
    assert found.true_positives == pytest.approx(0.5 + 0.5 * 0.5)


def test_who_ranks_all_alike_finds_one_in_a_hundred_and_who_knows_all_finds_all() -> None:
    labels = (np.arange(300) < 30).astype(np.int64)
    assert scored(np.zeros((300, 1)), labels).true_positives == pytest.approx(0.01)
    assert scored(numbers(labels[:, None] - 0.5), labels).true_positives == 1


def test_the_error_of_true_positives_is_that_of_two_counts() -> None:
    generator = np.random.default_rng(0)
    labels = made(0.1)[1]
    shares = [
        scored(
            numbers(labels[:, None] * 1.5 + generator.standard_normal((ROWS, 1))), labels
        ).true_positives
        for _ in range(300)
    ]
    mean = float(np.mean(shares))
    ratios = np.array(shares[::2]) / np.array(shares[1::2])
    claimed = scored(np.zeros((ROWS, 1)), labels).true_positives_error(mean)
    # The others count less than fully, as the share grows slower than the false positives do.
    assert 0.5 * claimed < ratios.std() < 1.05 * claimed
    few = scored(np.zeros((400, 1)), labels[300:700]).true_positives_error(mean)
    assert few == pytest.approx(claimed * np.sqrt(10), rel=0.05)


def test_every_figure_has_a_bar_and_a_leak_by_any_is_one() -> None:
    inputs, labels = made(0.05)
    own = own_model(inputs, labels).estimate.scores
    found = finding(own, inputs, labels)
    names = [each.metric for each in (found, *found.beside)]
    assert names == [AUC, TRUE_POSITIVES, TOP_PRECISION, ACCURACY]
    assert verdict_of([found]) == "no_leak_found"
    # 50 of the 200 rare rows known, and nothing else: 0.25 at no false positive, accuracy + 0.0125.
    guesses = own.copy()
    guesses[:50] = own.max() + 1
    leak = by_name(finding(guesses, inputs, labels))
    accuracy = leak["accuracy"]
    assert accuracy.advantage < accuracy.margin
    assert leak["tpr_at_1_percent_fpr"].advantage > leak["tpr_at_1_percent_fpr"].margin
    assert leak["top_precision"].advantage > leak["top_precision"].margin
    assert verdict_of([finding(guesses, inputs, labels)]) == "leaks"
    assert found.detail["rounds"] == 3
    assert set(found.detail) >= {each.name for each in names}


def test_a_leak_that_true_positives_alone_show_is_one() -> None:
    generator = np.random.default_rng(1)
    labels = (np.arange(20_000) < 6000).astype(np.int64)
    inputs = generator.standard_normal((20_000, 1)) + labels[:, None]
    own = own_model(inputs, labels).estimate.scores.copy()
    # 500 rare rows of the middle are known: 0.08 of all.
    middle = np.argsort(own[:6000, 0])[3000:3500]
    own[middle] = own.max() + 1
    leak = finding(own, inputs, labels)
    assert [each.metric for each in decisive([leak])] == [TRUE_POSITIVES]
    assert verdict_of([leak]) == "leaks"


def test_a_few_rare_rows_do_not_turn_a_verdict() -> None:
    inputs, labels = made(0.005)  # 20 rare rows
    own = own_model(inputs, labels).estimate.scores
    found = scored(own, labels)
    passed = by_name(finding(own, inputs, labels))["tpr_at_1_percent_fpr"]
    one_row = 1 / 20 / max(found.true_positives, 0.01)
    assert passed.margin > one_row
    assert passed.chance == 0.01
    assert passed.margin > TRUE_POSITIVES.margin


def test_trees_are_the_bar_where_labels_are_not_linear_in_the_columns() -> None:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((ROWS, 3))
    labels = (np.abs(inputs[:, 0]) + 0.3 * generator.standard_normal(ROWS) > 1.2).astype(np.int64)
    models = own_models(inputs, labels)
    logistic, boosted = models
    assert logistic.score.auc < 0.55
    assert boosted.score.auc > 0.9
    assert best(models) is boosted
    assert best(models[::-1]) is boosted
    found = finding(boosted.estimate.scores, inputs, labels)
    for each in (found, *found.beside):
        assert each.model_alone is not None
        assert each.value <= each.model_alone
    assert found.model_alone == boosted.score.auc
    assert verdict_of([found]) == "no_leak_found"


def test_trees_do_not_remember_the_rows_that_they_are_asked_about() -> None:
    generator = np.random.default_rng(2)
    labels = (generator.random(900) < 0.3).astype(np.int64)
    boosted = boosted_model(generator.standard_normal((900, 10)), labels)
    assert boosted is not None
    assert boosted.score.auc < 0.6  # 0.5 ± 0.02: in sample it would be 1
    assert boosted.probabilities.shape == (900, 1)


def test_trees_of_more_classes_and_of_too_few_rows() -> None:
    generator = np.random.default_rng(3)
    labels = np.repeat(np.arange(3), 60)
    inputs = numbers(np.abs(generator.standard_normal((180, 2))) + labels[:, None])
    boosted = boosted_model(inputs, labels)
    assert boosted is not None
    assert boosted.probabilities.shape == (180, 3)
    assert boosted.score.accuracy > 0.6
    rare = np.array([0, 0] + [1] * 178)
    assert boosted_model(inputs, rare) is None
    assert len(own_models(inputs, rare)) == 1


def test_each_figure_has_the_better_bar_of_its_own() -> None:
    inputs, labels = made(0.2)
    models = own_models(inputs, labels)
    attributes = {
        "auc": "auc",
        "tpr_at_1_percent_fpr": "true_positives",
        "top_precision": "top_precision",
        "accuracy": "accuracy",
    }
    for order in (models, models[::-1]):
        found = by_name(label_finding(models[0].estimate, labels, order, {}))
        for name, attribute in attributes.items():
            bars = [getattr(model.score, attribute) for model in models]
            assert len(set(bars)) == 2
            assert found[name].model_alone == max(bars)


def columns(seed: int, count: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((400, count))


def subject() -> Subject:
    return Subject(Job.of(job={}), load("breast_cancer"), 0)


def recovered(own: FloatArray, features: FloatArray) -> Recovered:
    """A factor that says nothing."""
    factor = columns(9, features.shape[1])
    return Recovered(factor, factor, features, own, "made", 3)


def test_columns_that_follow_from_ones_own_are_guessed_from_a_few_known_rows() -> None:
    own = columns(0, 5)
    features = own @ columns(1, 3)[:5] + 0.01 * columns(2, 3)
    known = np.arange(20)
    assert feature_error(features_alone(own, features, known), features, known) < 0.05
    for strange in (columns(3, 5), own):
        guesses = known if strange is not own else known[:1]
        error = feature_error(features_alone(strange, features, guesses), features, guesses)
        assert error == pytest.approx(1, abs=0.15)
    # Only the known rows are used.
    changed = features.copy()
    changed[20:] = 0
    np.testing.assert_array_equal(
        features_alone(own, changed, known), features_alone(own, features, known)
    )


def test_a_view_that_says_less_than_ones_own_columns_is_no_leak() -> None:
    # Four known rows, as the factor has rank 4, are enough for two columns and a mean.
    own = columns(0, 2)
    features = own @ columns(1, 4)[:2]
    related = measure._anchors(subject(), recovered(own, features))
    strange = measure._anchors(subject(), recovered(columns(5, 4), features))
    assert related.model_alone is not None
    assert related.bar == related.model_alone
    assert related.bar < 0.3
    assert strange.bar > 0.8
    assert related.within


def test_components_and_bits_are_held_against_ones_own() -> None:
    generator = np.random.default_rng(4)
    bits = generator.integers(0, 2, size=(400, 3)).astype(np.float64)
    same = recovered(np.hstack([bits[:, :2], columns(6, 1)]), bits)
    found = measure.binary(subject(), same)
    assert found.model_alone == pytest.approx(2 / 3)
    others = measure.binary(subject(), recovered(columns(6, 3), bits))
    assert others.model_alone == 0
    component: Finding = measure._components(subject(), recovered(bits, bits))
    assert component.model_alone == pytest.approx(1)
    assert binary_ones(same.own).shape == (400, 2)
    assert recall_and_precision(binary_ones(bits), bits) == (1, 1)
