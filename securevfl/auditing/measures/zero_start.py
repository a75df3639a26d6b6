"""Labels from the first gradient if all parties start at zero, measured.

If parameters stay in shares until the end, this needs a job of one round.

The figures are the number of labels that are certain, which no model of the attacker's own columns
can give, and the accuracy of the mean of all labelings that fit, with the logistic model of the
attacker's own columns as its bar.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import AdversaryView
from securevfl.attacks.integer_decoding import (
    UNKNOWN,
    IntegerKnowledge,
    certain_labels,
    count_categories,
    labels_by_meeting,
)
from securevfl.auditing.figures import accuracy_finding, own_model, score
from securevfl.auditing.judging import RECOVERED, Finding, Metric, NotRun
from securevfl.auditing.measures.ciphertexts import RememberedKeys
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject, table_of, with_columns
from securevfl.auditing.views import gradients_of, residuals_of
from securevfl.crypto.fixed_point import decode, encode
from securevfl.crypto.schemes import SCHEMES
from securevfl.data.tables import as_classes
from securevfl.errors import ConfigError
from securevfl.models.curvature import Curvature
from securevfl.protocols.blind.fixed_point import REVEALED_BITS

CERTAIN = Metric("certain_labels", 0.0, at_most_one=False, is_bound=True, varies=True)
COLUMNS, ROWS_A_COLUMN = 4, 8  # of the what-if, with S = 8P
EXACT, APPROXIMATE = 1e-9, 1e-3


@dataclass(frozen=True, eq=False)
class _FirstRound:
    """The first gradient of a run from θ⁰ = 0, and what the attacker knows."""

    gradient: FloatArray  # Xᵀd/S, shape (P,)
    knowledge: IntegerKnowledge
    rows: IntArray  # of the batch
    inputs: FloatArray  # the attacker's X, shape (N, P)
    labels: IntArray  # the truth, shape (N,)


@add_attack
@partial(
    Attack,
    "integer_decoding",
    "feature party",
    "its columns, the schedule, the fixed point, theta0 = 0",
    place=120,
)
def integer_decoding(subject: Subject) -> Iterable[AttackCase]:
    """Exact sums of labels, from the job as it is and from jobs that start at zero."""
    starts_at_zero = subject.job.job.start == "zero" and not _later_rounds(subject)
    yield AttackCase(partial(_this_job, subject), "this job's first batch")
    yield AttackCase(
        partial(_categories, subject), "theta0 = 0, categories", what_if=not starts_at_zero
    )
    narrow = f"theta0 = 0, P = {COLUMNS}, S = {ROWS_A_COLUMN}P"
    yield AttackCase(partial(_narrow, subject), narrow, what_if=True)


def _later_rounds(subject: Subject) -> bool:
    """Whether the first numbers that a party learns depend on later rounds."""
    return subject.exchange.shares_parameters and subject.job.job.rounds > 1


def _this_job(subject: Subject) -> Finding | NotRun:
    if _later_rounds(subject):
        return NotRun("the final parameters depend on all rounds, with unknown residuals")
    if subject.job.job.start != "zero":
        return NotRun("theta0 is random: the first residuals are unknown")
    return _decoded(_first_round(subject))


def _narrow(subject: Subject) -> Finding:
    """Only the feature party's columns with the most bits, and a batch of a few rows."""
    table = table_of(subject.dataset, subject.feature_party)
    kept = np.sort(np.argsort([_entropy(column) for column in table.train.T])[-COLUMNS:])
    cut = with_columns(subject.dataset, table.name, kept.tolist())
    narrow = Subject(subject.job, cut, subject.seed, subject.keys)
    size = ROWS_A_COLUMN * len(kept)  # exact under "shuffle", whose batches are equally large
    return _decoded(_first_round(narrow, table.name, batch_size=size, sampling="shuffle"))


def _entropy(column: FloatArray) -> float:
    shares = np.unique(column, return_counts=True)[1] / len(column)
    return -float(shares @ np.log2(shares))


