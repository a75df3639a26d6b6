"""Attacks of the label party on a feature party's rows across several jobs on them, measured.

Each job shows fewer columns of predictions than the rank of the columns, and all together show as
many. So about as many known rows give all others, and columns of two values show without any.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.factored_features import spread_anchors
from securevfl.auditing.figures import feature_error, features_alone
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.measures.features import Recovered, binary, unseen
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, table_of
from securevfl.auditing.views import predictions_of
from securevfl.errors import ConfigError, FeatureLeakRefused

JOBS, MOST_JOBS = 2, 5  # that have as many rounds as rank; that span as much
# Singular values of predictions below this say as little as rounding.
NEGLIGIBLE = 1e-9


Read = Callable[[Subject, FloatArray, FloatArray], Finding]
"""Measures what columns, predictions and a constant, tell of X; shapes (N, n) and (N, P)."""


def _cases(read: Read, subject: Subject) -> Iterable[AttackCase]:
    """From jobs that the feature guard permits and from all."""
    for guarded, name in ((True, "as the guard permits"), (False, "without the guard")):
        measure = partial(_together, read, subject, guarded=guarded)
        yield AttackCase(measure, name, control=not guarded)


def _known_rows(subject: Subject, columns: FloatArray, truth: FloatArray) -> Finding:
    """The other rows' columns, by somebody who knows some."""
    # Unlucky draws leave directions out: twice as many as needed, those first that span most.
    count = 2 * (_rank(truth) + 1)
    known = spread_anchors(columns, count, np.random.default_rng([subject.seed, 8]))
    found = np.linalg.lstsq(columns[known], truth[known], rcond=NEGLIGIBLE)[0]
    alone = features_alone(_own(subject), truth, known)
    return Finding(
        RELATIVE_ERROR,
        min(feature_error(columns @ found, truth, known), 1.0),
        chance=1.0,
        model_alone=min(feature_error(alone, truth, known), 1.0),
        detail={"known_rows": len(known)},
    )


def _two_values(subject: Subject, columns: FloatArray, truth: FloatArray) -> Finding:
    rounds = columns.shape[1] - 1
    return binary(subject, Recovered(columns, columns, truth, _own(subject), "all jobs", rounds))


for _name, _read, _knows, _place in (
    ("features_across_jobs", _known_rows, "twice as many rows as rank", 55),
    ("binary_columns_across_jobs", _two_values, "that columns have two values", 57),
):
    add_attack(
        Attack(
            _name,
            "label party",
            f"{_knows}, and the predictions of several jobs on the same rows",
            partial(_cases, _read),
            immune=unseen,
            place=_place,
            quick=False,
        )
    )


def _own(subject: Subject) -> FloatArray:
    return table_of(subject.dataset, subject.dataset.label_party).train


def _rank(truth: FloatArray) -> int:
    return int(np.linalg.matrix_rank(truth - truth.mean(axis=0)))


def _together(read: Read, subject: Subject, *, guarded: bool) -> Finding:
    dataset, party = subject.dataset, subject.feature_party
    if subject.plan.networks or subject.plan.representation is not None:
        raise ConfigError("predictions of networks are in no column space")
    truth = table_of(dataset, party).train
    if (rank := _rank(truth)) < JOBS:
        raise ConfigError(f"rank {rank}: one round shows all")
    settings = {"rounds": -(-rank // JOBS), "batch_size": "full", "eval_every": "never"}
    settings |= {"allow_label_leak": True, "allow_feature_leak": not guarded, "tolerance": 0.0}
    columns, jobs, refused = np.ones((len(truth), 1)), 0, ""
    with subject.jobs(guarded=True) as run:
        while jobs < MOST_JOBS and np.linalg.matrix_rank(columns, rtol=NEGLIGIBLE) <= rank:
            try:
                recording = run(dataset, **settings, seed=subject.seed + jobs)
            except FeatureLeakRefused as error:
                refused = str(error)
                break
            seen = predictions_of(recording.view(dataset.label_party), party)
            columns, jobs = np.hstack([columns, *seen]), jobs + 1
    finding = read(subject, columns, truth)
    shown = {"jobs": jobs, "columns_shown": columns.shape[1] - 1, "rank": rank, "refused": refused}
    finding.detail.update(shown)
    return finding
