"""What a feature party's recorded gradients say, round by round.

A party that knows its θ⁰, its columns, the schedule and the job can repeat its own training from
the gradients in its view, and so knows its own predictions of every round, too.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.row_spaces import RowSpace
from securevfl.errors import ConfigError
from securevfl.models.linear import LinearModel
from securevfl.protocols.local_steps import Course
from securevfl.protocols.plan import Plan
from securevfl.protocols.signals import GradientSignal


@dataclass(frozen=True, eq=False)
class TrainingKnowledge:
    """Side knowledge: what a feature party with a linear model holds anyway, and its own model.

    Attributes:
        inputs: its own X, shape (N, P), scaled as in training.
        batches: the public schedule, row numbers of every round.
        start: its own θ⁰, shape (P, C).
        plan: the job's rounds, steps and loss.
        columns: P of all parties together.
        courses: what the label party said at every round.
        own_model: what the best model of its own columns says of every row, probabilities of shape
            (N, 1) for class 1 or (N, C): granted, as labels that it tells are no leak.
    """

    inputs: FloatArray
    batches: Sequence[IntArray]
    start: FloatArray
    plan: Plan
    columns: int
    courses: Sequence[Course]
    own_model: FloatArray


@dataclass(frozen=True, eq=False)
class Visit:
    """One look at a batch: basisᵀd.

    Attributes:
        rows: shape (S,).
        space: of J, for which Jᵀd was seen: X of the batch, or a Jacobian.
        seen: basisᵀd, shape (rank, C).
        predictions: the party's own H_k then, shape (S, C).
    """

    rows: IntArray
    space: RowSpace
    seen: FloatArray
    predictions: FloatArray


def replay(
    gradients: Sequence[FloatArray], knowledge: TrainingKnowledge
) -> tuple[list[Visit], FloatArray]:
    """Repeat a party's training from its gradients.

    Returns:
        Its visits, and its H_k of all rows after the last round, shape (N, C).

    Raises:
        ConfigError: gradients that do not fit the batches or the features, or steps that follow
            more than them.
    """
    if knowledge.plan.rule.own_loss:
        raise ConfigError("steps that follow the loss itself are not repeated from gradients")
    if not gradients or len(gradients) > len(knowledge.batches):
        raise ConfigError(
            f"gradients: {len(gradients)} rounds, expected 1 to {len(knowledge.batches)}"
        )
    model = LinearModel(knowledge.start)
    spaces: dict[bytes, RowSpace] = {}
    visits = []
    steps = knowledge.plan.steps(model, knowledge.inputs, knowledge.columns)
    pending = deque(gradients)
    for index, (rows, course) in enumerate(zip(knowledge.batches, knowledge.courses, strict=True)):
        steps.begin(index, len(rows))
        if course.back or course.stop:
            steps.follow(course)
            continue
        if not pending:
            break
        gradient = pending.popleft()
        if gradient.shape != knowledge.start.shape:
            raise ConfigError(
                f"gradient of shape {gradient.shape}, expected {knowledge.start.shape}"
            )
        matrix = knowledge.inputs[rows]
        key = rows.tobytes()
        if key not in spaces:
            spaces[key] = RowSpace.of(matrix)
        space = spaces[key]
        predictions = model.predict(matrix)
        visits.append(Visit(rows, space, space.coordinates(gradient * len(rows)), predictions))
        steps.take(course, matrix, predictions=predictions, signal=GradientSignal(gradient))
    return visits, model.predict(knowledge.inputs)
