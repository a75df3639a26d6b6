"""Losses f(H, y) of the summed predictions H = Σ_k H_k, through their residuals d = ∂f/∂H.

Predictions have shape (S, C): C = 1 output for two classes, one output a class beyond.
Labels y are class numbers, shape (S,), or real targets of mean 0 and deviation 1; hinges take
t = 2y − 1. `curvature` is the bound c on f″
that makes d⁰ + c·(H − H⁰) a majorizer for one party's block.
"""

from math import inf, sqrt
from typing import Protocol, runtime_checkable

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import ConfigError


class Loss(Protocol):
    """A loss of summed predictions."""

    @property
    def name(self) -> str:
        """The name in job files."""

    @property
    def outputs(self) -> int:
        """C, the predictions of one sample."""

    @property
    def curvature(self) -> float:
        """Bound on f″; infinite where there is none."""

    @property
    def label_change(self) -> float:
        """The most that another label moves a d of one output at the same H."""

    @property
    def middle(self) -> float:
        """The H of two classes that are as likely."""

    def residual_bound(self, largest: float) -> float:
        """Bound on |d| while |H| ≤ `largest`."""

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """∂f/∂H per sample, shape (S, C)."""

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean loss."""

    def constant(self, labels: Labels) -> FloatArray:
        """The best prediction that is the same for all, shape (C,)."""


class QuadraticLoss(Loss, Protocol):
    """A loss whose residuals are affine in H: d = curvature·H + label_part(y)."""

    @property
    def label_bound(self) -> float:
        """Bound on |label_part|."""

    def label_part(self, labels: Labels) -> FloatArray:
        """What the labels add to d, shape (S, 1)."""


@runtime_checkable
class BendingLoss(Loss, Protocol):
    """A loss of one output with an f″ that its residual alone tells."""

    def bends(self, residuals: FloatArray) -> FloatArray:
        """f″ of every sample where its residual is d, shape (S, 1)."""


class Logistic:
    """f = log(1 + e^H) − yH for y ∈ {0, 1}; d = σ(H) − y, f″ ≤ ¼."""

    name, outputs, curvature, label_change = "logistic", 1, 0.25, 1.0
    middle = 0.0

    def residual_bound(self, largest: float) -> float:
        """1, whatever H is."""
        del largest
        return 1.0

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """σ(H) − y, through exponentials that cannot overflow."""
        decay = np.exp(-np.abs(predictions))
        sigmoid = np.where(predictions >= 0, 1.0, decay) / (1.0 + decay)
        residuals: FloatArray = sigmoid - labels[:, None]
        return residuals

    def bends(self, residuals: FloatArray) -> FloatArray:
        """σ(1 − σ) = |d|(1 − |d|)."""
        distances: FloatArray = np.abs(residuals)
        return distances * (1.0 - distances)

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of log(1 + e^H) − yH."""
        losses = np.logaddexp(0.0, predictions) - labels[:, None] * predictions
        # `mean` takes longer than the rest of a small batch.
        return float(losses.sum() / losses.size)

    def constant(self, labels: Labels) -> FloatArray:
        """The log odds."""
        share = float(np.mean(labels))
        return np.array([np.log(share / (1 - share))])


class Squared:
    """f = ½(H − y)² for y ∈ {0, 1}; d = H − y, f″ = 1."""

    name, outputs, curvature, label_change = "squared", 1, 1.0, 1.0
    label_bound, middle = 1.0, 0.5

    def residual_bound(self, largest: float) -> float:
        """c·|H| + the label's part."""
        return self.curvature * largest + self.label_bound

    def label_part(self, labels: Labels) -> FloatArray:
        """−y."""
        return -labels[:, None].astype(np.float64)

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """H − y."""
        return self.curvature * predictions + self.label_part(labels)

    def bends(self, residuals: FloatArray) -> FloatArray:
        """C everywhere."""
        return np.full_like(residuals, self.curvature)

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of ½(H − y)²."""
        return float(0.5 * np.mean((predictions - labels[:, None]) ** 2))

    def constant(self, labels: Labels) -> FloatArray:
        """Where residuals sum to zero."""
        mean: FloatArray = -self.label_part(labels).mean(axis=0) / self.curvature
        return mean


class SquaredOfTargets(Squared):
    """f = ½(H − y)² for real y that the label party has standardized over its N training rows.

    y² adds up to N, so |y| ≤ √N whatever the targets are: a bound that tells nothing of them. What
    one target moves d by has no bound that is better.
    """

    label_change = inf

    def __init__(self, rows: int) -> None:
        self.label_bound = sqrt(rows)


class TaylorLogistic(Squared):
    """Second-order Taylor expansion of the logistic loss at H = 0.

    f = log 2 − (y − ½)H + ⅛H²; d = ¼H − y + ½.
    """

    name, curvature, label_bound, middle = "taylor-logistic", 0.25, 0.5, 0.0

    @override
    def label_part(self, labels: Labels) -> FloatArray:
        """−½(2y − 1)."""
        return 0.5 - labels[:, None].astype(np.float64)

    @override
    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of log 2 − ½tH + ⅛H²."""
        losses = np.log(2.0) - 0.5 * _signs(labels) * predictions + 0.125 * predictions**2
        return float(losses.mean())