def _decoded(seen: _FirstRound) -> Finding:
    own = own_model(seen.inputs, seen.labels)
    found = labels_by_meeting(seen.gradient, seen.knowledge, own.probabilities[seen.rows, 0])
    truth = seen.labels[seen.rows]
    read = score(LabelEstimate(seen.rows, found[:, None] - 0.5), seen.labels)
    alone = own.score_on(seen.rows, seen.labels).accuracy
    recovered = accuracy_finding(RECOVERED, read.accuracy, read.majority, alone, read.rows)
    detail = {
        "rows": read.rows,
        "columns": len(seen.gradient),
        RECOVERED.name: {"value": recovered.value, "chance": read.majority, "model_alone": alone},
    }
    # Labels in which all labelings agree.
    certain = float(np.count_nonzero(found == truth))
    return Finding(CERTAIN, certain, chance=0.0, beside=(recovered,), detail=detail)


def _categories(subject: Subject) -> Finding:
    """The exact number of positives in each category, and the labels that follow from it."""
    seen = _first_round(subject)
    categories = count_categories(seen.gradient, seen.knowledge)
    if not categories:
        raise ConfigError("no column with two values whose positives are counted exactly")
    truth = seen.labels[seen.rows]
    found = certain_labels(categories, len(truth))
    detail = {
        "rows": len(truth),
        "categories": len(categories),
        "counted_rightly": sum(
            int(truth[each.rows].sum()) == each.positives for each in categories
        ),
        "wrong": int(np.count_nonzero((found != UNKNOWN) & (found != truth))),
    }
    return Finding(CERTAIN, float(np.count_nonzero(found == truth)), chance=0.0, detail=detail)


def _first_round(subject: Subject, party: str = "", **changes: Any) -> _FirstRound:  # noqa: ANN401
    as_classes(subject.dataset.train_labels)
    if subject.plan.loss.outputs > 1 or subject.plan.networks:
        raise ConfigError("integer_decoding supports two classes and linear models")
    keys = RememberedKeys(subject.keys)
    first = Subject(subject.job, subject.dataset, subject.seed, keys)
    recording = first.record(rounds=1, start="zero", **changes)
    adversary, rows = recording.adversary(party or subject.feature_party), recording.batches[0]
    by_class = recording.plan.loss.residuals(np.zeros((2, 1)), np.arange(2))
    expected = float(by_class[0, 0]), float(by_class[1, 0])
    labels = as_classes(recording.dataset.train_labels)
    if subject.exchange.shares_parameters:
        gradient, tolerance = _from_end(recording, adversary)
        knowledge = IntegerKnowledge(adversary.inputs[rows], expected, tolerance * len(rows))
        return _FirstRound(gradient, knowledge, rows, adversary.inputs, labels)
    matrix, tolerance = adversary.inputs[rows], EXACT
    if keys.made:
        fmt = keys.made[0][1]
        bits = fmt.matrix_fraction_bits
        matrix = decode(encode(matrix, bits, fmt.matrix_bound, "features"), bits)
        tolerance = EXACT if SCHEMES[subject.scheme].exact else APPROXIMATE
    view = recording.view(adversary.name)
    gradients, residuals = gradients_of(view), residuals_of(view)
    if not gradients and not residuals:
        raise ConfigError("the first round shows neither a gradient nor residuals")
    gradient = gradients[0] if gradients else matrix.T @ residuals[0] / len(rows)
    knowledge = IntegerKnowledge(matrix, expected, tolerance)
    return _FirstRound(gradient[:, 0], knowledge, rows, adversary.inputs, labels)


def _from_end(recording: Recording, adversary: AdversaryView) -> tuple[FloatArray, float]:
    """The first gradient, shape (P,), from the parameters after one step, and its largest error."""
    plan = recording.plan
    rows = adversary.inputs[recording.batches[0]]
    steps = plan.steps(adversary.model, adversary.inputs, recording.columns)
    undone = np.linalg.inv(steps.planned(0, rows).matrix)
    end = recording.result.outcomes[adversary.name].model.weights[:, 0]
    curvature = Curvature(adversary.model, adversary.inputs, plan.loss.curvature, plan.l2)
    into, _ = curvature.whitening
    off = np.abs(undone @ into).sum(axis=1).max()
    return -undone @ end, float(off * 2.0 ** (1 - REVEALED_BITS))
