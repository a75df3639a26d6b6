from dataclasses import replace

import numpy as np
import pytest

from securevfl.errors import ConfigError, DataError
from securevfl.models.storage import ModelHeader
from securevfl.scoring.outputs import metrics, score_columns

HEADER = ModelHeader(
    party="bank",
    columns=("income",),
    intercept=True,
    classes=2,
    loss="logistic",
    job_hash="ab" * 32,
    rounds=7,
    class_names=("no", "yes"),
)
SCORES = np.array([[-1.0], [0.0], [2.0]])


def test_two_classes_have_the_probability_of_the_second() -> None:
    columns = score_columns(HEADER, "customer", ["a", "b", "c"], SCORES)
    assert list(columns) == ["customer", "probability", "class"]
    np.testing.assert_allclose(np.asarray(columns["probability"]), 1 / (1 + np.exp(-SCORES[:, 0])))
    assert columns["class"] == ["no", "no", "yes"]


def test_more_classes_have_one_each_and_a_hinge_its_score() -> None:
    three = replace(HEADER, classes=3, loss="multinomial", class_names=("a", "b", "c"))
    columns = score_columns(three, "id", ["1"], np.array([[0.0, 1.0, 0.0]]))
    assert list(columns) == ["id", "probability_a", "probability_b", "probability_c", "class"]
    assert columns["class"] == ["b"]
    columns = score_columns(replace(HEADER, loss="hinge"), "id", ["1", "2", "3"], SCORES)
    assert list(columns) == ["id", "score", "class"]


@pytest.mark.parametrize("name", ["class", "probability"])
def test_an_id_column_of_a_scores_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"id_column = '{name}'"):
        score_columns(HEADER, name, ["a", "b", "c"], SCORES)


def test_real_targets_have_predictions_and_metrics_of_their_own() -> None:
    real = replace(HEADER, classes=0, loss="squared", class_names=None, target_mean=1.0)
    columns = score_columns(real, "id", ["1", "2", "3"], SCORES)
    assert list(columns) == ["id", "prediction"]
    found = metrics(real, SCORES, ["-1.5", "0", "2"])
    assert (found.auc, found.accuracy) == (None, None)
    assert found.mae == pytest.approx(1 / 6)
    assert found.r2 == pytest.approx(1 - 0.25 / np.sum((np.array([-1.5, 0, 2]) - 1 / 6) ** 2))
    assert metrics(real, SCORES, ["2"] * 3).r2 is None
    for labels in (["1", "much", "2"], ["1", "nan", "2"]):
        with pytest.raises(DataError, match="labels"):
            metrics(real, SCORES, labels)


def test_labels_are_compared_as_training_does() -> None:
    numbers = replace(HEADER, class_names=("0", "1"))
    found = metrics(numbers, SCORES, ["0", "0.0", "1.0"])
    assert (found.rows, found.auc, found.accuracy) == (3, 1.0, 1.0)
    assert found.calibration is not None
    assert metrics(replace(HEADER, loss="hinge"), SCORES, ["no"] * 3).calibration is None
    assert metrics(HEADER, SCORES, ["no"] * 3).auc is None
    found = metrics(numbers, SCORES, [None, "0", "1"])
    assert (found.rows, found.auc, found.accuracy) == (2, 1.0, 1.0)
    assert metrics(numbers, SCORES, [None] * 3).rows == 0
    with pytest.raises(DataError, match="2 are not classes of the model, the first is 'maybe'"):
        metrics(HEADER, SCORES, ["no", "maybe", "perhaps"])
