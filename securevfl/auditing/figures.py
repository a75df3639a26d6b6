"""The figures that attacks are judged by, and their bars: the attacker's own models.

An attack on labels has four figures: AUC, the share of the rarest class found at 1 % false
positives, the precision of the top 1 %, and accuracy (which alone would miss leaks of a rare
class). An attack on real targets has its correlation with them. For each figure the bars are
guessing and the better of the attacker's own models on the same rows.

Training exists to predict the label from features, and it gives every party its part of the model.
A label attack therefore shows something only where it reads more than the best model of the
attacker's own columns. There are two such models:

- a logistic regression on all true labels (for targets a ridge regression), scored on the rows that
  it was fitted to. The *sum* of all gradients gives that much away whatever the sampling:
  Xᵀ(σ(H) − y) over all rows fixes Xᵀy, and the fit depends on nothing else. Scoring in sample makes
  this a high bar, but the attacker needs no generalization either;
- boosted trees, which read what is not linear in the columns, scored out of sample. In sample they
  would memorize every label, and no attack could pass that bar, although no sum of gradients gives
  the attacker such a fit. Out of sample they show what anybody may know who has seen the labels of
  other people.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import roc_curve
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.attacks import LabelEstimate
from securevfl.auditing.judging import (
    ACCURACY,
    AUC,
    CORRELATION,
    STANDARD_ERRORS,
    TOP_PRECISION,
    TRUE_POSITIVES,
    Finding,
    Metric,
)
from securevfl.data.tables import as_classes
from securevfl.errors import ConfigError
from securevfl.models import scores

BoolArray = NDArray[np.bool_]
TURNS = 50
# The top of a ranking: a share of the rows, and the least number that makes a share meaningful.
TOP_SHARE, TOP_LEAST = 0.01, 30
FALSE_POSITIVES = 0.01
AUC_OF_GUESSING = 0.5
MAX_ITERATIONS = 5000
# 40, 60 or 100 rounds of 15 or 31 leaves differ by less than 0.004 AUC on a9a, credit and icu2012.
BOOSTED = {"max_iter": 60, "max_leaf_nodes": 15, "early_stopping": False, "random_state": 0}
FOLDS, MOST_FITTED = 3, 50_000
LEAST = 1e-6  # a tree's probability may be exactly 0 or 1
PENALTIES = np.logspace(-3, 4, 15)
KEPT = 32


@dataclass(frozen=True)
class LabelScore:
    """An estimate compared with the truth."""

    rows: int  # how many rows were estimated
    accuracy: float
    auc: float  # area under the ROC curve, which a frequent class does not raise
    # Share of the rarest class among its top-ranked rows: 1 % of the rows, at least 30, but no more
    # than the class has; the mean over all orders of tied ranks
    top_precision: float
    top: int  # how many top-ranked rows that are
    # Share of the rarest class that the estimate ranks above all but 1 % of the other rows
    true_positives: float
    majority: float  # share of the most frequent class: the accuracy of guessing
    minority: float  # share of the rarest class: the top precision of guessing

    def true_positives_error(self, share: float) -> float:
        """Standard error of the ratio of two `true_positives` whose expectation is `share` > 0.

        Each counts h = share·n₁ rows of the rarest class above f = 1 % of the others. The first
        count is binomial, the second Poisson, and the share grows no faster than f. The relative
        variance of each is therefore at most (1 − share)/h + 1/f.
        """
        rare = self.minority * self.rows
        found, wrong = share * rare, FALSE_POSITIVES * (self.rows - rare)
        return sqrt(2 * ((1 - share) / found + 1 / wrong))


def score(estimate: LabelEstimate, labels: Labels) -> LabelScore:
    """Compare an estimate with all labels, shape (N,); its rows must have at least two classes."""
    truth = as_classes(labels)[estimate.rows]
    classes, counts = np.unique(truth, return_counts=True)
    if len(classes) == 1:
        raise ConfigError(f"labels of {len(truth)} rows: all are class {classes[0]}")
    rarest = int(classes[np.argmin(counts)])
    ranked_by, is_rare = _score_of_class(estimate.scores, rarest), truth == rarest
    top = min(max(int(TOP_SHARE * len(truth)), TOP_LEAST), int(is_rare.sum()))
    return LabelScore(
        rows=len(truth),
        accuracy=scores.accuracy(estimate.scores, truth),
        auc=scores.auc(estimate.scores, truth),
        top_precision=_top_precision(ranked_by, is_rare, top),
        top=top,
        true_positives=_true_positives(ranked_by, is_rare),
        majority=float(counts.max() / len(truth)),
        minority=float(counts.min() / len(truth)),
    )


def _score_of_class(values: FloatArray, number: int) -> FloatArray:
    """The margin by which a class wins or loses in each row, shape (n,)."""
    if values.shape[1] == 1:
        return values[:, 0] if number == 1 else -values[:, 0]
    others = np.delete(values, number, axis=1)
    return np.asarray(values[:, number] - others.max(axis=1))


def _top_precision(ranked_by: FloatArray, is_class: BoolArray, count: int) -> float:
    last = np.sort(ranked_by)[-count]
    above, tied = ranked_by > last, ranked_by == last
    hits = is_class[above].sum() + (count - above.sum()) * is_class[tied].mean()
    return float(hits / count)


def _true_positives(ranked_by: FloatArray, is_class: BoolArray) -> float:
    """The ROC curve at 1 % false positives, interpolated linearly between tied ranks."""
    false, true, _ = roc_curve(is_class, ranked_by, drop_intermediate=False)
    return float(np.interp(FALSE_POSITIVES, false, true))


def gram_error(factor: FloatArray, features: FloatArray) -> float:
    """‖FFᵀ − XXᵀ‖/‖XXᵀ‖ in Frobenius norms, without N × N matrices; 1 for F = 0."""
    both = np.hstack([factor, features])
    triangle: FloatArray = np.linalg.qr(both)[1]
    ours, true = triangle[:, : factor.shape[1]], triangle[:, factor.shape[1] :]
    difference = ours @ ours.T - true @ true.T
    return float(np.linalg.norm(difference) / np.linalg.norm(true @ true.T))


def feature_error(estimate: FloatArray, features: FloatArray, known: IntArray) -> float:
    """‖X̂ − X‖/‖X‖ over the unknown rows; 1 for guessing zero."""
    unknown = np.setdiff1d(np.arange(len(features)), known)
    difference = np.linalg.norm(estimate[unknown] - features[unknown])
    return float(difference / np.linalg.norm(features[unknown]))


def matched_correlation(found: FloatArray, features: FloatArray) -> float:
    """Mean over the columns of X of |correlation| with the found column matched to each.

    Constant columns are ignored; a column without a match counts as 0. A median would fall to 0
    where a factor lacks half of the dimensions, as that of a job of few rounds does.
    """
    varied = features[:, features.std(axis=0) > 0]
    ours = found[:, found.std(axis=0) > 0]
    correlations = np.abs(np.corrcoef(ours.T, varied.T)[: ours.shape[1], ours.shape[1] :])
    places = linear_sum_assignment(-correlations)
    best = np.zeros(varied.shape[1])
    best[places[1]] = correlations[places]
    return float(best.mean())


def rotated_correlations(factor: FloatArray, features: FloatArray, seed: int) -> FloatArray:
    """`matched_correlation` of F under random rotations, shape (`TURNS`,): guessing."""
    generator = np.random.default_rng([seed, 4])
    turns = [
        np.linalg.qr(generator.standard_normal((factor.shape[1], factor.shape[1])))[0]
        for _ in range(TURNS)
    ]
    return np.array([matched_correlation(factor @ turn, features) for turn in turns])


def recall_and_precision(found: BoolArray, features: FloatArray) -> tuple[float, float]:
    """Recall and precision of found 0/1 columns, a column and its complement being the same."""
    true = {_up_to_complement(column) for column in binary_ones(features).T}
    ours = {_up_to_complement(column) for column in found.T}
    hits = len(true & ours)
    return hits / max(len(true), 1), hits / max(len(ours), 1)


def binary_ones(features: FloatArray) -> BoolArray:
    """Where columns of two values have the larger one, shape (N, number of them)."""
    two = features[:, [len(np.unique(column)) == 2 for column in features.T]]  # noqa: PLR2004
    return np.asarray(two > two.min(axis=0, initial=np.inf))


def _up_to_complement(ones: BoolArray) -> bytes:
    return min(ones.tobytes(), (~ones).tobytes())


def shared_values(found: Iterable[int], truth: Iterable[int]) -> float:
    """The share of places at which two sequences agree."""
    return float(np.mean([one == other for one, other in zip(found, truth, strict=True)]))


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A model of the attacker's own columns."""

    estimate: LabelEstimate
    score: LabelScore
    probabilities: FloatArray  # of each row, shape (N, 1) for class 1 or (N, C)

    def score_on(self, rows: IntArray, labels: Labels) -> LabelScore:
        """The score on some of the rows."""
        return score(LabelEstimate(rows, self.estimate.scores[rows]), labels)


