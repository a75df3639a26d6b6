"""What the label party reads of a feature party's X, as rows of the audit.

First X up to a rotation, from predictions; then the rotation, from side knowledge. Without the view
the best guess of standardized features is their mean, zero, which has a relative error of 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.attacks.anchors import (
    AnchorKnowledge,
    feature_error,
    features_from_anchors,
    spread_anchors,
)
from securevfl.attacks.binary_columns import (
    BinaryKnowledge,
    binary_columns,
    has_binary_columns,
    recall_and_precision,
)
from securevfl.attacks.components import (
    IndependenceKnowledge,
    independent_components,
    matched_correlation,
    rotated_correlation,
)
from securevfl.attacks.gram import (
    GramKnowledge,
    factor_from_fixed_batches,
    factor_from_full_batches,
    gram_error,
)
from securevfl.attacks.gram_rows import factor_from_minibatches
from securevfl.attacks.rounds import Round
from securevfl.audit.finding import CORRELATION, RECALL, RELATIVE_ERROR, Finding, curve
from securevfl.audit.own_replay import rounds_of
from securevfl.audit.subject import Measurement, Recording, Subject
from securevfl.errors import ConfigError

ADVERSARY = "label party"
STEPS = "rank of X, step size, Q, local rule"
# Longer runs are not made for an audit.
MOST_ROUNDS = 600
# What-ifs: full batches of so many rows, some rounds for each dimension.
FULL_ROWS, SLOW_ROWS = 512, 128
ROUNDS_A_DIMENSION, SLOW_ROUNDS = 20, 6
SHORTFALL = 1.5
CURVE_POINTS = 8
UNSEEN = "the label party sees no single party's predictions"


@dataclass(frozen=True, eq=False)
class Recovered:
    """X up to a rotation, as an attack found it.

    Attributes:
        factor: F, shape (N, d).
        features: the truth, shape (N, P).
        case: from what.
        what_if: whether from other batches than the job's.
        rounds: how many.
    """

    factor: FloatArray
    features: FloatArray
    case: str
    what_if: bool
    rounds: int


def gram(subject: Subject) -> Iterator[Measurement]:
    """XXᵀ from predictions: of this job's batches, and of full batches."""
    cell = partial(Measurement, "gram", adversary=ADVERSARY, side_knowledge=STEPS)
    if not subject.shows_predictions:
        yield cell(reason=UNSEEN)
        return
    for attempt, what_if in ((_from_job, False), (_from_full_batches, True)):
        name = "full batches" if what_if else "this job's batches"
        try:
            found = attempt(subject)
        except ConfigError as error:
            yield cell(name, reason=str(error), what_if=what_if)
        else:
            yield cell(name, finding=_gram_finding(subject, found), what_if=what_if)


def anchors(subject: Subject) -> Iterator[Measurement]:
    """X from its Gram matrix and as many known rows as it has rank."""
    cell = partial(
        Measurement, "anchors", adversary=ADVERSARY, side_knowledge=f"{STEPS}; as many rows as rank"
    )
    found = _either(subject)
    if isinstance(found, str):
        yield cell(reason=found)
        return
    generator = np.random.default_rng([subject.seed, 3])
    order = spread_anchors(found.factor, found.factor.shape[1], generator)
    counts = sorted({*np.linspace(0, len(order), CURVE_POINTS).astype(int), len(order) - 1})
    errors = [_anchored(found, order[:count]) for count in counts]
    finding = Finding(
        RELATIVE_ERROR,
        errors[-1],
        chance=1.0,
        detail={
            "anchors": len(order),
            "x_from": found.case,
            "curves": [
                curve(
                    "How many known rows undo the rotation",
                    "known rows",
                    "relative error of the others",
                    [int(count) for count in counts],
                    {"error": errors},
                    log_y=True,
                )
            ],
        },
    )
    yield cell(finding=finding, what_if=found.what_if)


def components(subject: Subject) -> Iterator[Measurement]:
    """Columns of X, if they are independent."""
    cell = partial(
        Measurement,
        "components",
        adversary=ADVERSARY,
        side_knowledge=f"{STEPS}; columns are independent, not Gaussian",
    )
    found = _either(subject)
    if isinstance(found, str):
        yield cell(reason=found)
        return
    knowledge = IndependenceKnowledge(subject.seed)
    value = matched_correlation(independent_components(found.factor, knowledge), found.features)
    finding = Finding(
        CORRELATION,
        value,
        chance=rotated_correlation(found.factor, found.features, subject.seed),
        detail={"x_from": found.case, "rows": len(found.features)},
    )
    yield cell(finding=finding, what_if=found.what_if)


