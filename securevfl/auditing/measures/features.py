"""Attacks of the label party on a feature party's X, measured.

Predictions give X up to a rotation, and side knowledge gives the rotation. The bars are guessing
the mean of standardized features, zero, with a relative error of 1, and what the same side
knowledge gives with the label party's own columns, which may correlate with the peer's.

If the label party has a head over representations, X is regressed on these and its own columns,
fitted to known rows. The bar is the same regression on its own columns only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.adversary_view import SeenRound, rounds_of
from securevfl.attacks.factored_features import (
    binary_columns,
    features_from_anchors,
    independent_components,
    spread_anchors,
)
from securevfl.attacks.gram import (
    ExactKnowledge,
    GramKnowledge,
    factor_from_exact_steps,
    factor_from_fixed_batches,
    factor_from_full_batches,
    factor_from_minibatches,
    span_of,
)
from securevfl.attacks.scored_features import features_beside
from securevfl.auditing.figures import (
    binary_ones,
    feature_error,
    features_alone,
    gram_error,
    matched_correlation,
    recall_and_precision,
    rotated_correlations,
)
from securevfl.auditing.judging import CORRELATION, RECALL, RELATIVE_ERROR, Finding, NotRun
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject, table_of
from securevfl.auditing.views import predictions_of
from securevfl.errors import ConfigError
from securevfl.protocols.plan import Plan
from securevfl.shown import curve

STEPS = "rank of X, step size, Q, local rule"
# Known rows per regressor, at most half of all; random draws of known rows.
KNOWN, DRAWS, HEAD_ROUNDS = 2, 5, 200
THIS_JOB, FULL_BATCHES = "this job's batches", "full batches"
FULL_LENGTH = "all rows, tolerance = 0"  # exact steps use full batches anyway, but end early
MOST_ROUNDS = 600  # of a run for an audit
# What-ifs: the rows of full batches, and rounds per dimension.
FULL_ROWS, SLOW_ROWS = 512, 128
ROUNDS_A_DIMENSION, SLOW_ROUNDS = 20, 6
SHORTFALL = 1.5
CURVE_POINTS = 8


@dataclass(frozen=True, eq=False)
class Recovered:
    """X up to a rotation, as recovered by an attack."""

    factor: FloatArray  # F, shape (N, rank)
    span: FloatArray  # columns of the same span, or of a larger one within that of X
    features: FloatArray  # the truth, shape (N, P)
    own: FloatArray  # the label party's columns, shape (N, Q)
    case: str
    rounds: int


def unseen(subject: Subject) -> str:
    """Why the label party has no single party's predictions to work on; empty where it has."""
    reason = "the label party sees no single party's predictions"
    return "" if subject.learns.predictions == "singly" else reason


@add_attack
@partial(Attack, "gram", "label party", STEPS, immune=unseen, place=20, cost=10.0, quick=False)
def gram(subject: Subject) -> Iterable[AttackCase]:
    """XXᵀ from predictions: of this job's batches, and of full batches."""
    yield AttackCase(lambda: _gram(subject, _from_job(subject)), THIS_JOB)
    case = _what_if(subject)
    yield AttackCase(lambda: _gram(subject, _from_full_batches(subject)), case, what_if=True)


@add_attack
@partial(
    Attack,
    "anchors",
    "label party",
    f"{STEPS}; as many rows as rank",
    immune=unseen,
    takes_head=True,
    place=30,
)
def anchors(subject: Subject) -> Iterable[AttackCase]:
    """X from its Gram matrix and rank X known rows; or from representations."""
    if subject.plan.representation is not None:
        knowledge = f"{KNOWN} x as many rows as numbers, in u_k and its own columns"
        return [AttackCase(partial(_from_representations, subject), side_knowledge=knowledge)]
    return _from_either(_anchors, subject)


def _from_either(
    measure: Callable[[Subject, Recovered], Finding], subject: Subject
) -> Iterable[AttackCase]:
    """From the job's batches, or else, as a what-if, from full batches."""
    try:
        found = _from_job(subject)
    except ConfigError as error:
        reason = NotRun(str(error))
        yield AttackCase(lambda: reason, THIS_JOB)
        case = _what_if(subject)
        yield AttackCase(lambda: measure(subject, _from_full_batches(subject)), case, what_if=True)
    else:
        yield AttackCase(partial(measure, subject, found))


def _gram(subject: Subject, found: Recovered) -> Finding:
    with_curve = found.case != THIS_JOB and subject.with_curves
    detail = {
        "rounds": found.rounds,
        "rank": found.factor.shape[1],
        "rank_of_features": int(np.linalg.matrix_rank(found.features)),
        "rows": len(found.features),
        "curves": [_by_rounds(subject)] if with_curve else [],
    }
    value = gram_error(found.factor, found.features)
    return Finding(RELATIVE_ERROR, value, chance=1.0, detail=detail)


