"""Made data with a known share of positives, as rare and as hard to predict as one likes.

Real data sets are few, and a limit that was settled on them may be tuned to them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit

from securevfl.arrays import FloatArray
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests

LABEL_PARTY, FEATURE_PARTY = "label", "feature"
# What the label party's own columns explain: log-odds of deviation 1 by ten of them.
OTHERS, OTHERS_SIGNAL = 10, 1.0
TEST_SHARE = 0.2
DEGREES, MOST_CATEGORIES, RAREST = 3, 8, 0.003
HALVINGS, WIDEST = 60, 30.0


@dataclass(frozen=True)
class Planted:
    """What to make.

    Attributes:
        positives: share of class 1.
        rows: N, training rows.
        columns: P of the feature party.
        signal: deviation of the log-odds that its columns explain; 0: they explain nothing.
        kind: its columns: normal, one-hot categories, or Student's t of three degrees.
    """

    positives: Annotated[float, Field(gt=0, lt=1)]
    rows: int = 20_000
    columns: int = 20
    signal: float = 0.7
    kind: Literal["gaussian", "one-hot", "heavy"] = "gaussian"


def planted(what: Planted, seed: int = 0) -> VerticalDataset:
    """Two parties whose columns explain labels by a logistic model."""
    generator = np.random.default_rng([seed, 16])
    test = round(TEST_SHARE * what.rows)
    features = _columns(what, what.rows + test, generator)
    others = generator.standard_normal((len(features), OTHERS))
    odds = what.signal * _direction(features, generator)
    odds += OTHERS_SIGNAL * _direction(others, generator)
    odds += _offset(odds, what.positives)
    labels = (generator.random(len(odds)) < expit(odds)).astype(np.int64)
    return VerticalDataset(
        name=f"{what.kind}, {what.positives:.0%} positive, signal {what.signal:g}",
        parties=(
            _table(LABEL_PARTY, others, what.rows),
            _table(FEATURE_PARTY, features, what.rows),
        ),
        label_party=LABEL_PARTY,
        train_labels=labels[: what.rows],
        test_labels=labels[what.rows :],
        classes=2,
        standardize=what.kind != "one-hot",
        row_digests=row_digests(range(what.rows), f"{what} {seed}"),
    )


def _columns(what: Planted, rows: int, generator: np.random.Generator) -> FloatArray:
    if what.kind == "gaussian":
        return generator.standard_normal((rows, what.columns))
    if what.kind == "heavy":
        return generator.standard_t(DEGREES, (rows, what.columns))
    blocks: list[FloatArray] = []
    while (left := what.columns - sum(block.shape[1] for block in blocks)) > 0:
        count = min(int(generator.integers(2, MOST_CATEGORIES + 1)), left)
        shares = np.maximum(generator.dirichlet(np.ones(count)), RAREST)
        drawn = generator.choice(count, rows, p=shares / shares.sum())
        blocks.append(np.eye(count)[drawn])
    return np.hstack(blocks)


def _direction(columns: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A random linear function of the columns, of mean 0 and deviation 1."""
    values = columns @ generator.standard_normal(columns.shape[1])
    return np.asarray((values - values.mean()) / max(values.std(), np.finfo(float).eps))


def _offset(odds: FloatArray, share: float) -> float:
    """What to add to log-odds so that the mean probability is this share, by bisection."""
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(odds + middle).mean() > share else (middle, high)
    return low


def _table(name: str, columns: FloatArray, rows: int) -> PartyTable:
    names = tuple(f"{name}_{number}" for number in range(columns.shape[1]))
    return PartyTable(name, names, columns[:rows], columns[rows:])