def best(models: Sequence[OwnModel]) -> OwnModel:
    """The model of the largest AUC, from which an attack starts."""
    return max(models, key=lambda model: model.score.auc)


# The curves of an audit need the models of the same columns and rows at every batch size.
_known: dict[bytes, tuple[OwnModel, ...]] = {}


def own_models(inputs: FloatArray, labels: Labels) -> tuple[OwnModel, ...]:
    """The logistic regression and, unless a class is too rare, the boosted trees.

    Inputs are X, shape (N, P), scaled as in training.
    """
    labels = as_classes(labels)
    digest = hashlib.sha256(repr(inputs.shape).encode())
    digest.update(np.ascontiguousarray(inputs).data)
    digest.update(np.ascontiguousarray(labels).data)
    key = digest.digest()
    if key not in _known:
        while len(_known) >= KEPT:
            _known.pop(next(iter(_known)))
        boosted = boosted_model(inputs, labels)
        logistic = own_model(inputs, labels)
        _known[key] = (logistic,) if boosted is None else (logistic, boosted)
    return _known[key]


def own_model(inputs: FloatArray, labels: Labels) -> OwnModel:
    """Fit scikit-learn's logistic regression to the attacker's own columns; see `own_models`."""
    labels = as_classes(labels)
    model = LogisticRegression(max_iter=MAX_ITERATIONS).fit(inputs, labels)
    decision = model.decision_function(inputs)
    if decision.ndim == 1:
        decision = decision[:, None]
    return _model(decision, model.predict_proba(inputs), labels)


