"""scikit-learn estimators that are trained by a job's parties over the simulated network.

All data are in one process: this is a simulation for experiments and protects nothing. An estimator
reports what the job would cost and how much it would reveal about labels.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.data.tables import PartyTable, VerticalDataset, check_weights, row_digests
from securevfl.errors import ConfigError, DataError
from securevfl.models.losses import probabilities

if TYPE_CHECKING:
    from securevfl.job import Job
    from securevfl.training import TrainingResult

SEEDS = 2**31
"""Seeds of jobs are drawn below this if random_state is not a number."""
TWO_DIMENSIONS = 2
Columns = dict[str, IntArray]
"""By party, the numbers of its columns."""


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the estimators: parameters, parties, training, coefficients.

    Every parameter corresponds to the key of the same name in a job file, and None means the job's
    default, unless stated otherwise.

    Args:
        parties: which columns each party holds: a list of lists of column names or numbers, or a
            mapping from party names to such lists; two nearly equal halves by default. If X is a
            list of tables, each is a party, and this stays None.
        label_party: the party that holds y, by name or number.
        algorithm: by name.
        exchange: by name, or a mapping of the keys of `[exchange]`.
        local_steps: Q, or "exact".
        batch_size: S, or "full".
        rounds: the most rounds.
        learning_rate: η0, or "auto".
        hide: "residuals", or "both", with homomorphic exchanges.
        standardize: each party standardizes its own columns.
        tol: with learning_rate = "auto", training stops when three rounds together lower the loss
            by less than this fraction of the best constant prediction's loss.
        random_state: of starts, batches and offsets; keys and masks never repeat.
        verbose: show rounds as they are done.
        job: other sections of a job file by name, such as {"network": {"preset": "wan"}}.

    Attributes:
        coef_: in the units of X.
        intercept_: the label party's.
        n_iter_: rounds done.
        cost_: seconds of computation by phase and of communication on the critical path, bytes and
            messages (`securevfl.runtime.costs.JobCosts`).
        history_: the training loss of each round's batch as rows of "round" and "loss", for a data
            frame; empty unless the algorithm is fedsgd or fedbcd and the label party sees the loss
            without noise.
        label_guard_ratio_: equations about labels that gradients revealed, divided by the number of
            unknown labels; None if they reveal none. Real parties refuse jobs by this ratio, which
            is only reported here.
        result_: the job (`securevfl.training.TrainingResult`); not pickled, as it holds keys.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X has any.
    """

    parties: Any = field(default=None, kw_only=False)
    label_party: int | str = 0
    algorithm: str = "fedbcd-p"
    exchange: str | Mapping[str, Any] = "plain"
    local_steps: int | Literal["exact"] | None = None
    batch_size: int | Literal["full"] | None = None
    rounds: int | None = None
    learning_rate: float | Literal["auto"] = "auto"
    hide: Literal["residuals", "both"] = "residuals"
    standardize: bool = True
    tol: float = 1e-4
    random_state: Any = None
    verbose: bool = False
    job: Mapping[str, Mapping[str, Any]] | None = None

    @override
    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("result_", None)
        return state

    def _read(self, X: Any, y: Any, *, numeric: bool) -> tuple[FloatArray, Any, Columns]:  # noqa: ANN401
        """X as numbers, y, and the columns of X by party."""
        widths = [table.shape[1] for table in X] if is_by_party(X) else None
        if widths is not None:
            if self.parties is not None:
                raise ConfigError("parties: must be None if X is a list of tables, one per party")
            X = side_by_side(X)
        X, y = validate_data(
            self,
            *(X, y),
            dtype=np.float64,
            ensure_min_samples=2,
            ensure_min_features=2,
            y_numeric=numeric,
        )
        if widths is not None:
            return X, y, blocks(widths)
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else list(names)
        return X, y, columns_of(self.parties, names, X.shape[1])

    def _train(self, dataset: VerticalDataset, **settings: object) -> "TrainingResult":
        """Run the job, with these settings of `[job]`, and record its costs."""
        from securevfl.interactive.jobs import line_of_progress
        from securevfl.training import Environment, plan_for, train

        job = self._job(**settings)
        plan = plan_for(job, dataset)
        if plan.networks:
            raise ConfigError(f"{type(self).__name__} is linear: securevfl.train trains networks")
        with line_of_progress(self.verbose) as tell:
            rounds = plan.rounds
            shown = Environment(progress=lambda done: tell(f"round {done} of at most {rounds}"))
            result = train(job, dataset, shown)
        self.result_ = result
        self.n_iter_ = result.rounds
        self.cost_ = result.costs()
        self.label_guard_ratio_ = result.label_guard_ratio
        losses = result.outcomes[result.plan.facts.label_party].losses
        self.history_ = [{"round": index, "loss": loss} for index, loss in enumerate(losses, 1)]
        self._warn(result)
        return result

    def _job(self, **settings: object) -> "Job":
        from securevfl.job import Job

        sections = {name: dict(keys) for name, keys in (self.job or {}).items()}
        if "exchange" in sections:
            raise ConfigError("job: set [exchange] by the parameter exchange")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(SEEDS)
        own = {
            "algorithm": self.algorithm,
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "rounds": self.rounds,
            "learning_rate": self.learning_rate,
            "standardize": self.standardize,
            "tolerance": self.tol,
            "seed": int(seed),
            **settings,
        }
        more = sections.pop("job", {})
        for key in own.keys() & more.keys():
            raise ConfigError(f"job: {key} of [job] is a parameter of the estimator")
        # Some defaults depend on which keys a job sets.
        own = {key: value for key, value in own.items() if value is not None}
        exchange = self.exchange
        keys = {"scheme": exchange} if isinstance(exchange, str) else dict(exchange)
        return Job.of(**sections, job={**more, **own}, exchange={"hide": self.hide, **keys})

    def _warn(self, result: "TrainingResult") -> None:
        for each in result.warnings:
            warnings.warn(each.text, UserWarning, stacklevel=4)
        watched = self.learning_rate == "auto" and not result.plan.exchange.shares_parameters
        if watched and result.ended == "rounds":
            warnings.warn(
                f"rounds = {result.job.job.rounds}: the loss has not converged (tol = "
                f"{self.tol:g}), set more rounds",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _set_coefficients(self, result: "TrainingResult", columns: Columns) -> None:
        """θ of all parties in the units and the order of X's columns."""
        from securevfl.scoring.description import in_original_units

        outputs = result.plan.loss.outputs
        self.coef_: FloatArray = np.zeros((outputs, self.n_features_in_))
        self.intercept_: Any = np.zeros(outputs)
        most = np.finfo(np.float64).max
        self._bounds = np.repeat([[-most], [most]], self.n_features_in_, axis=1)
        label_model = result.outcomes[result.plan.facts.label_party].model
        unit = label_model.header.target_scale or 1.0
        for party, outcome in result.outcomes.items():
            per_unit, constant = in_original_units(outcome.model, unit)
            self.coef_[:, columns[party]] = per_unit.T
            self.intercept_ += constant
            if outcome.model.bounds is not None:
                self._bounds[:, columns[party]] = outcome.model.bounds

    def _linear_predictions(self, X: Any) -> FloatArray:  # noqa: ANN401
        check_is_fitted(self)
        if is_by_party(X):
            X = side_by_side(X)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        X = np.clip(X, *self._bounds)
        predictions: FloatArray = X @ np.atleast_2d(self.coef_).T + self.intercept_
        return predictions

    def _dataset(
        self,
        X: FloatArray,
        columns: Columns,
        labels: Labels,
        *,
        classes: int,
        names: tuple[str, ...],
        weights: FloatArray | None = None,
    ) -> VerticalDataset:
        """Each party's own columns of X, and no held-out rows."""
        parties = list(columns)
        label_party = self.label_party
        if isinstance(label_party, int | np.integer) and 0 <= label_party < len(parties):
            label_party = parties[int(label_party)]
        if label_party not in parties:
            raise ConfigError(
                f"label_party: {label_party!r}, expected one of {parties} or a number"
            )
        feature_names = getattr(self, "feature_names_in_", None)
        if feature_names is None:
            feature_names = [f"x{number}" for number in range(X.shape[1])]
        tables = [
            PartyTable(
                name,
                tuple(str(feature_names[number]) for number in own),
                np.ascontiguousarray(X[:, own]),
                np.empty((0, len(own))),
                weights=weights if name == label_party else None,
            )
            for name, own in columns.items()
        ]
        return VerticalDataset(
            name=type(self).__name__,
            parties=tuple(tables),
            label_party=str(label_party),
            train_labels=labels,
            test_labels=labels[:0],
            classes=classes,
            standardize=self.standardize,
            row_digests=row_digests(range(len(X)), "rows of an estimator"),
            label_names=names,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLogisticRegression(ClassifierMixin, VerticalEstimator):  # type: ignore[misc]
    """Logistic regression, multinomial beyond two classes, on columns that parties hold.

    With a plain or exactly encrypted exchange its coefficients are those of scikit-learn's
    `LogisticRegression(C)` on standardized columns, within `tol`. With hide = "both" the loss is
    its quadratic Taylor expansion, for two classes.

    Args:
        C: as in scikit-learn, for standardized columns: λ = 1/(C·N).
        class_weight: "balanced", or weights by class, as in scikit-learn.

    Attributes:
        classes_: the classes in y, sorted.

    Example:
        >>> from securevfl import VerticalLogisticRegression
        >>> bank, shop = [[0.0], [1.0], [2.0], [3.0]], [[5.0], [5.0], [7.0], [6.0]]
        >>> X = [np.array(bank), np.array(shop)]
        >>> model = VerticalLogisticRegression(random_state=0).fit(X, ["no", "no", "yes", "yes"])
        >>> model.predict(X).tolist()
        ['no', 'no', 'yes', 'yes']
    """

    C: float = 1.0
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: ANN401
        """Train a job on all rows.

        Args:
            X: shape (N, P): a data frame or an array; or a list of them, one per party.
            y: shape (N,), at least two classes, as numbers or text.
            sample_weight: shape (N,), as in scikit-learn; rows of weight 0 are left out.

        Raises:
            ValueError: invalid data or parameters.
        """
        X, y, columns = self._read(X, y, numeric=False)
        check_classification_targets(y)
        of_rows = None
        if sample_weight is not None:
            of_rows = np.asarray(sample_weight, np.float64)
            kept = (of_rows != 0) | ~of_rows.any()
            check_weights("sample_weight", np.where(kept, of_rows, 1.0), len(y))
            X, y, of_rows = X[kept], y[kept], of_rows[kept]
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
            weights=of_rows,
        )
        if self.C <= 0:
            raise ConfigError(f"C = {self.C}: expected a positive number, or infinity")
        loss = "taylor-logistic" if self.hide == "both" else "logistic"
        weights = self.class_weight
        if isinstance(weights, Mapping):
            if unknown := [each for each in weights if each not in classes.tolist()]:
                raise ConfigError(f"class_weight: {unknown[0]!r} is no class of y")
            weights = {str(each): float(weights.get(each, 1)) for each in classes.tolist()}
        settings = {"loss": loss, "l2": 1 / (self.C * len(X)), "class_weight": weights}
        result = self._train(dataset, **settings, eval_every="never")
        self._set_coefficients(result, columns)
        return self

    def decision_function(self, X: Any) -> FloatArray:  # noqa: ANN401
        """H: log odds of shape (S,) for two classes, 4(p − ½) with hide = "both"; else (S, C)."""
        predictions = self._linear_predictions(X)
        return predictions[:, 0] if len(self.classes_) == 2 else predictions  # noqa: PLR2004

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: ANN401
        """Probabilities of the classes, shape (S, C)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: ANN401
        """Logarithms of the classes' probabilities, shape (S, C)."""
        odds = self.decision_function(X)
        if self.hide == "both":  # whose H is 4(p − ½)
            with np.errstate(divide="ignore"):
                return np.log(probabilities("taylor-logistic", odds[:, None]))
        if odds.ndim == 1:
            odds = np.column_stack([np.zeros_like(odds), odds])
        from scipy.special import log_softmax

        logarithms: FloatArray = log_softmax(odds, axis=1)
        return logarithms

    def predict(self, X: Any) -> Any:  # noqa: ANN401
        """The most likely class of each row, shape (S,)."""
        odds = self.decision_function(X)
        places = odds.argmax(axis=1) if odds.ndim > 1 else (odds > 0).astype(np.int64)
        return self.classes_[places]


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalRidge(RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """Least squares with an L2 penalty, on columns that parties hold.

    With a plain or exactly encrypted exchange its coefficients are those of scikit-learn's
    `Ridge(alpha)` on standardized columns, within `tol`.

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
            X: shape (N, P): a data frame or an array; or a list of them, one per party.
            y: shape (N,), numbers.

        Raises:
            ValueError: invalid data or parameters.
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


def is_by_party(data: object) -> bool:
    """Whether this is a list of tables rather than one table."""
    if isinstance(data, Mapping) and not hasattr(data, "shape"):  # as a sparse matrix has
        raise DataError("X: a dictionary; expected one table, or a list of one table per party")
    tables = data if isinstance(data, list | tuple) else ()
    return bool(tables) and all(
        len(getattr(table, "shape", ())) == TWO_DIMENSIONS for table in tables
    )


def side_by_side(tables: Sequence[Any]) -> Any:  # noqa: ANN401  # whatever scikit-learn takes
    """The parties' tables as one: a data frame if all of them have column names."""
    rows = [len(table) for table in tables]
    if len(set(rows)) > 1:
        raise DataError(f"X: the parties' tables have {rows} rows, expected the same rows in all")
    names = [list(getattr(table, "columns", ())) for table in tables]
    joint = np.hstack([check_array(table, dtype=np.float64) for table in tables])
    flat = [name for own in names for name in own]
    if not all(names) or not all(isinstance(name, str) for name in flat):
        return joint
    if len(set(flat)) < len(flat):
        double = next(name for name in flat if flat.count(name) > 1)
        raise DataError(f"X: column {double!r} is in two parties' tables: rename one of them")
    import polars as pl

    return pl.DataFrame(joint, schema=flat)


def columns_of(parties: object, names: Sequence[str] | None, width: int) -> Columns:
    """The columns of each party, out of `width` columns of one table.

    Parties are column lists, with or without names of the parties; None for two nearly equal
    halves. `names` are the columns' names, if they have any.
    """
    if parties is None:
        from securevfl.data.splits import block_sizes

        return blocks(block_sizes(width, 2))
    if not isinstance(parties, Mapping | list | tuple):
        raise ConfigError(f"parties: {parties!r}, expected a list of column lists, one per party")
    lists = parties if isinstance(parties, Mapping) else _numbered(parties)
    if len(lists) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(lists)}, expected at least 2")
    columns = {str(party): _numbers(party, own, names, width) for party, own in lists.items()}
    holders = np.bincount(np.concatenate(list(columns.values())), minlength=width)
    for number in np.flatnonzero(holders != 1).tolist():
        column = repr(names[number]) if names is not None else number
        held = f"is held by {holders[number]} parties" if holders[number] else "is held by no party"
        raise ConfigError(f"parties: column {column} {held}, expected one party")
    return columns


def blocks(widths: Sequence[int]) -> Columns:
    """Parties that hold consecutive columns, with these widths."""
    return _numbered([np.arange(start, end) for start, end in pairwise(np.cumsum([0, *widths]))])


def _numbered(parts: Sequence[Any]) -> dict[str, Any]:
    return {f"party{number}": part for number, part in enumerate(parts, 1)}


def _numbers(party: object, own: object, names: Sequence[str] | None, width: int) -> IntArray:
    """The numbers of a party's columns, given by name or number."""
    listed = [own] if isinstance(own, str) else list(own) if isinstance(own, Sequence) else None
    if listed is None:
        listed = np.asarray(own).tolist()
    known = {name: number for number, name in enumerate(names or ())}
    numbers = []
    for column in listed:
        number = known.get(column, -1) if isinstance(column, str) else column
        if not isinstance(number, int | np.integer) or not 0 <= number < width:
            among = ", ".join(map(str, names)) if names is not None else f"0 to {width - 1}"
            raise ConfigError(
                f"parties: party {party!r} has no column {column!r}; there are {among}"
            )
        numbers.append(int(number))
    if not numbers:
        raise ConfigError(f"parties: party {party!r} has no columns, expected at least 1")
    return np.array(numbers, np.int64)
