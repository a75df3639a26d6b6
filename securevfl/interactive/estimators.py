"""Estimators as scikit-learn has them, trained by a job's parties over the simulated network."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.interactive.vertical_estimator import VerticalEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLogisticRegression(ClassifierMixin, VerticalEstimator):  # type: ignore[misc]
    """Logistic regression, multinomial beyond two classes, whose columns parties hold.

    With an exchange in clear or exact under encryption its coefficients are those of scikit-learn's
    `LogisticRegression(C)` on standardized columns, as far as `tol` goes. Under hide = "both" the
    loss is its quadratic Taylor expansion, of two classes.

    Args:
        C: as in scikit-learn, for standardized columns: λ = 1/(C·N).

    Attributes:
        classes_: as in y, sorted.

    Example:
        >>> from securevfl import VerticalLogisticRegression
        >>> bank, shop = [[0.0], [1.0], [2.0], [3.0]], [[5.0], [5.0], [7.0], [6.0]]
        >>> X = [np.array(bank), np.array(shop)]
        >>> model = VerticalLogisticRegression(random_state=0).fit(X, ["no", "no", "yes", "yes"])
        >>> model.predict(X).tolist()
        ['no', 'no', 'yes', 'yes']
    """

    C: float = 1.0

    def fit(self, X: Any, y: Any) -> Self:  # noqa: ANN401
        """Train a job on all rows.

        Args:
            X: shape (N, P): a data frame or an array; or a list of them, one a party.
            y: shape (N,), two classes or more: numbers or text.

        Raises:
            ValueError: data or parameters that make no job.
        """
        X, y, columns = self._read(X, y, numeric=False)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:  # noqa: PLR2004
            raise DataError(
                f"y: one class only ({classes.tolist()[0]!r}), expected at least 2 classes"
            )
        self.classes_ = classes
        dataset = self._dataset(
            X,
            columns,
            labels.astype(np.int64),
            classes=len(classes),
            names=tuple(map(str, classes)),
        )
        if self.C <= 0:
            raise ConfigError(f"C = {self.C}: expected a positive number, or infinity")
        loss = "taylor-logistic" if self.hide == "both" else "logistic"
        result = self._train(dataset, loss=loss, l2=1 / (self.C * len(X)), eval_every="never")
        self._set_coefficients(result, columns)
        return self

    def decision_function(self, X: Any) -> FloatArray:  # noqa: ANN401
        """H: shape (S,) of two classes, log odds; (S, C) of more."""
        predictions = self._linear_predictions(X)
        return predictions[:, 0] if len(self.classes_) == 2 else predictions  # noqa: PLR2004

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: ANN401
        """Probabilities of the classes, shape (S, C)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: ANN401
        """Their logarithms."""
        odds = self.decision_function(X)
        if odds.ndim == 1:
            odds = np.column_stack([np.zeros_like(odds), odds])
        logarithms: FloatArray = log_softmax(odds, axis=1)
        return logarithms

    def predict(self, X: Any) -> Any:  # noqa: ANN401
        """The most likely class of each row, shape (S,)."""
        odds = self.decision_function(X)
        places = odds.argmax(axis=1) if odds.ndim > 1 else (odds > 0).astype(np.int64)
        return self.classes_[places]


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalRidge(RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """Least squares with L2, whose columns parties hold.

    With an exchange in clear or exact under encryption its coefficients are those of scikit-learn's
    `Ridge(alpha)` on standardized columns, as far as `tol` goes.

    Args:
        alpha: as in scikit-learn, for standardized columns: λ = alpha/N.

    Example:
        >>> from securevfl import VerticalRidge
        >>> bank, shop = [[0.0], [1.0], [2.0], [4.0]], [[5.0], [3.0], [7.0], [6.0]]
        >>> X, y = np.hstack([bank, shop]), [5.0, 4.0, 9.0, 10.0]
        >>> model = VerticalRidge([[0], [1]], alpha=0.0, random_state=0).fit(X, y)
        >>> model.predict(X).round(1).tolist()
        [5.0, 4.0, 9.0, 10.0]
    """

    alpha: float = 1.0

    def fit(self, X: Any, y: Any) -> Self:  # noqa: ANN401
        """Train a job on all rows.

        Args:
            X: shape (N, P): a data frame or an array; or a list of them, one a party.
            y: shape (N,), numbers.

        Raises:
            ValueError: data or parameters that make no job.
        """
        X, y, columns = self._read(X, y, numeric=True)
        dataset = self._dataset(X, columns, y.astype(np.float64), classes=0, names=())
        result = self._train(dataset, loss="squared", l2=self.alpha / len(X), eval_every="never")
        self._set_coefficients(result, columns)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> FloatArray:  # noqa: ANN401
        """Predicted targets, shape (S,)."""
        return self._linear_predictions(X)[:, 0]