def boosted_model(inputs: FloatArray, labels: Labels) -> OwnModel | None:
    """Fit scikit-learn's boosted trees in three folds, each predicted by trees fitted to the rest.

    None if a class has too few rows for that.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < FOLDS:
        return None
    probabilities = np.zeros((len(labels), len(classes)))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for fitted, predicted in folds.split(inputs, labels):
        some = _spread(fitted, labels)
        model = HistGradientBoostingClassifier(**BOOSTED).fit(inputs[some], labels[some])
        probabilities[predicted] = model.predict_proba(inputs[predicted])
    logs = np.log(np.clip(probabilities, LEAST, 1 - LEAST))
    decision = logs[:, 1:] - logs[:, :1] if len(classes) == 2 else logs  # noqa: PLR2004
    return _model(decision, probabilities, labels)


def features_alone(own: FloatArray, features: FloatArray, known: IntArray) -> FloatArray:
    """A peer's columns, shape (N, P), regressed on one's own, (N, Q), over the known rows.

    Ridge regression, as trees need more rows than an attacker knows; zeros for fewer than two rows.
    """
    if len(known) < 2:  # noqa: PLR2004
        return np.zeros_like(features)
    model = RidgeCV(alphas=PENALTIES).fit(own[known], features[known])
    return np.asarray(model.predict(own)).reshape(features.shape)


def _spread(rows: IntArray, labels: Labels) -> IntArray:
    """At most `MOST_FITTED` of the rows, spread evenly over the classes."""
    if len(rows) <= MOST_FITTED:
        return rows
    by_label = rows[np.argsort(labels[rows], kind="stable")]
    return np.asarray(by_label[np.linspace(0, len(rows) - 1, MOST_FITTED).astype(np.int64)])


def _model(decision: FloatArray, probabilities: FloatArray, labels: Labels) -> OwnModel:
    estimate = LabelEstimate(np.arange(len(labels)), decision)
    binary = decision.shape[1] == 1
    return OwnModel(
        estimate, score(estimate, labels), probabilities[:, 1:] if binary else probabilities
    )


def label_finding(
    estimate: LabelEstimate, labels: Labels, alone: Sequence[OwnModel], detail: Mapping[str, object]
) -> Finding:
    """The figures of an estimate, AUC first, with the attacker's own models as bars."""
    rows, found = estimate.rows, score(estimate, labels)
    own = [model.score_on(rows, labels) for model in alone]
    recalled, precise, right, ranked = (
        max(getattr(each, name) for each in own)
        for name in ("true_positives", "top_precision", "accuracy", "auc")
    )
    first = next(model for model, each in zip(alone, own, strict=True) if each.auc == ranked)
    differs = auc_difference_error(
        estimate.scores, first.estimate.scores[rows], as_classes(labels)[rows]
    )
    guessed = max(found.minority, precise)
    few = sqrt(2 * (1 - guessed) / (guessed * found.top))
    figures = (
        Finding(AUC, found.auc, AUC_OF_GUESSING, ranked, error=capped(differs, ranked)),
        Finding(
            TRUE_POSITIVES,
            found.true_positives,
            FALSE_POSITIVES,
            recalled,
            error=found.true_positives_error(max(recalled, FALSE_POSITIVES)),
        ),
        Finding(TOP_PRECISION, found.top_precision, found.minority, precise, error=few),
        accuracy_finding(ACCURACY, found.accuracy, found.majority, right, found.rows),
    )
    by_name: dict[str, Any] = {
        each.metric.name: {
            "value": each.value,
            "chance": each.chance,
            "model_alone": each.model_alone,
            "margin": each.margin,
        }
        for each in figures
    }
    return replace(figures[0], beside=figures[1:], detail={**by_name, "rows": found.rows, **detail})


