"""What a party holds when it turns against the others, and what it can repeat of its own training.

A party that knows its θ⁰, its columns, the schedule and the job can take its own steps once more:
a feature party from the gradients in its view (`replay`), the label party from predictions
(`rounds_of`). So it has its own predictions, or the residuals, of every round, too.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.attacks.row_spaces import RowSpace
from securevfl.errors import ConfigError
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import LocalModel
from securevfl.protocols.local_steps import Course, GradientSignal, PredictionsSignal
from securevfl.protocols.plan import Plan


@dataclass(frozen=True, eq=False)
class Seat:
    """All that a party holds anyway, beside what it received."""

    name: str
    inputs: FloatArray  # its X as it trains on it, shape (N, P)
    model: LocalModel  # its local model at θ⁰
    labels: Labels | None  # shape (N,), at the label party only
    # What it adds to H, shape (N, C), at the label party only, if anything
    row_offsets: FloatArray | None
    plan: Plan  # of the job as it ran: public
    batches: Sequence[IntArray]  # the row numbers of every round: public
    columns: int  # P of all parties together, told before the first round
    courses: Sequence[Course]  # what the label party told all others at every round

    @property
    def answered(self) -> list[IntArray]:
        """The rows of every round that was answered by residuals."""
        pairs = zip(self.batches, self.courses, strict=True)
        return [rows for rows, course in pairs if not (course.back or course.stop)]


@dataclass(frozen=True, eq=False)
class Visit:
    """One look at a batch: basisᵀd."""

    rows: IntArray  # shape (S,)
    space: RowSpace  # of J, for which Jᵀd was seen: X of the batch, or a Jacobian
    seen: FloatArray  # basisᵀd, shape (rank, C)
    predictions: FloatArray  # the party's own H_k then, shape (S, C)


def replay(gradients: Sequence[FloatArray], seat: Seat) -> tuple[list[Visit], FloatArray]:
    """Repeat a feature party's training from its gradients Xᵀd/S, with a linear model.

    Gradients have shape (P, C), one a round, of steps that follow no more than them. Returns its
    visits, and its H_k of all rows after the last round, shape (N, C).
    """
    if seat.plan.rule.own_loss:
        raise ConfigError("steps that follow the loss itself are not repeated from gradients")
    if not gradients or len(gradients) > len(seat.batches):
        raise ConfigError(f"gradients: {len(gradients)} rounds, expected 1 to {len(seat.batches)}")
    model = LinearModel(seat.model.weights)
    spaces: dict[bytes, RowSpace] = {}
    visits = []
    steps = seat.plan.steps(model, seat.inputs, seat.columns)
    pending = deque(gradients)
    for index, (rows, course) in enumerate(zip(seat.batches, seat.courses, strict=True)):
        steps.begin(index, len(rows))
        if course.back or course.stop:
            steps.follow(course)
            continue
        if not pending:
            break
        gradient = pending.popleft()
        if gradient.shape != seat.model.weights.shape:
            raise ConfigError(
                f"gradient of shape {gradient.shape}, expected {seat.model.weights.shape}"
            )
        matrix = seat.inputs[rows]
        key = rows.tobytes()
        if key not in spaces:
            spaces[key] = RowSpace.of(matrix)
        space = spaces[key]
        predictions = model.predict(matrix)
        visits.append(Visit(rows, space, space.coordinates(gradient * len(rows)), predictions))
        steps.take(course, matrix, predictions=predictions, signal=GradientSignal(gradient))
    return visits, model.predict(seat.inputs)


@dataclass(frozen=True, eq=False)
class SeenRound:
    """One exchange as the label party has it."""

    rows: IntArray  # of the batch, shape (S,)
    predictions: FloatArray  # H_k of the party under attack, shape (S, C)
    residuals: FloatArray  # d of the batch, shape (S, C)


def rounds_of(
    predictions: Mapping[str, Sequence[FloatArray]], seat: Seat, party: str
) -> list[SeenRound]:
    """Repeat the label party's own training, to have d of every round, for attacks on one party.

    Predictions are by feature party what the view holds of it, one a round, shapes (S, C). Parties
    that take turns are not attacked.
    """
    plan = seat.plan
    if plan.algorithm.alternating:
        raise ConfigError("parties take turns: the attack takes rounds that all take together")
    for name, seen in predictions.items():
        if len(seen) < len(seat.batches):
            raise ConfigError(f"predictions of {name}: {len(seen)} rounds in the view")
    assert seat.labels is not None  # noqa: S101
    model, rounds = deepcopy(seat.model), []
    steps = plan.steps(model, seat.inputs, seat.columns)
    for index, (rows, course) in enumerate(zip(seat.batches, seat.courses, strict=True)):
        steps.begin(index, len(rows))
        others = np.asarray(np.sum([seen[index] for seen in predictions.values()], axis=0))
        if seat.row_offsets is not None:
            others = others + seat.row_offsets[rows]
        inputs, labels = seat.inputs[rows], seat.labels[rows]
        own = model.predict(inputs)
        residuals = plan.rule.loss.residuals(others + own, labels)
        rounds.append(SeenRound(rows, predictions[party][index], residuals))
        signal = PredictionsSignal(others, labels)
        steps.take(course, inputs, predictions=own, signal=signal)
    return rounds