def _anchors(subject: Subject, found: Recovered) -> Finding:
    generator = np.random.default_rng([subject.seed, 3])
    order = spread_anchors(found.factor, found.factor.shape[1], generator)
    counts = sorted({*np.linspace(0, len(order), CURVE_POINTS).astype(int), len(order) - 1})
    errors = [_anchored(found, order[:count]) for count in counts]
    shown = curve(
        "How many known rows undo the rotation",
        "known rows",
        "relative error of the others",
        [int(count) for count in counts],
        {"error": errors},
        log_y=True,
    )
    detail = {"anchors": len(order), "x_from": found.case, "curves": [shown]}
    alone = feature_error(features_alone(found.own, found.features, order), found.features, order)
    return Finding(RELATIVE_ERROR, errors[-1], 1.0, alone, detail=detail)


def _components(subject: Subject, found: Recovered) -> Finding:
    turned = independent_components(found.factor, subject.seed)
    guessed = rotated_correlations(found.factor, found.features, subject.seed)
    return Finding(
        CORRELATION,
        matched_correlation(turned, found.features),
        chance=float(guessed.mean()),
        model_alone=matched_correlation(found.own, found.features),
        error=float(guessed.std(ddof=1)),
        detail={
            "x_from": found.case,
            "rows": len(found.features),
            "rank": found.factor.shape[1],
            "rounds": found.rounds,
        },
    )


def binary(subject: Subject, found: Recovered) -> Finding:
    """The share of columns of two values that are found."""
    if not binary_ones(found.features).size:
        raise ConfigError("X has no column of two values")
    columns = binary_columns(found.span, subject.seed)
    recall, precision = recall_and_precision(columns, found.features)
    detail = {"precision": precision, "found": columns.shape[1], "x_from": found.case}
    alone = recall_and_precision(binary_ones(found.own), found.features)[0]
    return Finding(RECALL, recall, chance=0.0, model_alone=alone, detail=detail)


for _name, _measure, _columns, _place in (
    ("components", _components, "columns are independent, not Gaussian", 40),
    ("binary_columns", binary, "columns have two values", 50),
):
    add_attack(
        Attack(
            _name,
            "label party",
            f"{STEPS}; {_columns}",
            partial(_from_either, _measure),
            immune=unseen,
            place=_place,
        )
    )


def _from_job(subject: Subject) -> Recovered:
    """From as many rounds of the job as the attack needs, up to `MOST_ROUNDS`."""
    _check_linear_steps(subject.plan)
    size, rows = _rank(subject), len(subject.dataset.train_labels)
    batches = subject.plan.schedule.batches
    if subject.plan.derives_steps:
        _check_derived(subject.plan)
        # No more than the job has: few rounds are the point of exact steps.
        rounds = min(subject.job.job.rounds, MOST_ROUNDS)
        return _recovered(subject, subject.record(rounds=rounds), size, THIS_JOB)
    if subject.job.job.sampling == "shuffle":
        settings = subject.job.job
        if subject.plan.rule.local_steps > 1 or settings.l2 or settings.proximal:
            raise ConfigError("reshuffled batches: this attack needs single steps, no penalties")
        rounds, why = (rows + SLOW_ROUNDS) * batches, f"{rows} rows, reshuffled,"
    else:
        rounds = ceil(SHORTFALL * size * batches**2) + SLOW_ROUNDS
        why = f"rank {size} and {batches} batches"
    if rounds > MOST_ROUNDS:
        raise ConfigError(f"{why} need about {rounds:,} rounds: an audit runs {MOST_ROUNDS}")
    return _recovered(subject, subject.record(rounds=rounds), size, THIS_JOB)


def _from_full_batches(subject: Subject) -> Recovered:
    small, recording, size = _full_batches(subject)
    return _recovered(small, recording, size, _what_if(subject))


def _what_if(subject: Subject) -> str:
    return FULL_LENGTH if subject.plan.rule.exact else FULL_BATCHES


def _full_batches(subject: Subject) -> tuple[Subject, Recording, int]:
    _check_linear_steps(subject.plan)
    small = subject.with_rows(SLOW_ROWS if subject.is_slow else FULL_ROWS)
    size = _rank(small)
    rounds = (SLOW_ROUNDS if subject.is_slow else ROUNDS_A_DIMENSION) * (size + 1)
    endless = {"tolerance": 0.0} if small.plan.rule.exact else {}
    return small, small.record(rounds=rounds, batch_size="full", **endless), size


def _recovered(subject: Subject, recording: Recording, size: int, case: str) -> Recovered:
    rounds = label_party_rounds(recording, subject.feature_party)
    features = recording.adversary(subject.feature_party).inputs
    own = table_of(recording.dataset, recording.dataset.label_party).train
    factor = _factor(recording, rounds, size)
    span = factor
    if recording.plan.full_batches:  # predictions of few rounds span more than F
        span = span_of(np.hstack([each.predictions for each in rounds]), size)
    return Recovered(factor, span, features, own, case, len(rounds))


