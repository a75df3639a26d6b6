"""A round as the label party has it, for attacks on features, from its own training once more."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.errors import ConfigError
from securevfl.models.local_model import LocalModel
from securevfl.protocols.local_steps import Course
from securevfl.protocols.plan import Plan
from securevfl.protocols.signals import PredictionsSignal


@dataclass(frozen=True, eq=False)
class LabelPartyKnowledge:
    """What the label party holds anyway.

    Attributes:
        inputs: its own X, shape (N, P), scaled as in training.
        labels: its own, shape (N,).
        model: its local model at θ⁰.
        batches: the public schedule, row numbers of every round.
        plan: the job's rounds, steps and loss.
        columns: P of all parties together.
        courses: what it said at every round.
        row_offsets: what it added to H, shape (N, C), if anything.
    """

    inputs: FloatArray
    labels: Labels
    model: LocalModel
    batches: Sequence[IntArray]
    plan: Plan
    columns: int
    courses: Sequence[Course]
    row_offsets: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Round:
    """One exchange as the label party has it.

    Attributes:
        rows: of the batch, shape (S,).
        predictions: H_k of the party under attack, shape (S, C).
        residuals: d of the batch, shape (S, C).
    """

    rows: IntArray
    predictions: FloatArray
    residuals: FloatArray


def rounds_of(
    predictions: Mapping[str, Sequence[FloatArray]], knowledge: LabelPartyKnowledge, party: str
) -> list[Round]:
    """Repeat the label party's own training, to have d of every round.

    Args:
        predictions: by feature party, what the view holds of it, one a round, shapes (S, C).
        knowledge: see there.
        party: the feature party under attack.

    Raises:
        ConfigError: a job whose parties take turns, or predictions that are not in the view.
    """
    plan = knowledge.plan
    if plan.algorithm.in_turns:
        raise ConfigError("parties take turns: the attack takes rounds that all take together")
    for name, seen in predictions.items():
        if len(seen) < len(knowledge.batches):
            raise ConfigError(f"predictions of {name}: {len(seen)} rounds in the view")
    model, rounds = deepcopy(knowledge.model), []
    steps = plan.steps(model, knowledge.inputs, knowledge.columns)
    for index, (rows, course) in enumerate(zip(knowledge.batches, knowledge.courses, strict=True)):
        steps.begin(index, len(rows))
        others = np.asarray(np.sum([seen[index] for seen in predictions.values()], axis=0))
        if knowledge.row_offsets is not None:
            others = others + knowledge.row_offsets[rows]
        inputs, labels = knowledge.inputs[rows], knowledge.labels[rows]
        own = model.predict(inputs)
        residuals = plan.rule.loss.residuals(others + own, labels)
        rounds.append(Round(rows, predictions[party][index], residuals))
        signal = PredictionsSignal(others, labels)
        steps.take(course, inputs, predictions=own, signal=signal)
    return rounds
