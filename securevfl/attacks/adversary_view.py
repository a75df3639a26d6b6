"""The adversary's view: what a party holds, and how it repeats its own training from that.

A party knows its θ⁰, its columns, the schedule and the job, and can therefore repeat its own steps:
a feature party from the gradients that it learned (`replay`), the label party from the predictions
that it received (`rounds_of`). This gives it its own predictions, or the residuals, of every round.
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
from securevfl.protocols.local_steps import GradientSignal, PredictionsSignal
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.early_stopping import Decision


@dataclass(frozen=True, eq=False)
class AdversaryView:
    """All that a party holds besides the messages that it received (`runtime.views.View`)."""

    name: str
    inputs: FloatArray  # its X as it trains on it, shape (N, P)
    model: LocalModel  # its local model at θ⁰
    labels: Labels | None  # shape (N,), at the label party only
    # Added to H, shape (N, C), at the label party only
    row_offsets: FloatArray | None
    plan: Plan  # of the job as it ran: public
    batches: Sequence[IntArray]  # the row numbers of every round: public
    columns: int  # P of all parties together: public
    decisions: Sequence[Decision]  # what the label party sent to all others in every round

    @property
    def answered(self) -> list[IntArray]:
        """The rows of each round that the label party answered with residuals."""
        pairs = zip(self.batches, self.decisions, strict=True)
        return [rows for rows, decision in pairs if not (decision.backtrack or decision.stop)]


@dataclass(frozen=True, eq=False)
class Visit:
    """What one visit of a batch reveals: basisᵀd."""

    rows: IntArray  # shape (S,)
    space: RowSpace  # of J, for which Jᵀd was seen: X of the batch, or a Jacobian
    seen: FloatArray  # basisᵀd, shape (rank, C)
    predictions: FloatArray  # the party's own H_k then, shape (S, C)


def replay(
    gradients: Sequence[FloatArray], adversary: AdversaryView
) -> tuple[list[Visit], FloatArray]:
    """Repeat a feature party's training from its gradients Xᵀd/S, with a linear model.

    There is one gradient per round, of shape (P, C); steps must depend on nothing else. Returns the
    party's visits, and its H_k of all rows after the last round, shape (N, C).
    """
    if adversary.plan.rule.own_loss:
        raise ConfigError("steps that follow the loss itself are not repeated from gradients")
    if not gradients or len(gradients) > len(adversary.batches):
        raise ConfigError(
            f"gradients: {len(gradients)} rounds, expected 1 to {len(adversary.batches)}"
        )
    model = LinearModel(adversary.model.weights)
    spaces: dict[bytes, RowSpace] = {}
    visits = []
    steps = adversary.plan.steps(model, adversary.inputs, adversary.columns)
    pending = deque(gradients)
    for index, (rows, decision) in enumerate(
        zip(adversary.batches, adversary.decisions, strict=True)
    ):
        steps.begin(index, len(rows))
        if decision.backtrack or decision.stop:
            steps.follow(decision)
            continue
        if not pending:
            break
        gradient = pending.popleft()
        if gradient.shape != adversary.model.weights.shape:
            raise ConfigError(
                f"gradient of shape {gradient.shape}, expected {adversary.model.weights.shape}"
            )
        matrix = adversary.inputs[rows]
        key = rows.tobytes()
        if key not in spaces:
            spaces[key] = RowSpace.of(matrix)
        space = spaces[key]
        predictions = model.predict(matrix)
        visits.append(Visit(rows, space, space.coordinates(gradient * len(rows)), predictions))
        steps.take(decision, matrix, predictions=predictions, signal=GradientSignal(gradient))
    return visits, model.predict(adversary.inputs)


@dataclass(frozen=True, eq=False)
class SeenRound:
    """One round as the label party sees it."""

    rows: IntArray  # of the batch, shape (S,)
    predictions: FloatArray  # H_k of the party under attack, shape (S, C)
    residuals: FloatArray  # d of the batch, shape (S, C)
    summed: FloatArray  # H of the batch, shape (S, C)


def rounds_of(
    predictions: Mapping[str, Sequence[FloatArray]], adversary: AdversaryView, party: str
) -> list[SeenRound]:
    """Repeat the label party's own training to compute d of every round, and attack one party.

    Predictions are those received from each feature party, one per round, of shapes (S, C).
    """
    plan = adversary.plan
    if plan.algorithm.alternating:
        raise ConfigError("this attack needs rounds in which all parties step together")
    for name, seen in predictions.items():
        if len(seen) < len(adversary.batches):
            raise ConfigError(f"predictions of {name}: {len(seen)} rounds in the view")
    assert adversary.labels is not None  # noqa: S101
    model, rounds = deepcopy(adversary.model), []
    steps = plan.steps(model, adversary.inputs, adversary.columns)
    for index, (rows, decision) in enumerate(
        zip(adversary.batches, adversary.decisions, strict=True)
    ):
        steps.begin(index, len(rows))
        others = np.asarray(np.sum([seen[index] for seen in predictions.values()], axis=0))
        if adversary.row_offsets is not None:
            others = others + adversary.row_offsets[rows]
        inputs, labels = adversary.inputs[rows], adversary.labels[rows]
        own = model.predict(inputs)
        residuals = plan.rule.loss.residuals(others + own, labels)
        rounds.append(SeenRound(rows, predictions[party][index], residuals, others + own))
        signal = PredictionsSignal(others, labels)
        steps.take(decision, inputs, predictions=own, signal=signal)
    return rounds