def binary(subject: Subject) -> Iterator[Measurement]:
    """0/1 columns of X."""
    cell = partial(
        Measurement,
        "binary_columns",
        adversary=ADVERSARY,
        side_knowledge=f"{STEPS}; columns are 0 or 1",
    )
    found = _either(subject)
    if isinstance(found, str):
        yield cell(reason=found)
        return
    if not has_binary_columns(found.features):
        yield cell(reason="X has no 0/1 columns")
        return
    columns = binary_columns(found.factor, BinaryKnowledge(seed=subject.seed))
    recall, precision = recall_and_precision(columns, found.features)
    detail = {"precision": precision, "found": columns.shape[1], "x_from": found.case}
    yield cell(finding=Finding(RECALL, recall, chance=0.0, detail=detail), what_if=found.what_if)


def _either(subject: Subject) -> Recovered | str:
    """X up to a rotation from the job's batches, else from full ones, else why not."""
    if not subject.shows_predictions:
        return UNSEEN
    try:
        return _from_job(subject)
    except ConfigError:
        try:
            return _from_full_batches(subject)
        except ConfigError as error:
            return str(error)


def _from_job(subject: Subject) -> Recovered:
    """From as many rounds of the job as the attack needs.

    Raises:
        ConfigError: more than an audit makes, or settings that the attack cannot take.
    """
    size, rows = _rank(subject), len(subject.dataset.train_labels)
    batches = subject.plan.schedule.batches
    if subject.job.job.sampling == "shuffle":
        settings = subject.job.job
        if subject.plan.local_steps > 1 or settings.l2 or settings.proximal:
            raise ConfigError("reshuffled batches: this attack takes single steps, no penalties")
        rounds, why = (rows + SLOW_ROUNDS) * batches, f"{rows} rows, reshuffled,"
    else:
        rounds = ceil(SHORTFALL * size * batches**2) + SLOW_ROUNDS
        why = f"rank {size} and {batches} batches"
    if rounds > MOST_ROUNDS:
        raise ConfigError(
            f"{why} take some {rounds:,} rounds, more than an audit makes ({MOST_ROUNDS})"
        )
    return _recovered(subject, subject.record(rounds=rounds), size, "this job's batches")


def _from_full_batches(subject: Subject) -> Recovered:
    """From full batches of the first rows.

    Raises:
        ConfigError: settings that the attack cannot take.
    """
    small, recording, size = _full_batches(subject)
    return _recovered(small, recording, size, "full batches")


def _full_batches(subject: Subject) -> tuple[Subject, Recording, int]:
    small = subject.with_rows(SLOW_ROWS if subject.is_slow else FULL_ROWS)
    size = _rank(small)
    rounds = (SLOW_ROUNDS if subject.is_slow else ROUNDS_A_DIMENSION) * (size + 1)
    return small, small.record(rounds=rounds, batch_size="full"), size


def _recovered(subject: Subject, recording: Recording, size: int, case: str) -> Recovered:
    rounds = rounds_of(
        recording, recording.seat(subject.dataset.label_party), subject.feature_party
    )
    features = recording.seat(subject.feature_party).inputs
    factor = _factor(recording, rounds, size)
    return Recovered(factor, features, case, case != "this job's batches", len(rounds))


def _factor(recording: Recording, rounds: list[Round], size: int) -> FloatArray:
    plan = recording.plan
    knowledge = GramKnowledge(
        dimension=size,
        step_sizes=[plan.step_size.at(index) for index in range(len(rounds))],
        local_steps=plan.rule.local_steps,
        curvature=0.0 if plan.rule.frozen else plan.loss.curvature,
        l2=plan.rule.l2,
        proximal=plan.rule.proximal,
    )
    if plan.job.job.batch_size == "full":
        return factor_from_full_batches(rounds, knowledge)
    if plan.job.job.sampling == "shuffle":
        return factor_from_minibatches(rounds, plan.facts.rows, knowledge.step_sizes[0], size)
    return factor_from_fixed_batches(rounds, knowledge)


def _rank(subject: Subject) -> int:
    names = [table.name for table in subject.dataset.parties]
    table = subject.dataset.parties[names.index(subject.feature_party)]
    return int(np.linalg.matrix_rank(table.train))


def _gram_finding(subject: Subject, found: Recovered) -> Finding:
    curves = [_by_rounds(subject)] if found.what_if and subject.with_curves else []
    detail = {"rounds": found.rounds, "rank": found.factor.shape[1], "rows": len(found.features)}
    value = gram_error(found.factor, found.features)
    return Finding(RELATIVE_ERROR, value, chance=1.0, detail={**detail, "curves": curves})


def _by_rounds(subject: Subject) -> dict[str, object]:
    """The Gram error over the rounds of full batches."""
    small, recording, size = _full_batches(subject)
    rounds = rounds_of(recording, recording.seat(small.dataset.label_party), small.feature_party)
    features = recording.seat(small.feature_party).inputs
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


def _anchored(found: Recovered, rows: NDArray[np.int64]) -> float:
    knowledge = AnchorKnowledge(rows, found.features[rows])
    return feature_error(features_from_anchors(found.factor, knowledge), found.features, rows)
