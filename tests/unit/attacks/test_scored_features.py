"""Features of rows from what is shown of their predictions, on data made for it."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.attacks.labels_from_gradients import label_part
from securevfl.attacks.scored_features import (
    column_space,
    equations_and_unknowns,
    features_from_scores,
    held_out_features,
)
from securevfl.errors import ConfigError
from securevfl.models.losses import loss_for

ROWS, COLUMNS = 80, 6


def data(generator: np.random.Generator, rank: int = COLUMNS) -> tuple[FloatArray, FloatArray]:
    """X of a rank, and the label party's columns, which follow it a little."""
    features = generator.standard_normal((ROWS, rank)) @ generator.standard_normal((rank, COLUMNS))
    own = features[:, :2] + 2 * generator.standard_normal((ROWS, 2))
    return features, own


def scored(
    features: FloatArray, generator: np.random.Generator, scorings: int, outputs: int = 1
) -> list[FloatArray]:
    return [features @ generator.standard_normal((COLUMNS, outputs)) for _ in range(scorings)]


def error(found: FloatArray, features: FloatArray, known: int) -> float:
    return float(np.linalg.norm((found - features)[known:]) / np.linalg.norm(features[known:]))


def read(
    space: FloatArray, features: FloatArray, own: FloatArray, known: int, rank: int = COLUMNS
) -> FloatArray:
    return held_out_features(space, own, np.arange(known), features[:known], rank)


@pytest.mark.parametrize(("rank", "outputs"), [(COLUMNS, 1), (COLUMNS, 3), (4, 1)])
def test_as_many_columns_as_rank_and_as_many_known_rows_give_all_rows(
    generator: np.random.Generator, rank: int, outputs: int
) -> None:
    features, own = data(generator, rank)
    space = column_space(scored(features, generator, rank // outputs, outputs))
    assert space.shape == (ROWS, rank)
    found = read(space, features, own, rank, rank)
    assert error(found, features, rank) < 1e-10


def test_the_features_of_rows_that_are_not_known_play_no_part(
    generator: np.random.Generator,
) -> None:
    features, own = data(generator)
    space = column_space(scored(features, generator, 3))
    found = read(space, features, own, 12)
    features[12:] = 0
    np.testing.assert_array_equal(read(space, features, own, 12), found)


def test_what_rounding_hides_spans_nothing(generator: np.random.Generator) -> None:
    features, _ = data(generator)
    features[:, -1] *= 1e-9
    seen = [np.round(each, 6) for each in scored(features, generator, 2 * COLUMNS)]
    assert column_space(seen, rounding=1e-6).shape[1] == COLUMNS - 1


def test_nothing_scored_is_said() -> None:
    with pytest.raises(ConfigError, match="none in the view"):
        column_space([])


@pytest.mark.parametrize(
    ("classes", "columns", "enough"),
    [
        *((2, 1, True), (10, 1, True), (10, 9, True)),
        *((2, 2, False), (10, 10, False), (2, 15, False)),
    ],
)
def test_as_many_equations_as_unknowns_give_the_features_and_one_unknown_more_does_not(
    generator: np.random.Generator, classes: int, columns: int, enough: bool
) -> None:
    """Of the target under a random model."""
    outputs = 1 if classes == 2 else classes
    target = generator.standard_normal((100, columns))
    weights = 0.3 * generator.standard_normal((columns, outputs))
    own = generator.standard_normal((100, outputs))
    name = "logistic" if classes == 2 else "multinomial"
    scores = label_part(loss_for(name, classes), own + target @ weights)
    found = features_from_scores(scores, weights, own)
    relative = float(np.linalg.norm(found - target) / np.linalg.norm(target))
    assert relative <= 1e-9 if enough else relative >= 0.05
    equations, unknowns = equations_and_unknowns(weights)
    assert (equations, equations == unknowns) == (min(classes - 1, columns), enough)


def test_scores_that_underflow_stay_finite() -> None:
    found = features_from_scores(np.array([[0.0], [1.0]]), np.ones((1, 1)), np.zeros((2, 1)))
    assert np.isfinite(found).all()
