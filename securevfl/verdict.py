"""Warnings about a finished job: nothing learned, training went wrong, or one party is better.

A simulation has all parties' columns, so it can lend the labels to a feature party for a model of
its own, to show what joining is worth. No real party can do that: between organizations only the
label party compares the joint model with a model of its own columns.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.models.losses import Weighted, loss_for, with_weights
from securevfl.models.ranking import Ranking, ranking
from securevfl.models.scores import (
    accuracy_difference,
    auc_difference,
    auc_error,
    r2_difference,
    r2_error,
)
from securevfl.protocols.exchanges.class_sums import binormal_score
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.early_stopping import SelectedState
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.workplace import PartyData, PartyOutcome
from securevfl.sparse import Matrix, SparseRows, dense, require_dense
from securevfl.warned import Warned

MOST_ROWS = 20_000
MOST_VALUES = 20_000_000
"""Limits on the rows, and on rows times columns, that a party's own model is fitted to."""
ERRORS, WORTH = 2.0, 0.002
"""A party alone is better by more than `ERRORS` standard errors, and `WORTH` AUC or accuracy."""


@dataclass(frozen=True, eq=False)
class Alone:
    """A party's own model on its own columns, fitted to this many rows.

    Score and predictions, shape (test rows, C), are of the held-out rows. With `labels_lent`, the
    party has no labels and could not compute this itself; it ignores directions (`undirected`).
    """

    score: Score
    rows: int
    labels_lent: bool
    predictions: FloatArray
    undirected: bool = False


def alone(
    plan: Plan, dataset: VerticalDataset[Matrix], *, binormal: bool = False
) -> dict[str, Alone]:
    """Each party's own model on standardized columns; empty without held-out rows.

    Logistic regression with C = 1, or ridge regression with alpha = 1 for real targets, as in
    scikit-learn. `binormal` scores them from sums per class, if the joint model is scored that way.
    """
    tables = dataset.parties if plan.facts.test_rows else ()
    return {table.name: _alone(plan, dataset, table, binormal=binormal) for table in tables}