def auc_difference_error(one: FloatArray, other: FloatArray, truth: IntArray) -> float:
    """Standard error of the difference of two AUC of the rarest class, on the same rows.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988).
    """
    classes, counts = np.unique(truth, return_counts=True)
    rarest, variance = int(classes[np.argmin(counts)]), 0.0
    is_rare = truth == rarest
    first, second = (
        scores.pair_shares(_score_of_class(each, rarest), is_rare) for each in (one, other)
    )
    for rows in (is_rare, ~is_rare):
        variance += float(np.var(first[rows] - second[rows])) / rows.sum()
    return sqrt(variance)


def accuracy_finding(
    metric: Metric,
    value: float,
    majority: float,
    own: float,
    rows: int,
    **other: Any,  # noqa: ANN401
) -> Finding:
    """An accuracy, whose error counts rows on which one of the two models errs (McNemar)."""
    bar = max(majority, own)
    error = capped(sqrt((2 - value - bar) / rows), bar)
    return Finding(metric, value, majority, own, error=error, **other)


def capped(error: float, bar: float) -> float:
    """An error that leaves half of the room above a bar: who reads everything was not lucky."""
    return min(error, (1 - bar) / (2 * STANDARD_ERRORS))


def own_estimate(inputs: FloatArray, targets: Labels) -> FloatArray:
    """The ridge regression's prediction of all targets, shape (N, 1), from one's own columns."""
    model = RidgeCV(alphas=PENALTIES).fit(inputs, targets)
    return np.asarray(model.predict(inputs)).reshape(-1, 1)


def target_finding(
    estimate: FloatArray, inputs: FloatArray, targets: Labels, detail: Mapping[str, object]
) -> Finding:
    """The correlation of an estimate, shape (N,), with the targets, as in `label_finding`."""
    alone = [own_estimate(inputs, targets)[:, 0]]
    if len(targets) <= MOST_FITTED:
        trees = HistGradientBoostingRegressor(**BOOSTED)
        alone.append(cross_val_predict(trees, inputs, targets, cv=FOLDS))
    bar = max(_correlation(each, targets) for each in alone)
    found = _correlation(estimate, targets)
    error = (1 - bar**2) * sqrt(2 / len(targets))  # of two correlations as large as the bar
    return Finding(CORRELATION, found, 0.0, bar, error=error, detail=dict(detail))


def _correlation(estimate: FloatArray, targets: Labels) -> float:
    if np.ptp(estimate) == 0:
        return 0.0
    return float(np.corrcoef(estimate, targets)[0, 1])
