"""How well scores rank two classes: average precision, intervals of the AUC, and cut-offs.

*Average precision*: Σ (R_n − R_{n−1})·P_n over the distinct scores from the highest down, with
precision P_n and recall R_n of the rows from the n-th score up, as in scikit-learn.

*Intervals* hold 95 % of the AUC over 1,000 bootstrap resamples of the rows: as many of either class
as there are, drawn with replacement, so shares of classes are taken as given. They say how far the
AUC of this model would move with other people of the same kind, not how far with another training.
The difference of two models is that on the same resamples. The draws are the same in every run.
Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13;
docs/decisions/0069-weights-and-intervals.md.
"""

from collections.abc import Callable, Sequence

import numpy as np
from typing_extensions import TypedDict

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.models.scores import auc
from securevfl.threads import by_block

RESAMPLES, AT_ONCE, TAILS = 1000, 100, (0.025, 0.975)
FEWEST_ROWS = 10
"""Of a class: with fewer, resamples are too alike for an interval."""
Interval = tuple[float, float]


class Ranking(TypedDict):
    """How well a model ranks rows.

    Intervals are None where a class has fewer than ten rows, or all resamples have the same AUC, as
    where every pair is in order.

    Attributes:
        rows: scored, and `positives` how many of them are of class 1.
        average_precision: of class 1; scores by chance have the share of positives.
        auc_interval: 95 % of the AUC.
        auc_gain: the AUC minus that of another model of the same rows; None without another.
        auc_gain_interval: 95 % of this difference.
    """

    rows: int
    positives: int
    average_precision: float
    auc_interval: Interval | None
    auc_gain: float | None
    auc_gain_interval: Interval | None


def ranking(scores: FloatArray, labels: Labels, beside: FloatArray | None = None) -> Ranking:
    """The ranking by scores, shape (S,), of rows of both classes; `beside` are another model's."""
    models = [scores] if beside is None else [scores, beside]
    areas = [auc(each[:, None], labels) for each in models]
    positives = int(np.count_nonzero(labels))
    found: Ranking = {
        "rows": len(labels),
        "positives": positives,
        "average_precision": Cutoffs(scores, labels).average_precision,
        "auc_interval": None,
        "auc_gain": None if beside is None else areas[0] - areas[1],
        "auc_gain_interval": None,
    }
    if min(positives, len(labels) - positives) >= FEWEST_ROWS:
        drawn = resampled_aucs(models, labels)
        found["auc_interval"] = interval(drawn[:, 0])
        if beside is not None:
            found["auc_gain_interval"] = interval(drawn[:, 0] - drawn[:, 1])
    return found


def interval(values: FloatArray) -> Interval | None:
    """95 % of a statistic's resamples; None if all are the same."""
    low, high = np.quantile(values, TAILS).tolist()
    return (low, high) if low < high else None


def resampled_aucs(models: Sequence[FloatArray], labels: Labels) -> FloatArray:
    """The AUCs, shape (1000, models), of scores of the same resampled rows."""
    first = np.argsort(models[0])  # in this order most of what is read below is in sequence
    ones, zeros = (first[labels[first] == each] for each in (1, 0))
    places: list[tuple[IntArray, ...]] = []
    for scores in models:
        order = np.argsort(scores[zeros], kind="stable")
        ordered = scores[zeros][order]
        places.append(
            (order, *(np.searchsorted(ordered, scores[ones], s) for s in ("left", "right")))
        )

    def aucs(counts: Sequence[IntArray]) -> FloatArray:
        own, others = counts
        found, below = np.empty(len(models)), np.zeros(len(zeros) + 1, np.int64)
        for model, (order, left, right) in enumerate(places):
            np.cumsum(others[order], out=below[1:])
            found[model] = own @ (below[left] + below[right])
        return found / (2 * len(ones) * len(zeros))

    return resampled(aucs, (len(ones), len(zeros)))


def resampled(
    statistic: Callable[[Sequence[IntArray]], FloatArray], sizes: Sequence[int]
) -> FloatArray:
    """A statistic, shape (n,), of 1,000 resamples, shape (1000, n).

    It is given how often each row of each group is drawn, as many of a group as there are.
    """

    def some(block: slice) -> FloatArray:
        chance = np.random.default_rng(block.start)  # whichever thread it is
        draws = (
            [np.bincount(chance.integers(size, size=size), minlength=size) for size in sizes]
            for _ in range(block.start, block.stop)
        )
        return np.array([statistic(counts) for counts in draws])

    return np.concatenate(by_block(some, RESAMPLES, AT_ONCE))


class Cutoff(TypedDict):
    """Rows with the cut-off as a score or more are flagged as class 1; None flags none.

    The other figures are of the rows it was chosen on: the share flagged, precision (None if none
    is), recall, and the mean cost of a row where costs were given.
    """

    rule: str
    cutoff: float | None
    rows: int
    flagged: float
    precision: float | None
    recall: float
    cost: float | None


class Cutoffs:
    """Every cut-off of some rows' scores, shape (S,), given their classes, shape (S,)."""

    def __init__(self, scores: FloatArray, labels: Labels) -> None:
        order = np.argsort(-scores, kind="stable")
        ranked, hits = scores[order], np.cumsum(labels[order] == 1)
        last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        self._rows, self._positives = len(scores), int(hits[-1])
        # From none flagged to all.
        self._flagged, self._hits = np.append(0, last + 1), np.append(0, hits[last])
        self._distinct = np.append(ranked[last], -np.inf)

    @property
    def average_precision(self) -> float:
        """See the module."""
        precisions = self._hits[1:] / self._flagged[1:]
        return float(np.diff(self._hits) @ precisions / self._positives)

    def by_share(self, share: float) -> Cutoff:
        """Flags as many rows as possible, but no more than this share of all."""
        rows = share * self._rows * (1 + 1e-12)  # 29 % of 100 rows are 29, not 28.999…
        most = int(np.searchsorted(self._flagged, rows, "right")) - 1
        return self._at(most, f"at most {100 * share:.3g} % flagged", None)

    def by_cost(self, false_positive: float, false_negative: float) -> Cutoff:
        """Flags the fewest rows of those with the lowest cost."""
        wrong, missed = self._flagged - self._hits, self._positives - self._hits
        costs = (false_positive * wrong + false_negative * missed) / self._rows
        best, rule = int(costs.argmin()), f"lowest cost at {false_positive:g} : {false_negative:g}"
        return self._at(best, rule, float(costs[best]))

    def _at(self, place: int, rule: str, cost: float | None) -> Cutoff:
        flagged, hits = int(self._flagged[place]), int(self._hits[place])
        return {
            "rule": rule,
            "cutoff": _between(*self._distinct[place - 1 : place + 1]) if place else None,
            "rows": self._rows,
            "flagged": flagged / self._rows,
            "precision": hits / flagged if flagged else None,
            "recall": hits / self._positives,
            "cost": cost,
        }


def _between(high: float, low: float) -> float:
    """The number of the fewest digits near the middle that is above `low`, at most `high`."""
    for digits in range(1, 18):
        found = float(f"{high / 2 + low / 2:.{digits}g}")
        if low < found <= high:
            return found
    return float(high)