def label_party_rounds(recording: Recording, party: str) -> list[SeenRound]:
    """All rounds of a run as the label party sees them, for attacks on one feature party."""
    label_party = recording.dataset.label_party
    others = [table.name for table in recording.dataset.parties if table.name != label_party]
    view = recording.view(label_party)
    seen = {name: predictions_of(view, name) for name in others}
    return rounds_of(seen, recording.adversary(label_party), party)


def _factor(recording: Recording, rounds: Sequence[SeenRound], size: int) -> FloatArray:
    job, plan = recording.job.job, recording.plan
    if plan.rule.own_loss:
        raise ConfigError("steps that follow the loss itself: this attack needs quadratic steps")
    if plan.derives_steps:
        return factor_from_exact_steps(rounds, exact_knowledge(recording, size))
    step_sizes = [plan.step_size.at(index) for index in range(len(rounds))]
    knowledge = GramKnowledge(size, plan.rule, step_sizes)
    if job.batch_size == "full":
        return factor_from_full_batches(rounds, knowledge)
    if job.sampling == "shuffle":
        rows = len(recording.dataset.train_labels)
        return factor_from_minibatches(rounds, rows, step_sizes[0], size)
    return factor_from_fixed_batches(rounds, knowledge)


def exact_knowledge(recording: Recording, size: int) -> ExactKnowledge:
    """How the parties of a run with exact steps move."""
    plan, adversary = recording.plan, recording.adversary(recording.dataset.label_party)
    _check_derived(plan)
    pace = plan.steps(adversary.model, adversary.inputs, recording.columns).pace
    return ExactKnowledge(size, plan.rule, pace, recording.decisions)


def _check_linear_steps(plan: Plan) -> None:
    """Thresholds and line searches make steps that are not linear in XXᵀ.

    That protects nothing: predictions span the columns in use whatever the steps are.
    """
    if not plan.algorithm.gradient_steps or plan.job.job.l1:
        raise ConfigError(
            "this attack needs plain gradient steps without l1; held_out_features shows that "
            "predictions span the columns in use all the same"
        )


def _check_derived(plan: Plan) -> None:
    if not plan.rule.exact:
        raise ConfigError("step sizes that are derived from X: this attack needs known ones")
    if not plan.full_batches:
        raise ConfigError("exact steps on minibatches: this attack needs full batches")


def _rank(subject: Subject) -> int:
    features = table_of(subject.dataset, subject.feature_party).train
    return int(np.linalg.matrix_rank(features))


def _by_rounds(subject: Subject) -> dict[str, object]:
    small, recording, size = _full_batches(subject)
    rounds = label_party_rounds(recording, small.feature_party)
    features = recording.adversary(small.feature_party).inputs
    counts = np.unique(np.geomspace(2, len(rounds), 2 * CURVE_POINTS).astype(int))
    errors = [gram_error(_factor(recording, rounds[:count], size), features) for count in counts]
    return curve(
        "X up to a rotation from full batches",
        "rounds",
        "relative error of XXᵀ",
        counts.tolist(),
        {"error": errors},
        log_x=True,
        log_y=True,
    )


def _anchored(found: Recovered, rows: IntArray) -> float:
    estimate = features_from_anchors(found.factor, rows, found.features[rows])
    return feature_error(estimate, found.features, rows)


def _from_representations(subject: Subject) -> Finding:
    """X of the unknown rows from the last u_k of each in the view."""
    recording = subject.record(rounds=min(subject.job.job.rounds, HEAD_ROUNDS))
    dataset, party = recording.dataset, subject.feature_party
    adversary = recording.adversary(dataset.label_party)
    seen = predictions_of(recording.view(adversary.name), party)
    given = np.zeros((len(dataset.train_labels), seen[0].shape[1]))
    visited = np.zeros(len(given), dtype=bool)
    # If parties take turns, all of them take part in the first exchange of a round.
    for rows, values in zip(
        recording.batches, seen[:: len(seen) // len(recording.batches)], strict=True
    ):
        given[rows], visited[rows] = values, True
    features = table_of(dataset, party).train[visited]
    given, own = given[visited], adversary.inputs[visited]
    rank = int(np.linalg.matrix_rank(features))
    count = min(KNOWN * (given.shape[1] + own.shape[1]), len(features) // 2)
    generator = np.random.default_rng([subject.seed, 7])
    errors: list[float] = []
    alone: list[float] = []
    for _ in range(DRAWS):
        known = generator.permutation(len(features))[:count]
        for columns, found in ((np.hstack([given, own]), errors), (own, alone)):
            estimate = features_beside(columns, known, features[known])
            found.append(feature_error(estimate, features, known))
    return Finding(
        RELATIVE_ERROR,
        float(np.median(errors)),
        chance=1.0,
        model_alone=float(np.median(alone)),
        detail={
            "rounds": recording.result.rounds,
            "numbers_a_row": given.shape[1],
            "rank_of_features": rank,
            "known_rows": count,
            "rows": len(features),
        },
    )