def _alone(
    plan: Plan, dataset: VerticalDataset[Matrix], table: PartyTable[Matrix], *, binormal: bool
) -> Alone:
    train, labels = table.train, dataset.train_labels
    own, holds_labels = dataset.own_rows, table.name == dataset.label_party
    if own is not None and holds_labels:
        train = np.vstack([require_dense(train, "algorithm 'ftl'"), own.features])
        labels = np.concatenate([labels, own.labels])
    stored = -(-train.nnz // len(train)) if isinstance(train, SparseRows) else train.shape[1]
    kept = _some_rows(labels, max(1, stored))
    standardize = plan.job.job.standardize
    if standardize is None:
        standardize = dataset.standardize
    scaling = Scaling.of(table, train[kept], plan.job.job.bounds, standardize=standardize)
    if isinstance(train, SparseRows):  # the unpenalized intercept absorbs the mean
        scaling = Scaling(np.zeros(train.shape[1]), scaling.scale)
    features, held_out = scaling.apply(train[kept]), scaling.apply(table.test)
    if isinstance(features, SparseRows):
        features = features.stored.multiply(1 / scaling.scale).tocsr()
    else:  # as scikit-learn takes them
        features = dense(features)
    fit, given = _ridge if plan.facts.real_targets else _logistic, plan.job.job.class_weight
    of_rows = next((each.weights for each in dataset.parties if each.weights is not None), None)
    weighted = with_weights(labels, dataset.class_names, given, of_rows)
    weights, intercept = fit(features, weighted[kept])
    predictions = held_out @ weights.T + intercept
    if dataset.classes > 2:  # noqa: PLR2004
        if predictions.shape[1] == 1:
            predictions = np.column_stack([np.zeros(len(predictions)), predictions])
        # A class without training rows ranks last.
        every = np.full((len(predictions), dataset.classes), predictions.min() - 1.0)
        every[:, np.unique(labels[kept])] = predictions
        predictions = every
    if binormal:
        score = binormal_score(predictions[:, 0], dataset.test_labels)
    else:
        score = Score.of(0, predictions, dataset.test_labels)
    return Alone(score, len(kept), not holds_labels, predictions, any(table.signs))


def _ridge(features: Any, targets: Labels) -> tuple[FloatArray, FloatArray]:  # noqa: ANN401
    from sklearn.linear_model import Ridge  # noqa: PLC0415  # slow to import

    model = Ridge().fit(features, targets)
    return np.atleast_2d(model.coef_), model.intercept_


def _logistic(features: Any, labels: Labels) -> tuple[FloatArray, FloatArray]:  # noqa: ANN401
    """Weights, shape (C, P), and intercepts as of scikit-learn's LogisticRegression(max_iter=1000).

    Labels may have weights, see `with_weights`.
    Computed with SciPy's L-BFGS directly: importing scikit-learn would take longer than most jobs.
    Features are finite, with labels of at least two classes. As there, weights stay 0 if squares of
    features overflow.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  # slow to import

    present, codes = np.unique(labels.T[0] if labels.ndim > 1 else labels, return_inverse=True)
    (rows, columns), loss = features.shape, loss_for("logistic", len(present))
    if labels.ndim > 1:
        loss, codes = Weighted(loss), np.column_stack([codes, labels[:, 1]])

    def penalized_loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        table = parameters.reshape(-1, columns + 1)
        weights = table[:, :-1]
        predictions = features @ weights.T + table[:, -1]
        residuals = loss.residuals(predictions, codes) / rows
        gradient = np.column_stack(
            [(features.T @ residuals).T + weights / rows, residuals.sum(axis=0)]
        )
        value = loss.value(predictions, codes) + (weights**2).sum() / (2 * rows)
        return value, gradient.ravel()

    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(
            penalized_loss,
            np.zeros(loss.outputs * (columns + 1)),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": 1000, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps},
        )
    table = found.x.reshape(-1, columns + 1)
    return table[:, :-1], table[:, -1]


def _some_rows(labels: Labels, columns: int) -> IntArray:
    """Rows to fit a model to: evenly spaced, and at least one of every class."""
    rows = len(labels)
    most = min(rows, MOST_ROWS, max(1000, MOST_VALUES // columns))
    even = np.linspace(0, rows - 1, most).astype(np.int64)
    return even if is_real(labels) else np.union1d(even, np.unique(labels, return_index=True)[1])


def ranked(
    plan: Plan, outcome: PartyOutcome, owns: Mapping[str, Alone], labels: Labels
) -> Ranking | None:
    """How the label party's last scores rank two classes, beside a model of its own columns alone.

    None where it sees no held-out score. `owns` are models by party, labels of the held-out rows.
    """
    if outcome.joint is None:
        return None
    own = owns.get(plan.facts.label_party)
    # Transfer learning scores rows that no party could score alone.
    beside = own and not plan.algorithm.own_components
    return ranking(outcome.joint[:, 0], labels, own.predictions[:, 0] if own and beside else None)


def has_learned(outcome: PartyOutcome, test_labels: Labels) -> bool:
    """Whether the model is useful, as far as the label party can tell by its outcome.

    Its training loss has fallen below that of the best constant prediction, and its held-out AUC,
    if there are held-out rows, is above ½ by two standard errors (or its R² is above that of
    uninformative predictions). Losses are of the points before the last step, so only scores count
    after one round, and where they reached the target.
    """
    useful, scores = True, outcome.scores
    if scores and scores[-1].r2 is not None:
        useful = scores[-1].r2 > r2_error(len(test_labels))
    elif scores:
        useful = scores[-1].auc > 0.5 + 2 * auc_error(test_labels)
    by_scores = bool(scores) and (outcome.rounds == 1 or outcome.ended == "target")
    return useful and (by_scores or outcome.learned)


def own_verdict(
    plan: Plan, outcome: PartyOutcome, data: PartyData
) -> tuple[Alone | None, tuple[Warned, ...]]:
    """What a party itself can say of a job.

    A label party keeps no predictions of the joint model. It compares scores as if they were of
    independent rows, so a model of its own is called better only if it is so by more than a
    simulation asks for.

    Returns:
        What its own columns achieve, at a label party with held-out scores; and its warnings.
    """
    facts, selected = plan.facts, {data.table.name: outcome.selected}
    if data.table.name != facts.label_party:
        found = _what_went_wrong(plan, selected)
        return None, tuple(Warned("went wrong", f"{each}. {_remedy(plan)}") for each in found)
    assert data.train_labels is not None and data.test_labels is not None  # noqa: S101, PT018
    owns: dict[str, Alone] = {}
    if outcome.scores:
        dataset = VerticalDataset(
            name=plan.job.job.name,
            parties=(data.table,),
            label_party=facts.label_party,
            train_labels=data.train_labels,
            test_labels=data.test_labels,
            classes=facts.classes,
            standardize=facts.standardize,
            row_digests=facts.row_digests,
            own_rows=data.own_rows,
            label_names=data.class_names,
        )
        owns = alone(plan, dataset, binormal=outcome.scores[-1].binormal)
    warnings = warned(
        plan,
        selected,
        learned=has_learned(outcome, data.test_labels),
        own=lambda: owns,
        joint=outcome.scores[-1] if outcome.scores else None,
        labels=data.test_labels,
    )
    return owns.get(data.table.name), tuple(warnings)


def warned(
    plan: Plan,
    selected: Mapping[str, SelectedState],
    *,
    learned: bool,
    own: Callable[[], Mapping[str, Alone]],
    joint: FloatArray | Score | None,
    labels: Labels,
) -> Iterator[Warned]:
    """Warnings about a job, the most serious first.

    Args:
        plan: the resolved job.
        selected: the parties' selected states, or some of them.
        learned: see `has_learned`.
        own: computes what each party achieves alone, by party.
        joint: predictions of all parties' models, shape (test rows, C), or their score where
            nobody has these, or users of the model receive noisy ones.
        labels: of the held-out rows.
    """
    remedy = _remedy(plan)
    if not learned:
        moved = plan.local_steps != "exact"
        longer = (
            "; if the loss was still falling, a larger learning_rate (instead of 'auto'), or more "
            "rounds"
        )
        yield Warned(
            "learned nothing",
            "the model is not distinguishable from chance, or its training loss is no lower than "
            f"that of a constant; it is saved anyway. {remedy}"
            f"{longer if moved else ''}",
        )
    for text in _what_went_wrong(plan, selected):
        yield Warned("went wrong", f"{text}. {remedy}")
    # Transfer learning scores rows that no party could score alone.
    given = "'s noisy predictions" if plan.exchange.adds_noise and isinstance(joint, Score) else ""
    compares = learned and not plan.algorithm.own_components
    for name, each in own().items() if compares else ():
        if isinstance(joint, Score):
            what = "R²" if is_real(labels) else "AUC"
            better, error = _apart(each.score, joint, labels)
        else:
            assert joint is not None  # noqa: S101
            better, error, what = _difference(each.predictions, joint, labels)
        if better > max(ERRORS * error, WORTH):
            lent = ", if it had the labels," if each.labels_lent else ""
            lent += " without `monotone`" if each.undirected else ""
            yield Warned(
                "better alone",
                f"party {name!r} alone{lent} has a held-out {what} {better:.3f} above that of the "
                f"joint model{given} (standard error {error:.3f}). {remedy}",
            )


def _apart(own: Score, joint: Score, labels: Labels) -> tuple[float, float]:
    """The difference of two scores, and its standard error for independent rows."""
    better = own.figure - joint.figure
    if is_real(labels):
        return better, r2_error(len(labels))
    return better, hypot(*(auc_error(labels, each.auc) for each in (own, joint)))


def _what_went_wrong(plan: Plan, selected: Mapping[str, SelectedState]) -> Iterator[str]:
    seen = selected.get(plan.facts.label_party)
    if seen is not None and seen.seen is not None:
        figure = "R²" if plan.facts.real_targets else "AUC"
        what = "training loss" if seen.seen == "loss" else f"held-out {figure}"
        text = (
            f"training went wrong: the {what} was {seen.best:.3g} after round {seen.better}, "
            f"clearly worse from round {seen.since} on, and {seen.last:.3g} at the end"
        )
        if seen.rounds < seen.done:
            yield f"{text}: the state after round {seen.rounds} of {seen.done} is kept"
        else:
            yield f"{text}: the last state is kept, as going back would reveal exact labels"
    lost = {name: each.lost for name, each in selected.items() if each.lost is not None}
    if lost:
        places = ", ".join(f"{name!r} after round {rounds}" for name, rounds in lost.items())
        yield f"weights overflowed float64 at party {places}: they stayed unchanged from there on"


def _remedy(plan: Plan) -> str:
    job, remedies = plan.job.job, []
    if job.learning_rate != "auto":
        remedies.append("a smaller learning_rate, or 'auto'")
    if not plan.full_batches:
        remedies.append("a larger batch_size")
    if plan.exchange.adds_noise:
        remedies.append("less noise (a larger budget, more rows a batch)")
    if plan.networks:
        remedies.append("fewer local_steps, or a smaller network")
    return "Try " + "; ".join([*remedies, "more l2, or fewer rounds"])


def _difference(first: FloatArray, second: FloatArray, labels: Labels) -> tuple[float, float, str]:
    if is_real(labels):
        return *r2_difference(first, second, labels), "R²"
    if first.shape[1] > 1:
        return *accuracy_difference(first, second, labels), "accuracy"
    if np.bincount(labels, minlength=2).min() < 2:  # noqa: PLR2004
        return 0.0, 0.0, "AUC"
    return *auc_difference(first[:, 0], second[:, 0], labels), "AUC"
