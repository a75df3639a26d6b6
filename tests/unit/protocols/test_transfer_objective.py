"""Each party's side of the objective of transfer learning, against its own other forms."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.models.layers import DenseLayer
from securevfl.models.local_model import Activation
from securevfl.protocols.transfer.objective import (
    LEAST_EXPONENT,
    Components,
    FeatureObjective,
    LabelObjective,
    OwnObjective,
)

GAMMA, UNITS, ROWS, ALL_ROWS = 0.3, 4, 6, 15


def layer(generator: np.random.Generator, columns: int, activation: Activation) -> DenseLayer:
    return DenseLayer(generator.standard_normal((columns, UNITS)), activation=activation)


def sides(
    generator: np.random.Generator, activation: Activation = "tanh"
) -> tuple[LabelObjective, FeatureObjective]:
    ours, theirs = (generator.standard_normal((n, k)) for n, k in ((ALL_ROWS, 5), (ROWS, 3)))
    signs = np.where(generator.integers(0, 2, ALL_ROWS) == 1, 1.0, -1.0)
    batch = np.array([0, 2, 3, 7, 8, 9])
    return (
        LabelObjective(layer(generator, 5, activation), ours, signs, batch, GAMMA),
        FeatureObjective(layer(generator, 3, activation), theirs, GAMMA),
    )


def both(sides: tuple[OwnObjective, OwnObjective]) -> list[tuple[OwnObjective, Components]]:
    """Each side with what it is given."""
    label, feature = sides
    return [(label, feature.components()), (feature, label.components())]


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu"])
def test_a_gradient_is_affine_in_what_is_given(
    generator: np.random.Generator, activation: Activation
) -> None:
    for side, given in both(sides(generator, activation)):
        affine = side.affine()
        assert affine.matrices.shape[:2] == (UNITS, ROWS + UNITS)
        product = np.einsum("akf,ka->fa", affine.matrices, given.by_unit)
        np.testing.assert_allclose(affine.constant + product, side.gradient(given), atol=1e-13)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_all_that_is_encrypted_stays_within_its_bounds(
    generator: np.random.Generator, activation: Activation
) -> None:
    label, feature = sides(generator, activation)
    label.model.weights *= 100
    feature.model.weights *= 100
    for components in (label.components(), feature.components()):
        assert np.abs(components.matrix).max() <= 1 + 1e-12
    assert np.abs(label.components().rows).max() <= 0.5 + 2 * GAMMA + 1e-12
    assert np.abs(feature.components().rows).max() <= 1


def jacobian(model: DenseLayer, inputs: FloatArray) -> FloatArray:
    return model.tangent(inputs)()


def test_steps_bend_as_the_linearization_does(generator: np.random.Generator) -> None:
    label, feature = sides(generator)
    exponent = 3
    of_b = jacobian(feature.model, feature.inputs)
    of_batch = jacobian(label.model, label.everything[label.batch])
    everything = jacobian(label.model, label.everything).reshape(ALL_ROWS, UNITS, -1)
    of_phi = np.einsum("n,nap->ap", label.signs / ALL_ROWS, everything)
    expected = (
        (label, 2.0**exponent / 4 * of_phi.T @ of_phi + 2 * GAMMA / ROWS * of_batch.T @ of_batch),
        (feature, (2.0**exponent / 4 + 2 * GAMMA) / ROWS * of_b.T @ of_b),
    )
    for side, matrix in expected:
        delta = generator.standard_normal(side.model.weights.shape)
        np.testing.assert_allclose(
            side.bend(exponent)(delta).ravel(), matrix @ delta.ravel(), atol=1e-12
        )
        largest = np.linalg.eigvalsh(matrix)[-1]
        assert largest <= side.steepest(exponent) * (1 + 1e-12)


def test_the_exponent_is_the_least_that_bounds(generator: np.random.Generator) -> None:
    for side, given in both(sides(generator)):
        del side
        largest = np.linalg.eigvalsh(given.matrix)[-1]
        assert 2.0 ** (given.largest - 1) <= largest < 2.0**given.largest
    assert Components(np.zeros((2, UNITS)), np.zeros((1, UNITS))).largest == LEAST_EXPONENT


def test_changed_weights_are_noticed(generator: np.random.Generator) -> None:
    label, feature = sides(generator)
    given = feature.components()
    before = label.components().rows
    label.model.weights = label.model.weights + 0.1
    assert np.abs(label.components().rows - before).max() > 1e-3
    product = np.einsum("akf,ka->fa", label.affine().matrices, given.by_unit)
    np.testing.assert_allclose(label.affine().constant + product, label.gradient(given), atol=1e-13)
