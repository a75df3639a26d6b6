"""Equality solving at prediction time, as a row of the audit."""

import numpy as np
from scipy.special import expit, softmax

from securevfl.attacks.inference import ModelKnowledge, equations_and_unknowns, features_from_scores
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.measuring import attack
from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError

PROBABILITIES = {"logistic", "multinomial"}
ROUNDS = 20


@attack("equality_solving", "label party, at prediction time", "the whole trained model")
def equality_solving(subject: Subject) -> Finding:
    """Held-out people's features from their scores and the joint model."""
    loss = subject.plan.loss
    if loss.name not in PROBABILITIES:
        raise ConfigError(f"{loss.name} loss gives no probabilities")
    recording = subject.record(rounds=ROUNDS)
    tables = {table.name: table for table in recording.dataset.parties}
    weights = {name: outcome.model.weights for name, outcome in recording.result.outcomes.items()}
    target = tables[subject.feature_party].test
    predictions = {
        name: recording.seat(name).model.inputs(table.test) @ weights[name]
        for name, table in tables.items()
    }
    total = np.sum(list(predictions.values()), axis=0)
    knowledge = ModelKnowledge(
        weights[subject.feature_party], total - predictions[subject.feature_party]
    )
    scores = expit(total) if loss.outputs == 1 else softmax(total, axis=1)
    found = features_from_scores(scores, knowledge)
    equations, unknowns = equations_and_unknowns(knowledge)
    # What anybody reads off a score who knows the population: the best linear guess from it.
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
