"""Losses f(H, y) of the summed predictions H = Σ_k H_k, through their residuals d = ∂f/∂H.

Predictions have shape (S, C): C = 1 output for two classes, otherwise one output per class.
Labels y are class numbers, shape (S,), or real targets of mean 0 and deviation 1; where rows have
weights, (y, w), shape (S, 2). Hinge losses use t = 2y − 1. `curvature` is the bound c on f″ with
which d⁰ + c·(H − H⁰) is the gradient of a majorizer for one party's block.

A loss yields probabilities if the H that minimizes its expected value is a function of P(y = 1):
σ⁻¹(p) for logistic loss, p for squared loss, 4(p − ½) for taylor-logistic, 2p − 1 for squared
hinge. Values outside [0, 1] are clipped. The hinge loss yields the sign of p − ½ only.
Source: Zhang, Annals of Statistics 32 (2004).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from typing import Literal

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.errors import ConfigError
from securevfl.threads import by_block

BLOCK = 1 << 16
"""Rows a block."""


class Loss(ABC):
    """A loss of summed predictions.

    Attributes:
        name: in job files.
        outputs: C, the number of predictions per row.
        curvature: bound on f″; infinite if there is none.
        label_change: the largest change of one output's d when the label changes at the same H.
        middle: the H at which two classes are equally likely.
        weighs_labels: whether d is not s(H) − y, so that H decides how much of a label d shows.
    """

    name: str
    outputs: int = 1
    curvature: float
    label_change: float
    middle: float = 0.0
    weighs_labels: bool = False

    def residual_bound(self, largest: float) -> float:
        """Bound on |d| while |H| ≤ `largest`."""
        del largest
        return 1.0

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """∂f/∂H per row, shape (S, C)."""
        if len(labels) <= BLOCK:
            return self._residuals(predictions, labels)
        found: FloatArray = np.empty(predictions.shape)

        def fill(rows: slice) -> None:
            found[rows] = self._residuals(predictions[rows], labels[rows])

        by_block(fill, len(labels), BLOCK)
        return found

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean loss."""
        sums = by_block(
            lambda rows: self._losses(predictions[rows], labels[rows]).sum(), len(labels), BLOCK
        )
        # `mean` would dominate the time of a small batch.
        return float(sum(sums) / len(labels))

    @abstractmethod
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """The residuals of a block of rows."""

    @abstractmethod
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """The loss of each row of a block, shape (S, 1)."""

    @abstractmethod
    def constant(self, labels: Labels) -> FloatArray:
        """The best constant prediction, shape (C,)."""


class CurvedLoss(Loss):
    """A loss of one output whose f″ is a function of its residual."""

    @abstractmethod
    def second_derivative(self, residuals: FloatArray) -> FloatArray:
        """f″ of every row with residual d, shape (S, 1)."""


class Logistic(CurvedLoss):
    """f = log(1 + e^H) − yH for y ∈ {0, 1}; d = σ(H) − y, f″ = |d|(1 − |d|) ≤ ¼."""

    name, curvature, label_change = "logistic", 0.25, 1.0

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        residuals: FloatArray = sigmoid(predictions) - labels[:, None]
        return residuals

    @override
    def second_derivative(self, residuals: FloatArray) -> FloatArray:
        distances: FloatArray = np.abs(residuals)
        return distances * (1.0 - distances)

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        # log(1 + e^H) = max(H, 0) + log(1 + e^-|H|), where max(H, 0) - y·H is often 0, and not with
        # `logaddexp`, which takes three times as long.
        losses: FloatArray = np.log1p(np.exp(-np.abs(predictions)))
        losses += np.maximum(predictions, 0.0) - labels[:, None] * predictions
        return losses

    @override
    def constant(self, labels: Labels) -> FloatArray:
        share = float(np.mean(labels))
        return np.array([np.log(share / (1 - share))])


class QuadraticLoss(CurvedLoss):
    """A loss whose residuals are affine in H: d = curvature·H + label_part(y)."""

    label_bound: float

    @abstractmethod
    def label_part(self, labels: Labels) -> FloatArray:
        """The part of d that depends on the labels, shape (S, 1)."""

    @override
    def residual_bound(self, largest: float) -> float:
        return self.curvature * largest + self.label_bound

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        return self.curvature * predictions + self.label_part(labels)

    @override
    def second_derivative(self, residuals: FloatArray) -> FloatArray:
        return np.full_like(residuals, self.curvature)

    @override
    def constant(self, labels: Labels) -> FloatArray:
        mean: FloatArray = -self.label_part(labels).mean(axis=0) / self.curvature
        return mean


class Squared(QuadraticLoss):
    """f = ½(H − y)² for y ∈ {0, 1}; d = H − y, f″ = 1."""

    name, curvature, label_change = "squared", 1.0, 1.0
    label_bound, middle = 1.0, 0.5

    @override
    def label_part(self, labels: Labels) -> FloatArray:
        return -labels[:, None].astype(np.float64)

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        return np.asarray(0.5 * (predictions - labels[:, None]) ** 2)