class SquaredHinge:
    """f = max(0, 1 − tH)² for t = 2y − 1; d = −2t·max(0, 1 − tH), f″ ≤ 2.

    That of a linear support vector machine as LIBLINEAR has it, and of the second note on FedBCD,
    which takes it for L1 block descent.
    """

    name, outputs, curvature, label_change = "squared-hinge", 1, 2.0, inf
    middle = 0.0

    def residual_bound(self, largest: float) -> float:
        """2(1 + |H|)."""
        return 2.0 * (1.0 + largest)

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """−2t·max(0, 1 − tH)."""
        signs = _signs(labels)
        return -2.0 * signs * np.maximum(0.0, 1.0 - signs * predictions)

    def bends(self, residuals: FloatArray) -> FloatArray:
        """2 within the margin and 0 beyond it, where d is 0."""
        return np.where(residuals != 0, self.curvature, 0.0)

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of max(0, 1 − tH)²."""
        return float(np.mean(np.maximum(0.0, 1.0 - _signs(labels) * predictions) ** 2))

    def constant(self, labels: Labels) -> FloatArray:
        """The mean of t, where residuals sum to zero."""
        mean: FloatArray = _signs(labels).mean(axis=0)
        return mean


class Hinge:
    """f = max(0, 1 − tH) for t = 2y − 1; d = −t where tH < 1, else 0: a subgradient.

    f bends at tH = 1 alone, and there without bound: no quadratic of finite curvature majorizes it.
    """

    name, outputs, curvature, label_change = "hinge", 1, inf, 2.0
    middle = 0.0

    def residual_bound(self, largest: float) -> float:
        """1, whatever H is."""
        del largest
        return 1.0

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """−t where tH < 1, else 0."""
        signs = _signs(labels)
        residuals: FloatArray = np.where(signs * predictions < 1, -signs, 0.0)
        return residuals

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of max(0, 1 − tH)."""
        return float(np.mean(np.maximum(0.0, 1.0 - _signs(labels) * predictions)))

    def constant(self, labels: Labels) -> FloatArray:
        """The t of most rows."""
        return np.where(_signs(labels).mean(axis=0) >= 0, 1.0, -1.0)


class Multinomial:
    """Softmax cross-entropy over C > 2 classes; d = softmax(H) − onehot(y).

    f″ = diag(p) − ppᵀ has no eigenvalue above ½ (Böhning 1992).
    """

    name, curvature, label_change, middle = "multinomial", 0.5, 1.0, 0.0

    def __init__(self, classes: int) -> None:
        self.outputs = classes

    def residual_bound(self, largest: float) -> float:
        """1, whatever H is."""
        del largest
        return 1.0

    def residuals(self, predictions: FloatArray, labels: Labels) -> FloatArray:
        """softmax(H) − onehot(y)."""
        weights = np.exp(predictions - predictions.max(axis=1, keepdims=True))
        residuals: FloatArray = weights / weights.sum(axis=1, keepdims=True)
        residuals[np.arange(len(labels)), labels.astype(np.int64)] -= 1.0
        return residuals

    def value(self, predictions: FloatArray, labels: Labels) -> float:
        """Mean of log Σ e^H − H_y."""
        shifted = predictions - predictions.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(labels)), labels.astype(np.int64)]
        return float((np.log(np.exp(shifted).sum(axis=1)) - chosen).mean())

    def constant(self, labels: Labels) -> FloatArray:
        """Logarithms of the classes' shares, of a class that is missing a very small one."""
        counts = np.bincount(labels.astype(np.int64), minlength=self.outputs)
        shares: FloatArray = np.log(np.maximum(counts, 1e-9) / len(labels))
        return shares


def loss_for(name: str, classes: int, rows: int = 0) -> Loss:
    """The loss of a job; "logistic" means multinomial logistic beyond two classes.

    Args:
        name: in a job.
        classes: of the labels; 0 where they are real targets.
        rows: N, which bounds these.

    Raises:
        ConfigError: a loss for two classes on data with more, or one for classes on real targets.
    """
    if classes == 0:
        if name != Squared.name:
            raise ConfigError(
                f"loss = {name!r} takes classes, and the labels are real numbers: say loss = "
                "'squared' for regression"
            )
        return SquaredOfTargets(rows)
    if name in {"logistic", "multinomial"}:
        return Logistic() if classes == 2 else Multinomial(classes)  # noqa: PLR2004
    if classes != 2:  # noqa: PLR2004
        raise ConfigError(f"loss = {name!r} takes two classes, the data have {classes}")
    for loss in (SquaredHinge(), Hinge()):
        if loss.name == name:
            return loss
    return quadratic_loss(name)


def quadratic_loss(name: str) -> QuadraticLoss:
    """The loss with affine residuals of that name, as hiding both sides needs.

    Raises:
        ConfigError: any other loss.
    """
    for loss in (Squared(), TaylorLogistic()):
        if loss.name == name:
            return loss
    raise ConfigError(f"loss = {name!r}: hide = 'both' takes 'squared' or 'taylor-logistic'")


def labels_told(loss: Loss, residuals: FloatArray, predictions: FloatArray) -> Labels:
    """The labels that have these residuals at these H, whatever the loss.

    Residuals of two classes at one H are at least 1 apart.

    Args:
        loss: f.
        residuals: d, shape (S, C).
        predictions: H, shape (S, C).

    Returns:
        Class numbers or real targets, shape (S,).
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


def _signs(labels: Labels) -> FloatArray:
    """The signs t = 2y − 1, shape (S, 1)."""
    return 2.0 * labels[:, None].astype(np.float64) - 1.0
