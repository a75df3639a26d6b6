"""Attacks on held-out rows' features through their predictions, measured.

*From scorings*, by the label party, with the job's own settings of scoring, which other attacks
leave out. The bars are guessing the mean, zero, and a regression, fitted to the same known rows, on
the label party's own columns and one prediction by the trained model, which every user of the model
gets (`own_columns` is without that prediction). A single scoring at the end is therefore not above
its bar, but further ones are.

*At prediction time*, by equality solving. The bar is the best linear guess from the scores.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
from scipy.linalg import subspace_angles
from scipy.special import expit, softmax

from securevfl.arrays import FloatArray
from securevfl.attacks.factored_features import spread_anchors
from securevfl.attacks.scored_features import (
    column_space,
    equations_and_unknowns,
    features_beside,
    features_from_scores,
    held_out_features,
)
from securevfl.auditing.figures import feature_error
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, table_of
from securevfl.auditing.views import held_out_of
from securevfl.errors import ConfigError

SLOW_ROWS = 128  # of slow exchanges, whose rounds between scorings take long
WHAT_IF_ROUNDS = 100
KNOWN = 4  # known rows over rank X, if scorings do not span X
DRAWS = 8  # of known rows; figures are medians
# Of equality solving.
PROBABILITIES = {"logistic", "multinomial"}
TRAINED_ROUNDS = 20


def _unseen(subject: Subject) -> str:
    if subject.scoring["eval_every"] == "never":
        return "the job never scores"
    seen = subject.exchange.held_out(subject.job, len(subject.dataset.parties))
    return "scoring shows no prediction of a row" if seen == "hidden" else ""


@add_attack
@partial(
    Attack,
    "held_out_features",
    "label party",
    f"as many rows as rank; {KNOWN} times as many where scorings are fewer",
    immune=_unseen,
    place=60,
    cost=5.0,
    quick=False,
)
def held_out(subject: Subject) -> Iterable[AttackCase]:
    """Held-out rows from the job's own scorings, and from scorings after every round."""
    yield AttackCase(partial(_features, subject), "this job's scorings")
    if subject.exchange.shares_parameters:
        return  # no party can score before the end, whatever the job says
    every = {"eval_every": 1, "target_auc": None, "rounds": WHAT_IF_ROUNDS, "tolerance": 0.0}
    yield AttackCase(partial(_features, subject, **every), "scored every round", what_if=True)


def _features(subject: Subject, **changes: object) -> Finding:
    settings: dict[str, object] = {**subject.scoring, **changes}
    if subject.is_slow:
        subject = subject.with_rows(SLOW_ROWS)
        settings["batch_size"] = "full"
    if subject.plan.networks.keys() - {subject.dataset.label_party}:
        raise ConfigError("held_out_features supports no networks, which span more than features")
    recording = subject.record(**settings)
    dataset, plan = recording.dataset, recording.plan
    view = recording.view(dataset.label_party)
    scorings, rounding = held_out_of(view, subject.feature_party)
    singly = rounding == 0
    others = [each.name for each in dataset.parties if each.name != dataset.label_party]
    attacked = [subject.feature_party] if singly else others
    features: FloatArray = np.hstack([table_of(dataset, name).test for name in attacked])
    own = table_of(dataset, dataset.label_party).test
    space, rank = column_space(scorings, rounding), int(np.linalg.matrix_rank(features))
    # Noisy scorings span nothing exactly; a regression on all of them reads most.
    noisy = plan.exchange.adds_noise
    spans = space.shape[1] >= rank and not noisy
    count = rank if spans else min(KNOWN * rank, len(features) // 2)
    generator = np.random.default_rng([subject.seed, 5])
    errors, alone, with_one = [], [], []
    for _ in range(DRAWS):
        rows = spread_anchors(features, count, generator)
        known = features[rows]
        if noisy:
            found = features_beside(np.hstack([*scorings, own]), rows, known)
        else:
            found = held_out_features(space, own, rows, known, rank)
        errors.append(feature_error(found, features, rows))
        alone.append(feature_error(features_beside(own, rows, known), features, rows))
        beside = np.hstack([scorings[-1], own])
        with_one.append(feature_error(features_beside(beside, rows, known), features, rows))
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


@add_attack
@partial(
    Attack,
    "equality_solving",
    "label party, at prediction time",
    "the whole trained model",
    place=220,
)
def equality_solving(subject: Subject) -> Finding:
    """Held-out people's features from their scores and the joint model."""
    loss = subject.plan.loss
    if loss.name not in PROBABILITIES:
        raise ConfigError(f"{loss.name} loss gives no probabilities")
    recording = subject.record(rounds=TRAINED_ROUNDS)
    tables = {table.name: table for table in recording.dataset.parties}
    weights = {name: outcome.model.weights for name, outcome in recording.result.outcomes.items()}
    target = tables[subject.feature_party].test
    predictions = {
        name: recording.adversary(name).model.inputs(table.test) @ weights[name]
        for name, table in tables.items()
    }
    total = np.sum(list(predictions.values()), axis=0)
    scores = expit(total) if loss.outputs == 1 else softmax(total, axis=1)
    own = total - predictions[subject.feature_party]
    found = features_from_scores(scores, weights[subject.feature_party], own)
    equations, unknowns = equations_and_unknowns(weights[subject.feature_party])
    # The best linear guess from the score, which anybody can make who knows the population.
    beside = np.hstack([np.ones((len(total), 1)), total])
    guess = beside @ np.linalg.lstsq(beside, target, rcond=None)[0]
    size = float(np.linalg.norm(target))
    return Finding(
        RELATIVE_ERROR,
        float(np.linalg.norm(found - target)) / size,
        chance=float(np.linalg.norm(target - target.mean(axis=0))) / size,
        model_alone=float(np.linalg.norm(target - guess)) / size,
        detail={"equations": equations, "unknowns": unknowns},
    )
