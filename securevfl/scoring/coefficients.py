"""The coefficients of a linear part of a model, standardized and per unit of its raw columns."""

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.storage import SavedModel


def standardized(model: SavedModel) -> tuple[FloatArray, FloatArray]:
    """θ_k per deviation of each column, shape (P, C), and the part's intercept, shape (C,).

    Raises:
        ConfigError: a network, which has none.
    """
    header, weights = model.header, model.weights
    if header.network is not None or header.representation is not None:
        raise ConfigError(f"the part of {header.party!r} is no linear model of H: no coefficients")
    if header.intercept:
        return weights[:-1], weights[-1]
    return weights, np.zeros(weights.shape[1])


def in_original_units(
    model: SavedModel, target_scale: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """θ_k per unit of each column, shape (P, C), and the constant that goes with it, shape (C,).

    Args:
        model: a party's part; the label party's holds the constant of all.
        target_scale: of real targets, which the label party's part knows.

    Raises:
        ConfigError: a network, which has none.
    """
    weights, intercept = standardized(model)
    per_unit = target_scale * weights / model.scale[:, None]
    constant = target_scale * intercept - model.mean @ per_unit
    return per_unit, constant + (model.header.target_mean or 0.0)