class SquaredOfTargets(Squared):
    """f = ½(H − y)² for real y that the label party has standardized over its N training rows.

    The squares sum to N, so |y| ≤ √N for all targets: a bound that reveals nothing about them. The
    change of d with one target has no better bound.
    """

    label_change = inf

    def __init__(self, rows: int) -> None:
        self.label_bound = sqrt(rows)


class TaylorLogistic(QuadraticLoss):
    """Second-order Taylor expansion of the logistic loss at H = 0.

    f = log 2 − (y − ½)H + ⅛H²; d = ¼H − y + ½.
    """

    name, curvature, label_change, label_bound = "taylor-logistic", 0.25, 1.0, 0.5

    @override
    def label_part(self, labels: Labels) -> FloatArray:
        return 0.5 - labels[:, None].astype(np.float64)

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        losses = np.log(2.0) - 0.5 * _signs(labels) * predictions + 0.125 * predictions**2
        return np.asarray(losses)


class SquaredHinge(CurvedLoss):
    """f = max(0, 1 − tH)² for t = 2y − 1; d = −2t·max(0, 1 − tH), f″ = 2 where d is not 0.

    The loss of LIBLINEAR's linear support vector machines, and of the second note on FedBCD, which
    uses it for L1 block descent.
    """

    name, curvature, label_change, weighs_labels = "squared-hinge", 2.0, inf, True

    @override
    def residual_bound(self, largest: float) -> float:
        return 2.0 * (1.0 + largest)

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        signs = _signs(labels)
        return -2.0 * signs * np.maximum(0.0, 1.0 - signs * predictions)

    @override
    def second_derivative(self, residuals: FloatArray) -> FloatArray:
        return np.where(residuals != 0, self.curvature, 0.0)

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        return np.asarray(np.maximum(0.0, 1.0 - _signs(labels) * predictions) ** 2)

    @override
    def constant(self, labels: Labels) -> FloatArray:
        mean: FloatArray = _signs(labels).mean(axis=0)  # where residuals sum to zero
        return mean


class Hinge(Loss):
    """f = max(0, 1 − tH) for t = 2y − 1; d = −t where tH < 1, else 0: a subgradient.

    Its kink at tH = 1 has no bounded curvature: no quadratic majorizes it.
    """

    name, curvature, label_change, weighs_labels = "hinge", inf, 2.0, True

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        signs = _signs(labels)
        residuals: FloatArray = np.where(signs * predictions < 1, -signs, 0.0)
        return residuals

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        return np.asarray(np.maximum(0.0, 1.0 - _signs(labels) * predictions))

    @override
    def constant(self, labels: Labels) -> FloatArray:
        return np.where(_signs(labels).mean(axis=0) >= 0, 1.0, -1.0)  # the t of most rows


class Multinomial(Loss):
    """Softmax cross-entropy over C > 2 classes; d = softmax(H) − onehot(y).

    f″ = diag(p) − ppᵀ has no eigenvalue above ½ (Böhning 1992).
    """

    name, curvature, label_change = "multinomial", 0.5, 1.0

    def __init__(self, classes: int) -> None:
        self.outputs = classes

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        residuals = softmax(predictions)
        residuals[np.arange(len(labels)), labels.astype(np.int64)] -= 1.0
        return residuals

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        shifted = predictions - predictions.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(labels)), labels.astype(np.int64)]
        return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - chosen)[:, None]

    @override
    def constant(self, labels: Labels) -> FloatArray:
        # Logarithms of class frequencies; an absent class gets a very small one.
        counts = np.bincount(labels.astype(np.int64), minlength=self.outputs)
        shares: FloatArray = np.log(np.maximum(counts, 1e-9) / len(labels))
        return shares


