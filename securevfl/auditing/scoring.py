"""How near an estimate comes to the truth, which the auditor alone has."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.attacks import LabelEstimate
from securevfl.data.tables import as_classes
from securevfl.errors import ConfigError
from securevfl.models import scores

BoolArray = NDArray[np.bool_]
TURNS = 5
# The top of a ranking: a share of the rows, and no fewer than a share can be told from.
TOP_SHARE, TOP_LEAST = 0.01, 30
FALSE_POSITIVES = 0.01


@dataclass(frozen=True)
class LabelScore:
    """An estimate against the truth; only the auditor has it."""

    rows: int  # how many rows were estimated
    accuracy: float  # share of them read rightly
    auc: float  # area under the ROC curve, which a majority class does not flatter
    # Share of the rarest class among the 1 % of the rows, 30 at least but no more than it has, that
    # the estimate ranks highest for it; where ranks are shared, the mean over their orders
    top_precision: float
    # Share of the rarest class that the estimate ranks above all but 1 % of the other rows: what is
    # found where few may be accused wrongly
    true_positives: float
    majority: float  # share of the most frequent class, the accuracy of guessing it
    minority: float  # share of the rarest class, the top precision of guessing

    def true_positives_error(self, share: float) -> float:
        """Standard error of the ratio of two such shares, where both are really this one, > 0.

        Either is a count of h = share·n₁ rows of the rarest class beside f = 1 % of the others. The
        first is binomial, the second Poisson, and the share grows no faster than f does, so that
        the relative variance of one is at most (1 − share)/h + 1/f.
        """
        rare = self.minority * self.rows
        found, wrong = share * rare, FALSE_POSITIVES * (self.rows - rare)
        return sqrt(2 * ((1 - share) / found + 1 / wrong))


def score(estimate: LabelEstimate, labels: Labels) -> LabelScore:
    """Compare an estimate with all labels, shape (N,), unless its rows are of one class alone."""
    truth = as_classes(labels)[estimate.rows]
    classes, counts = np.unique(truth, return_counts=True)
    if len(classes) == 1:
        raise ConfigError(f"labels of {len(truth)} rows: all of class {classes[0]}")
    rarest = int(classes[np.argmin(counts)])
    ranked_by, is_rare = _score_of_class(estimate.scores, rarest), truth == rarest
    return LabelScore(
        rows=len(truth),
        accuracy=scores.accuracy(estimate.scores, truth),
        auc=scores.auc(estimate.scores, truth),
        top_precision=_top_precision(ranked_by, is_rare),
        true_positives=_true_positives(ranked_by, is_rare),
        majority=float(counts.max() / len(truth)),
        minority=float(counts.min() / len(truth)),
    )


def _score_of_class(values: FloatArray, number: int) -> FloatArray:
    """What ranks rows by one class, shape (n,): its score over the best other one."""
    if values.shape[1] == 1:
        return values[:, 0] if number == 1 else -values[:, 0]
    others = np.delete(values, number, axis=1)
    return np.asarray(values[:, number] - others.max(axis=1))


def _top_precision(ranked_by: FloatArray, is_class: BoolArray) -> float:
    count = min(max(int(TOP_SHARE * len(ranked_by)), TOP_LEAST), int(is_class.sum()))
    last = np.sort(ranked_by)[-count]
    above, tied = ranked_by > last, ranked_by == last
    hits = is_class[above].sum() + (count - above.sum()) * is_class[tied].mean()
    return float(hits / count)


def _true_positives(ranked_by: FloatArray, is_class: BoolArray) -> float:
    """On the ROC curve at 1 % false positives, on the chord where ranks are shared."""
    others = np.sort(ranked_by[~is_class])[::-1]
    allowed = FALSE_POSITIVES * len(others)
    last = others[min(int(allowed), len(others) - 1)]
    own = ranked_by[is_class]
    tied = np.mean(others == last) * len(others)
    share = (allowed - np.sum(others > last)) / tied
    return float(np.mean(own > last) + share * np.mean(own == last))


def gram_error(factor: FloatArray, features: FloatArray) -> float:
    """‖FFᵀ − XXᵀ‖/‖XXᵀ‖ in Frobenius norms, without N × N matrices; 1 for F = 0."""
    both = np.hstack([factor, features])
    triangle: FloatArray = np.linalg.qr(both)[1]
    ours, true = triangle[:, : factor.shape[1]], triangle[:, factor.shape[1] :]
    difference = ours @ ours.T - true @ true.T
    return float(np.linalg.norm(difference) / np.linalg.norm(true @ true.T))


def feature_error(estimate: FloatArray, features: FloatArray, known: IntArray) -> float:
    """‖X̂ − X‖/‖X‖ over the rows that are not known; 1 for guessing zero."""
    unknown = np.setdiff1d(np.arange(len(features)), known)
    difference = np.linalg.norm(estimate[unknown] - features[unknown])
    return float(difference / np.linalg.norm(features[unknown]))


def matched_correlation(found: FloatArray, features: FloatArray) -> float:
    """Median over the columns of X of |correlation| with what was matched to each, one to one.

    Constant columns do not count; what cannot be matched counts as 0.
    """
    varied = features[:, features.std(axis=0) > 0]
    ours = found[:, found.std(axis=0) > 0]
    correlations = np.abs(np.corrcoef(ours.T, varied.T)[: ours.shape[1], ours.shape[1] :])
    places = linear_sum_assignment(-correlations)
    best = np.zeros(varied.shape[1])
    best[places[1]] = correlations[places]
    return float(np.median(best))


def rotated_correlation(factor: FloatArray, features: FloatArray, seed: int) -> float:
    """The same for F turned at random, without any search: mean over a few turns."""
    generator = np.random.default_rng([seed, 4])
    turns = [
        np.linalg.qr(generator.standard_normal((factor.shape[1], factor.shape[1])))[0]
        for _ in range(TURNS)
    ]
    return float(np.mean([matched_correlation(factor @ turn, features) for turn in turns]))


def recall_and_precision(found: BoolArray, features: FloatArray) -> tuple[float, float]:
    """Shares of the true 0/1 columns that were found, and of what was found that is one.

    A column and its complement are the same; constant columns are none.
    """
    true = {_name(column > 0) for column in features.T if _is_binary(column)}
    ours = {_name(column) for column in found.T}
    hits = len(true & ours)
    return hits / max(len(true), 1), hits / max(len(ours), 1)


def binary_ones(features: FloatArray) -> BoolArray:
    """Where the 0/1 columns are 1, shape (N, number of them)."""
    return np.asarray(features[:, [_is_binary(column) for column in features.T]] > 0)


def _is_binary(column: FloatArray) -> bool:
    return len(np.unique(column)) == 2 and set(np.unique(column)) <= {0.0, 1.0}  # noqa: PLR2004


def _name(ones: BoolArray) -> bytes:
    return min(ones.tobytes(), (~ones).tobytes())


def shared_values(found: Iterable[int], truth: Iterable[int]) -> float:
    """The share of values that are the same, place by place."""
    return float(np.mean([one == other for one, other in zip(found, truth, strict=True)]))
