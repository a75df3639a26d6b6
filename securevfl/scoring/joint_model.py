"""A trained model whose parts all lie in one place, as a simulation leaves them.

Between organizations nobody has this: each keeps its own part, and `securevfl predict` runs the
protocol that brings their predictions together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.models.local_model import MakeModule
from securevfl.models.losses import class_numbers, has_probabilities, probabilities
from securevfl.models.storage import SavedModel
from securevfl.scoring.coefficients import in_original_units
from securevfl.scoring.parts import label_party_of, load_parts, require_together
from securevfl.scoring.rows import features_of

Rows = Mapping[str, Any]
"""By party: an array of its columns in the model's order, or a polars or pandas frame with them by
name, in any order and beside others."""


@dataclass(frozen=True, eq=False)
class JointModel:
    """All parties' parts of one model.

    Attributes:
        parts: by party.
    """

    parts: Mapping[str, SavedModel]

    def __post_init__(self) -> None:
        require_together(self.parts)

    @property
    def label_party(self) -> str:
        """The party whose part knows the classes."""
        return label_party_of(self.parts)

    @property
    def classes_(self) -> tuple[str, ...]:
        """What the classes are called."""
        return self.parts[self.label_party].header.class_names or ()

    @property
    def coef_(self) -> dict[str, FloatArray]:
        """Coefficients of raw columns by party, each of shape (C, P), of linear models."""
        return {name: coefficients.T for name, (coefficients, _) in self._in_original_units.items()}

    @property
    def intercept_(self) -> FloatArray:
        """The constant that goes with them, shape (C,)."""
        return np.asarray(np.sum([each for _, each in self._in_original_units.values()], axis=0))

    def decision_function(self, rows: Rows) -> FloatArray:
        """H of every row: shape (rows,) for two classes or real targets, else (rows, classes).

        Raises:
            DataError: rows that do not fit the parties' columns, or one another.
        """
        total = self._predictions(rows)
        return total[:, 0] if total.shape[1] == 1 else total

    def predict_proba(self, rows: Rows) -> FloatArray:
        """The probability of every class, shape (rows, classes), in the order of `classes_`.

        Raises:
            ConfigError: the model's loss has no probabilities.
            DataError: see `decision_function`.
        """
        if not self.classes_ or not has_probabilities(self._loss):
            raise ConfigError(f"loss = {self._loss!r} has no probabilities: decision_function")
        return probabilities(self._loss, self._predictions(rows))

    def predict(self, rows: Rows) -> list[str] | FloatArray:
        """The name of every row's most likely class; real targets as `decision_function`.

        Raises:
            DataError: see `decision_function`.
        """
        names = self.classes_
        if not names:
            return self.decision_function(rows)
        return [names[code] for code in class_numbers(self._loss, self._predictions(rows))]

    @property
    def _in_original_units(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        unit = self.parts[self.label_party].header.target_scale or 1.0
        return {name: in_original_units(each, unit) for name, each in self.parts.items()}

    @property
    def _loss(self) -> str:
        return self.parts[self.label_party].header.loss

    def _predictions(self, rows: Rows) -> FloatArray:
        if set(rows) != set(self.parts):
            raise DataError(f"rows of {', '.join(rows)}: the model is of {', '.join(self.parts)}")
        features = {name: features_of(each, rows[name]) for name, each in self.parts.items()}
        counts = {name: len(values) for name, values in features.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise DataError(f"different numbers of rows ({told}), expected the same ones")
        given = {name: each.predict(features[name]) for name, each in self.parts.items()}
        return self.parts[self.label_party].together(given)


def load_models(
    directory: Path | str,
    *,
    l1: float | None = None,
    modules: Mapping[str, MakeModule] | None = None,
) -> JointModel:
    """The model whose parts `securevfl train` left in a folder.

    Args:
        directory: holds `<party>.safetensors` of every party.
        l1: the point of an L1 path that lies beside them, in place of its last one.
        modules: by party, what makes its custom network.

    Raises:
        DataError: no parts there, one that cannot be read, or parts of different models.
    """
    return JointModel(load_parts(Path(directory), l1=l1, modules=modules))
