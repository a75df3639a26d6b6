"""Labels in files as class numbers or real targets, and the scaling of real targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import DataError
from securevfl.shown import controls, listed

MOST_CLASSES, FEWEST_A_CLASS = 20, 5
RARE = 0.05
"""Of an even share of the rows: a class with fewer may stand for missing labels."""


def label_values(labels: Sequence[str]) -> NDArray[np.float64] | NDArray[np.str_]:
    """Labels as numbers if all of them are numbers, otherwise as text, shape (rows,)."""
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    numbers = pl.Series(labels, dtype=pl.String).cast(pl.Float64, strict=False)
    return np.array(labels, np.str_) if numbers.null_count() else numbers.to_numpy()


def encode_labels(
    values: NDArray[np.float64] | NDArray[np.str_],
    first: int,
    party: str,
    column: str | None,
    *,
    regression: bool,
) -> tuple[tuple[str, ...], list[Labels]]:
    """Class names, empty for real targets, and the labels of both splits.

    The `first` values are the training rows'. With `regression`, more than two different numbers
    are real targets.

    Raises:
        DataError: numbers that are not finite or look like regression targets, or a class that
            occurs among the test rows only.
    """
    numeric = values.dtype.kind == "f"
    named = "labels" if column is None else repr(column)
    where = f"party {party!r}: {named if column is None else f'column {named}'}"
    if numeric and (unusable := int((~np.isfinite(values.astype(np.float64))).sum())):
        raise DataError(f"{where} has {unusable} NaN or infinite labels")
    classes, codes = np.unique(values, return_inverse=True)
    if numeric and len(classes) > 2:  # noqa: PLR2004
        if regression:
            return (), [values[:first].astype(np.float64), values[first:].astype(np.float64)]
        _require_classes(where, classes.astype(np.float64), len(values))
    codes = codes.astype(np.int64, copy=False)
    train, test = codes[:first], codes[first:]
    names = class_names(classes.tolist())
    if (odd := controls(names)) is not None:
        raise DataError(f"{where} has the class {odd!r}, whose name has control characters")
    if unseen := [names[code] for code in np.setdiff1d(test, train)]:
        some = "1 class occurs" if len(unseen) == 1 else f"{len(unseen)} classes occur"
        raise DataError(
            f"party {party!r}: {named}: {some} among the test rows only: {listed(unseen)}"
        )
    return names, [train, test]


def rare_classes(names: Sequence[str], labels: Labels) -> str | None:
    """Among three classes or more, those of hardly any training row, with what to do; else None."""
    if len(names) < 3:  # noqa: PLR2004
        return None
    counts = np.bincount(labels.astype(np.int64), minlength=len(names)).tolist()
    few = max(RARE * len(labels) / len(names), FEWEST_A_CLASS)
    rare = [f"{name!r} ({rows})" for name, rows in zip(names, counts, strict=True) if rows < few]
    return (
        f"has {len(names)} classes, and of {len(labels)} training rows hardly any are of "
        f"{listed(rare)}: if that is no class, take its rows out of the file"
        if rare
        else None
    )


def class_names(classes: Sequence[float | str]) -> tuple[str, ...]:
    """Class names; whole numbers are written without decimals."""
    return tuple(
        str(label) if isinstance(label, str) or label != int(label) else f"{label:.0f}"
        for label in classes
    )


def as_compared(label: str) -> str | float:
    """A label as classes are compared: numbers by value."""
    try:
        return float(label)
    except ValueError:
        return label


def _require_classes(where: str, values: NDArray[np.float64], rows: int) -> None:
    """Refuse numbers that look like regression targets: fractions, or too many distinct values."""
    fractions = bool((values != np.rint(values)).any())
    if fractions or len(values) > MOST_CLASSES or rows < FEWEST_A_CLASS * len(values):
        raise DataError(
            f"{where} has {len(values)} different numbers among {rows} rows"
            f"{', fractions among them' if fractions else ''}: for regression set "
            "loss = 'squared' under [job]; for classification use class names, not numbers"
        )


@dataclass(frozen=True)
class TargetScaling:
    """The label party's scale of real targets: target = `mean` + `scale`·y.

    Only the label party and its model file hold these two numbers. Within a job y has mean 0 and
    mean square 1, so that bounds on predictions, noise and the random start do not depend on the
    targets' units. Without an intercept the mean is 0.
    """

    mean: float
    scale: float

    @classmethod
    def fit(cls, train: FloatArray, *, centered: bool) -> Self:
        """Fit to training targets, shape (N,), whose deviation must be finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(train.mean()) if centered else 0.0
            scale = float(np.sqrt(np.mean((train - mean) ** 2)))
        if not (np.isfinite(mean) and np.isfinite(scale) and scale > 0):
            raise DataError("targets have no finite mean and standard deviation")
        return cls(mean, scale)

    def apply(self, targets: Labels) -> FloatArray:
        """Targets in the job's units, shape (N,)."""
        return np.asarray((targets - self.mean) / self.scale, np.float64)
