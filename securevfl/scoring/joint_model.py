"""A trained model whose parts are all in one place, as after a simulation.

Between organizations nobody has this: each keeps its own part, and `securevfl predict` runs the
protocol that combines their predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.models.local_model import MakeModule
from securevfl.models.losses import class_numbers, has_probabilities, probabilities
from securevfl.models.storage import ModelHeader, SavedModel, load_model
from securevfl.protocols.session.checkpoints import Checkpoints
from securevfl.recipe import Recipe
from securevfl.scoring.description import in_original_units


def raw_columns(header: ModelHeader) -> tuple[str, ...]:
    """The columns that a party's own file must have."""
    return header.columns if header.recipe is None else header.recipe.raw_columns


def features_of(model: SavedModel, rows: Any) -> FloatArray:  # noqa: ANN401  # frames of two kinds
    """A party's rows in the form that its part expects, unscaled, shape (rows, P).

    Args:
        model: its part.
        rows: an array of its columns in the model's order, or a polars or pandas frame with these
            columns in any order, possibly among others; a frame if the party has a recipe.

    Raises:
        DataError: missing columns, all of which are listed, or values that are not finite numbers.
    """
    party, columns = model.header.party, raw_columns(model.header)
    if hasattr(rows, "columns"):
        there = list(rows.columns)
        if missing := [column for column in columns if column not in there]:
            raise DataError(
                f"party {party!r}: {len(missing)} columns of the model missing: "
                f"{', '.join(map(repr, missing))}"
            )
        if model.header.recipe is not None:
            return _by_recipe(party, model.header.recipe, rows)
        rows = np.column_stack([np.asarray(rows[column]) for column in columns])
    elif model.header.recipe is not None:
        raise DataError(
            f"party {party!r}: an array has no column names, expected a data frame of raw columns"
        )
    try:
        features = np.asarray(rows, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"party {party!r}: values that are not numbers ({error})") from error
    if features.ndim != 2 or features.shape[1] != len(columns):  # noqa: PLR2004
        raise DataError(
            f"party {party!r}: rows of shape {features.shape}, expected {len(columns)} columns"
        )
    unusable = (~np.isfinite(features)).sum(axis=0)
    bad = [f"{columns[i]!r} {unusable[i]}" for i in np.flatnonzero(unusable)]
    if bad:
        raise DataError(f"party {party!r}: NaN or infinite values in columns {', '.join(bad)}")
    return features


def _by_recipe(party: str, recipe: Recipe, rows: Any) -> FloatArray:  # noqa: ANN401
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for frames

    def column(name: str) -> pl.Series:
        values = rows[name]
        if isinstance(values, pl.Series):
            return values
        values = np.asarray(values)
        given = values.tolist() if values.dtype == object else values
        return pl.Series(name, given, strict=False)

    try:
        return recipe.apply(pl.DataFrame([column(name) for name in recipe.raw_columns]))
    except DataError as error:
        raise DataError(f"party {party!r}: {error}") from error


def load_parts(
    directory: Path,
    names: Sequence[str] = (),
    *,
    l1: float | None = None,
    modules: Mapping[str, MakeModule] | None = None,
) -> dict[str, SavedModel]:
    """The parties' parts from `<party>.safetensors`; by default of all parties in the folder.

    At a point of an L1 path files are `<party>-l1-<λ₁>.safetensors`. `modules` make custom
    networks, by party.

    Raises:
        DataError: a file that is missing or another party's, or parts of different models.
    """
    suffix = "" if l1 is None else f"-l1-{l1}"
    names = names or _parties_in(directory, suffix)
    parts = {}
    for name in names:
        path = directory / f"{name}{suffix}.safetensors"
        if not path.exists():
            hint = "`securevfl train` writes one for each party"
            if Checkpoints(directory, name).newest.exists():
                hint = (
                    "training is unfinished, and `securevfl train JOB.toml --resume` continues it"
                )
            raise DataError(f"no model file {path}: {hint}")
        parts[name] = load_model(path, (modules or {}).get(name))
        if parts[name].header.party != name:
            raise DataError(
                f"model file {path}: the part of {parts[name].header.party!r}, not of {name!r}"
            )
    require_together(parts)
    return parts


def _parties_in(directory: Path, suffix: str) -> list[str]:
    stems = sorted(path.stem for path in directory.glob(f"*{suffix}.safetensors"))
    names = [stem.removesuffix(suffix) for stem in stems if suffix or "-l1-" not in stem]
    if len(names) < 2:  # noqa: PLR2004
        raise DataError(
            f"{directory}: {len(names)} model files *{suffix}.safetensors, expected those of all "
            "parties, as `securevfl train` writes them"
        )
    return names


def require_together(parts: Mapping[str, SavedModel]) -> None:
    """Refuse parts of different jobs or rounds, and anything but one label party."""
    (first, one), *others = parts.items()
    for name, each in others:
        for what, ours, theirs in (
            ("job", one.header.job_hash[:16], each.header.job_hash[:16]),
            ("rounds", one.header.rounds, each.header.rounds),
        ):
            if ours != theirs:
                raise DataError(
                    f"parts of different models: {first!r} is of {what} {ours}, {name!r} of "
                    f"{what} {theirs}"
                )
    holders = [name for name, each in parts.items() if each.header.holds_labels]
    if len(holders) != 1:
        raise DataError(
            f"{len(holders)} of the parts {', '.join(parts)} are a label party's, expected 1"
        )


def label_party_of(parts: Mapping[str, SavedModel]) -> str:
    """The party that holds the labels."""
    return next(name for name, each in parts.items() if each.header.holds_labels)


Rows = Mapping[str, Any]
"""By party: an array of its columns in the model's order, or a polars or pandas frame with these
columns in any order, possibly among others."""


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
        """The party that holds the labels."""
        return label_party_of(self.parts)

    @property
    def classes_(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.parts[self.label_party].header.class_names or ()

    @property
    def coef_(self) -> dict[str, FloatArray]:
        """Coefficients of raw columns by party, shape (C, P) each, for linear models."""
        return {name: coefficients.T for name, (coefficients, _) in self._in_original_units.items()}

    @property
    def intercept_(self) -> FloatArray:
        """The corresponding constant, shape (C,)."""
        return np.asarray(np.sum([each for _, each in self._in_original_units.values()], axis=0))

    def decision_function(self, rows: Rows) -> FloatArray:
        """H of every row: shape (rows,) for two classes or real targets, else (rows, classes).

        Raises:
            DataError: rows that do not match the parties' columns or one another.
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
            raise ConfigError(f"loss = {self._loss!r} has no probabilities: use decision_function")
        return probabilities(self._loss, self._predictions(rows))

    def predict(self, rows: Rows) -> list[str] | FloatArray:
        """Every row's most likely class by name; for real targets as `decision_function`."""
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
            found = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise DataError(f"different numbers of rows ({found}), expected the same rows")
        given = {name: each.predict(features[name]) for name, each in self.parts.items()}
        return self.parts[self.label_party].together(given)


def load_models(
    directory: Path | str,
    *,
    l1: float | None = None,
    modules: Mapping[str, MakeModule] | None = None,
) -> JointModel:
    """The model whose parts `securevfl train` saved in a folder.

    Args:
        directory: contains `<party>.safetensors` of every party.
        l1: a point of an L1 path, instead of its last one.
        modules: by party, the function that makes its custom network.

    Raises:
        DataError: missing or unreadable parts, or parts of different models.
    """
    return JointModel(load_parts(Path(directory), l1=l1, modules=modules))
