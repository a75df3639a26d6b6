import numpy as np
import pytest

from securevfl.attacks.labels_from_gradients import label_part
from securevfl.attacks.scored_features import equations_and_unknowns, features_from_scores
from securevfl.models.losses import loss_for


def error(
    generator: np.random.Generator, classes: int, features: int
) -> tuple[float, tuple[int, int]]:
    """Relative error of the target's features under a random model."""
    outputs = 1 if classes == 2 else classes
    target = generator.standard_normal((100, features))
    weights = 0.3 * generator.standard_normal((features, outputs))
    own = generator.standard_normal((100, outputs))
    name = "logistic" if classes == 2 else "multinomial"
    scores = label_part(loss_for(name, classes), own + target @ weights)
    found = features_from_scores(scores, weights, own)
    relative = float(np.linalg.norm(found - target) / np.linalg.norm(target))
    return relative, equations_and_unknowns(weights)


@pytest.mark.parametrize(("classes", "features"), [(2, 1), (10, 1), (10, 9)])
def test_as_many_equations_as_unknowns_give_the_features(
    generator: np.random.Generator, classes: int, features: int
) -> None:
    relative, (equations, unknowns) = error(generator, classes, features)
    assert relative <= 1e-9
    assert equations == unknowns == features


@pytest.mark.parametrize(("classes", "features"), [(2, 2), (10, 10), (2, 15)])
def test_one_unknown_more_leaves_a_doubt(
    generator: np.random.Generator, classes: int, features: int
) -> None:
    relative, (equations, unknowns) = error(generator, classes, features)
    assert relative >= 0.05
    assert equations == classes - 1 < unknowns


def test_scores_that_underflow_stay_finite() -> None:
    found = features_from_scores(np.array([[0.0], [1.0]]), np.ones((1, 1)), np.zeros((2, 1)))
    assert np.isfinite(found).all()