class Weighted(Loss):
    """A loss f(H, y) of class numbers, times the weight w of a row, of labels (y, w).

    `least` and `most` are what all parties know of the range of weights; `least` may be a mean. The
    curvature has it, and where that makes steps too long they are taken back.
    """

    weighs_labels, label_change = True, inf

    def __init__(self, loss: Loss, least: float = 1.0, most: float = inf) -> None:
        self.name, self.outputs, self.middle = loss.name, loss.outputs, loss.middle
        self.curvature, self._loss = least * loss.curvature, loss
        self.least, self._most = least, most

    @override
    def residual_bound(self, largest: float) -> float:
        return self._most * self._loss.residual_bound(largest)

    @override
    def _residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        classes, weights = labels.T
        return np.asarray(weights[:, None] * self._loss.residuals(predictions, classes))

    @override
    def _losses(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        classes, weights = labels.T
        return np.asarray(weights[:, None] * self._loss._losses(predictions, classes))

    @override
    def constant(self, labels: Labels) -> FloatArray:
        classes, weights = labels.T
        counts = np.bincount(classes.astype(int), weights, minlength=max(self.outputs, 2))
        logs: FloatArray = np.log(np.maximum(counts / counts.sum(), 1e-9))
        return logs if self.outputs > 1 else logs[1:] - logs[:1]


def with_weights(
    labels: Labels,
    names: Sequence[str],
    given: Literal["balanced"] | Mapping[str, float] | None,
    of_rows: FloatArray | None,
) -> Labels:
    """Labels with the weights of their rows, shape (N, 2): those of classes times those of rows.

    As in scikit-learn: weights are taken as they are, and "balanced" gives each class of C the sum
    that a share of 1/C has. Labels without any weights are returned as they are.

    Raises:
        ConfigError: weights of other classes than those of these names.
    """
    if given is None and of_rows is None:
        return labels
    weights, codes = np.ones(len(labels)) if of_rows is None else of_rows, labels.astype(int)
    if given == "balanced":
        sums = np.bincount(codes, weights)
        weights = weights * (weights.sum() / (len(names) * sums[codes]))
    elif given is not None:
        if set(given) != set(names):
            told = f"weights of {', '.join(given)}, expected one of each class: {', '.join(names)}"
            raise ConfigError(f"class_weight: {told}")
        weights = weights * np.array([given[name] for name in names])[codes]
    return np.column_stack([labels, weights])


def loss_for(name: str, classes: int, rows: int = 0) -> Loss:
    """The loss of a job; "logistic" means multinomial for more than two classes.

    With 0 classes, labels are N = `rows` real targets. A ConfigError if the loss does not support
    such labels.
    """
    if classes == 0:
        if name != Squared.name:
            raise ConfigError(
                f"loss = {name!r} needs classes, and the labels are real numbers: set loss = "
                "'squared' for regression"
            )
        return SquaredOfTargets(rows)
    if name in {"logistic", "multinomial"}:
        return Logistic() if classes == 2 else Multinomial(classes)  # noqa: PLR2004
    if classes != 2:  # noqa: PLR2004
        raise ConfigError(f"loss = {name!r} needs two classes, the data have {classes}")
    for loss in (SquaredHinge(), Hinge()):
        if loss.name == name:
            return loss
    return quadratic_loss(name)


def quadratic_loss(name: str) -> QuadraticLoss:
    """The loss of that name with affine residuals, for hide = 'both', or a ConfigError."""
    for loss in (Squared(), TaylorLogistic()):
        if loss.name == name:
            return loss
    raise ConfigError(f"loss = {name!r}: hide = 'both' needs 'squared' or 'taylor-logistic'")


def labels_from_residuals(loss: Loss, residuals: FloatArray, predictions: FloatArray) -> Labels:
    """The labels, shape (S,), that have residuals d at H, both of shape (S, C), for any loss.

    Residuals of two classes at the same H are at least 1 apart.
    """
    if isinstance(loss, SquaredOfTargets):
        targets: FloatArray = (predictions - residuals)[:, 0]
        return targets
    rows = len(predictions)
    apart = [
        np.abs(loss.residuals(predictions, np.full(rows, label)) - residuals).max(axis=1)
        for label in range(max(loss.outputs, 2))
    ]
    labels: Labels = np.argmin(apart, axis=0)
    return labels


def sigmoid(predictions: FloatArray) -> FloatArray:
    """σ(H), with exponentials that cannot overflow."""
    decay = np.exp(-np.abs(predictions))
    found: FloatArray = np.where(predictions >= 0, 1.0, decay) / (1.0 + decay)
    return found


def softmax(predictions: FloatArray) -> FloatArray:
    """Probabilities of the classes, shape (S, C)."""
    odds = np.exp(predictions - predictions.max(axis=1, keepdims=True))
    shares: FloatArray = odds / odds.sum(axis=1, keepdims=True)
    return shares


_OF_SECOND_CLASS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "logistic": sigmoid,
    "squared": lambda predictions: predictions,
    "taylor-logistic": lambda predictions: 0.5 + 0.25 * predictions,
    "squared-hinge": lambda predictions: 0.5 + 0.5 * predictions,
}


def has_probabilities(loss: str) -> bool:
    """Whether a loss's predictions can be converted to probabilities."""
    return loss == "multinomial" or loss in _OF_SECOND_CLASS


def probabilities(loss: str, predictions: FloatArray) -> FloatArray:
    """The probability of every class, shape (rows, classes), for a loss that has them."""
    if predictions.shape[1] > 1:
        return softmax(predictions)
    second = np.clip(_OF_SECOND_CLASS[loss](predictions), 0.0, 1.0)
    return np.hstack([1.0 - second, second])


def class_numbers(loss: str, predictions: FloatArray) -> IntArray:
    """The most likely class of every row, shape (rows,)."""
    if predictions.shape[1] > 1:
        return np.asarray(predictions.argmax(axis=1), np.int64)
    return np.asarray(predictions[:, 0] > loss_for(loss, 2).middle, np.int64)


def _signs(labels: Labels) -> FloatArray:
    return 2.0 * labels[:, None].astype(np.float64) - 1.0
