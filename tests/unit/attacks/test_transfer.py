import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.attacks.factored_features import factor_of_units, features_from_units
from securevfl.attacks.labels_from_unit_gradients import UnitVisit, labels_from_unit_gradients
from securevfl.attacks.labels_in_clear import labels_from_components, units_from_components
from securevfl.errors import ConfigError
from securevfl.models.layers import DenseLayer
from securevfl.models.scores import auc
from securevfl.protocols.transfer.objective import Components, FeatureObjective

ROWS, COLUMNS, UNITS, ALIGNMENT = 60, 6, 16, 0.01


def components(generator: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Labels ±1, units of the label party that go with them, and Φ."""
    signs = np.where(generator.random(ROWS) < 0.4, 1.0, -1.0)
    lean = generator.standard_normal(UNITS) / 3
    units = np.tanh(generator.standard_normal((ROWS, UNITS)) + np.outer(signs, lean))
    return signs, units, signs @ units / ROWS


def values_of(signs: FloatArray, units: FloatArray, phi: FloatArray) -> FloatArray:
    return np.outer(signs / 2, phi) + 2 * ALIGNMENT * units


def test_components_in_clear_are_labels_and_units(generator: np.random.Generator) -> None:
    signs, units, phi = components(generator)
    values = values_of(signs, units, phi)
    order = generator.permutation(ROWS)
    halves = [order[:40], order[20:]]
    found = labels_from_components([(values[rows], phi) for rows in halves], halves)
    assert found.rows.tolist() == list(range(ROWS))
    assert np.array_equal(np.sign(found.scores[:, 0]), signs)
    np.testing.assert_allclose(units_from_components(values, phi, ALIGNMENT), units, atol=1e-12)


def test_components_that_do_not_fit_are_refused(generator: np.random.Generator) -> None:
    signs, units, phi = components(generator)
    values = values_of(signs, units, phi)
    with pytest.raises(ConfigError, match="expected 59 rows"):
        labels_from_components([(values, phi)], [np.arange(59)])
    with pytest.raises(ConfigError, match="none were received"):
        labels_from_components([], [])
    with pytest.raises(ConfigError, match="alignment = 0"):
        units_from_components(values, phi, 0.0)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_as_many_rows_as_rank_turn_units_into_features(
    activation: str, generator: np.random.Generator
) -> None:
    features = generator.standard_normal((ROWS, COLUMNS))
    weights = generator.standard_normal((COLUMNS + 1, UNITS)) / 2
    layer = DenseLayer(weights, activation=activation)  # type: ignore[arg-type]
    units = layer.predict(np.hstack([features, np.ones((ROWS, 1))]))
    factor = factor_of_units(units, activation)
    assert factor.shape == (ROWS, COLUMNS + 1)
    for known, exact in ((COLUMNS + 1, True), (COLUMNS - 1, False)):
        found = features_from_units(factor, np.arange(known), features[:known])
        error = np.abs(found - features).max()
        assert (error < 1e-6) == exact


def visits_of(
    generator: np.random.Generator, signs: FloatArray, count: int, rows: int
) -> list[UnitVisit]:
    """Gradients of a layer that moves, of columns that say nothing of labels."""
    features = np.hstack([generator.standard_normal((rows, COLUMNS)), np.ones((rows, 1))])
    visits = []
    for _ in range(count):
        units = np.tanh(generator.standard_normal((rows, UNITS)) + np.outer(signs, np.ones(UNITS)))
        phi = signs @ units / rows
        layer = DenseLayer(generator.standard_normal((COLUMNS + 1, UNITS)))
        given = Components(values_of(signs, units, phi), phi[None])
        gradient = FeatureObjective(layer, features, ALIGNMENT).gradient(given)
        visits.append(UnitVisit(np.arange(rows), features, *layer.with_slopes(features), gradient))
    return visits


def test_gradients_of_units_are_labels_where_there_are_more_of_them_than_rows(
    generator: np.random.Generator,
) -> None:
    labels = generator.integers(0, 2, ROWS)
    signs = np.where(labels == 1, 1.0, -1.0)
    own = 0.5 + 0.15 * np.where(generator.random(ROWS) < 0.3, signs, 0.0)[:, None]
    visits = visits_of(generator, signs, 2, ROWS)
    found = labels_from_unit_gradients(visits, ALIGNMENT, own)
    assert auc(own, labels) < 0.85
    assert auc(found.scores, labels) > 0.95
    nothing = [
        UnitVisit(each.rows, each.inputs, each.units, each.slopes, 0 * each.gradient)
        for each in visits
    ]
    blind = labels_from_unit_gradients(nothing, ALIGNMENT, np.full((ROWS, 1), 0.4))
    assert auc(blind.scores, labels) < 0.8
