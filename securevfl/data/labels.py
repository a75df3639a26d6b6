"""Labels as they stand in files, made class numbers or real targets, and the scale of targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import DataError

MOST_CLASSES, FEWEST_A_CLASS = 20, 5


def label_values(labels: Sequence[str]) -> NDArray[np.float64] | NDArray[np.str_]:
    """Labels of a file: numbers if all of them are, else text, shape (rows,)."""
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
    """Names of classes, and both splits' labels 0..C-1; no names where they are real targets.

    Values are numbers, or text where they are not all numbers; the `first` are training rows'. With
    `regression`, more than two different numbers are real targets.

    Raises:
        DataError: numbers that are not finite or look like targets of a regression, or a class that
            occurs among the held-out rows only.
    """
    numeric = values.dtype.kind == "f"
    named = "labels" if column is None else repr(column)
    where = f"party {party!r}: {named if column is None else f'column {named}'}"
    if numeric and (unusable := int((~np.isfinite(values.astype(np.float64))).sum())):
        raise DataError(f"{where} has {unusable} NaN or infinite labels")
    classes, codes = np.unique(values, return_inverse=True)
    if numeric and len(classes) > 2:  # noqa: PLR2004
        if regression:
            targets = values.astype(np.float64, copy=False)
            return (), [targets[:first], targets[first:]]
        _require_classes(where, classes.astype(np.float64), len(values))
    codes = codes.astype(np.int64, copy=False)
    train, test = codes[:first], codes[first:]
    if unseen := np.setdiff1d(test, train).size:
        raise DataError(
            f"party {party!r}: {unseen} classes of {named} occur among the test rows only"
        )
    return class_names(classes.tolist()), [train, test]


def class_names(classes: Sequence[float | str]) -> tuple[str, ...]:
    """What classes are called: whole numbers without decimals."""
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
    """Refuse more than two numbers with fractions among them, or too many for so few rows."""
    fractions = bool((values != np.rint(values)).any())
    if fractions or len(values) > MOST_CLASSES or rows < FEWEST_A_CLASS * len(values):
        raise DataError(
            f"{where} has {len(values)} different numbers among {rows} rows"
            f"{', fractions among them' if fractions else ''}: for regression say "
            "loss = 'squared' under [job]; classes need names that are no numbers"
        )


@dataclass(frozen=True)
class TargetScaling:
    """The label party's scale of real targets, which are `mean` + `scale`·y.

    Both numbers are its own: no other party learns them, and its model file keeps them, so that
    predictions come out in the targets' units. Inside a job y has mean 0 and mean square 1, so that
    bounds on predictions, noise and a random start mean the same whatever is predicted. Without an
    intercept the mean is 0.
    """

    mean: float
    scale: float

    @classmethod
    def fit(cls, train: FloatArray, *, centered: bool) -> Self:
        """Learn both from training targets, shape (N,), whose deviation must be finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(train.mean()) if centered else 0.0
            scale = float(np.sqrt(np.mean((train - mean) ** 2)))
        if not (np.isfinite(mean) and np.isfinite(scale) and scale > 0):
            raise DataError("targets have no finite mean and standard deviation")
        return cls(mean, scale)

    def apply(self, targets: Labels) -> FloatArray:
        """Targets in units of the job, shape (N,)."""
        scaled: FloatArray = (targets.astype(np.float64) - self.mean) / self.scale
        return scaled
