"""What the label party reads of held-out rows' features from scorings, as rows of the audit.

At the job's own settings of scoring, which other measures leave out. The bars are guessing the
mean, zero, and what the same known rows tell from the label party's own columns and one prediction
by the trained model, which whoever uses it gets of everyone (without that prediction:
`own_columns`). So one scoring, at the end, is not above its bar; every further one is.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
from scipy.linalg import subspace_angles

from securevfl.arrays import FloatArray
from securevfl.attacks.anchors import spread_anchors
from securevfl.attacks.held_out import (
    HeldOutKnowledge,
    column_space,
    features_beside,
    held_out_features,
)
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.measuring import Case, attack_in_cases
from securevfl.auditing.scoring import feature_error
from securevfl.auditing.seats import table_of
from securevfl.auditing.subject import Subject
from securevfl.auditing.views import held_out_of
from securevfl.errors import ConfigError

# Of an exchange that is slow: scoring takes no products, but the rounds between do.
SLOW_ROWS = 128
WHAT_IF_ROUNDS = 100
# Where scorings do not span X it takes more known rows to tell what goes with them.
KNOWN = 4
# Who is known is chance, and figures are medians over so many draws.
DRAWS = 8


def _unseen(subject: Subject) -> str:
    if subject.scoring["eval_every"] == "never":
        return "the job never scores"
    seen = subject.exchange.held_out(subject.job, len(subject.dataset.parties))
    return "scoring shows no prediction of a row" if seen == "hidden" else ""


@attack_in_cases(
    "held_out_features",
    "label party",
    f"as many rows as rank; {KNOWN} times as many where scorings are fewer",
    immune=_unseen,
)
def held_out(subject: Subject) -> Iterable[Case]:
    """Held-out rows from the job's own scorings, and from one every round."""
    yield Case(partial(_features, subject), "this job's scorings")
    if subject.exchange.shares_parameters:
        return  # nobody could score before the end, whatever a job says
    every = {"eval_every": 1, "target_auc": None, "rounds": WHAT_IF_ROUNDS, "tolerance": 0.0}
    yield Case(partial(_features, subject, **every), "scored every round", what_if=True)


def _features(subject: Subject, **changes: object) -> Finding:
    settings: dict[str, object] = {**subject.scoring, **changes}
    if subject.is_slow:
        subject = subject.with_rows(SLOW_ROWS)
        settings["batch_size"] = "full"
    if subject.plan.networks.keys() - {subject.dataset.label_party}:
        raise ConfigError("predictions of networks span more than features: not attacked here")
    recording = subject.record(**settings)
    dataset, plan = recording.dataset, recording.plan
    view = recording.result.views[dataset.label_party]
    scorings, rounding = held_out_of(view, subject.feature_party)
    singly = rounding == 0
    others = [each.name for each in dataset.parties if each.name != dataset.label_party]
    attacked = [subject.feature_party] if singly else others
    features: FloatArray = np.hstack([table_of(dataset, name).test for name in attacked])
    own = table_of(dataset, dataset.label_party).test
    space, rank = column_space(scorings, rounding), int(np.linalg.matrix_rank(features))
    # Under noise scorings span nothing exactly; all of them together tell most.
    noisy = plan.exchange.adds_noise
    spans = space.shape[1] >= rank and not noisy
    count = rank if spans else min(KNOWN * rank, len(features) // 2)
    generator = np.random.default_rng([subject.seed, 5])
    errors, alone, with_one = [], [], []
    for _ in range(DRAWS):
        rows = spread_anchors(features, count, generator)
        knowledge = HeldOutKnowledge(rows, features[rows], own, rank)
        if noisy:
            found = features_beside(np.hstack([*scorings, own]), knowledge)
        else:
            found = held_out_features(space, knowledge)
        errors.append(feature_error(found, features, rows))
        alone.append(feature_error(features_beside(own, knowledge), features, rows))
        beside = np.hstack([scorings[-1], own])
        with_one.append(feature_error(features_beside(beside, knowledge), features, rows))
    return Finding(
        RELATIVE_ERROR,
        float(np.median(errors)),
        chance=1.0,
        model_alone=float(min(np.median(alone), np.median(with_one))),
        detail={
            "scorings": len(recording.result.scores),
            "scored": "singly" if singly else "summed",
            "rank": space.shape[1],
            "rank_of_features": rank,
            "known_rows": count,
            "own_columns": float(np.median(alone)),
            "least_cosine": float(np.cos(subspace_angles(space, features)).min()),
        },
    )
