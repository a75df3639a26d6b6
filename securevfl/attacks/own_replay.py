"""What the label party knows of every round: each H_k, and the residuals it computed itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.attacks.subject import Recording, Seat
from securevfl.errors import ConfigError
from securevfl.messages import Predictions
from securevfl.models.losses import loss_for
from securevfl.protocols.plans import plan_of
from securevfl.protocols.signals import PredictionsSignal
from securevfl.runtime.views import Learned, Received, View

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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


def predictions_of(view: View, party: str) -> list[FloatArray]:
    """Every H_k of a party in the label party's view, in clear or opened, one a round.

    A job in one round trip has its first predictions in clear; each reply holds the next under the
    label party's own key.
    """
    found: dict[int, FloatArray] = {}
    for entry in view.entries:
        if isinstance(entry, Received) and isinstance(entry.message, Predictions):
            if entry.sender == party:
                found[entry.message.step] = entry.message.values
        elif isinstance(entry, Learned) and entry.sender == party:
            found[entry.step + 1] = entry.values
    return [found[step] for step in sorted(found)]


def rounds_of(recording: Recording, seat: Seat, party: str) -> list[Round]:
    """Repeat the label party's own training, to have d of every round.

    Args:
        recording: for the job and its schedule, which are public.
        seat: the label party's.
        party: the feature party under attack.

    Raises:
        ConfigError: a job whose parties take turns, or predictions that are not in the view.
    """
    job, dataset = recording.job, recording.dataset
    if job.job.algorithm == "fedbcd-s":
        raise ConfigError("parties take turns: the attack takes rounds that all take together")
    assert seat.labels is not None  # noqa: S101
    plan = plan_of(job, loss_for(job.job.loss, dataset.classes), len(dataset.parties))
    feature_parties = [table.name for table in dataset.parties if table.name != seat.name]
    seen = {name: predictions_of(seat.view, name) for name in feature_parties}
    model, rounds = seat.model, []
    for index, rows in enumerate(recording.batches):
        others = _sum([_at(seen[name], index, name) for name in feature_parties])
        inputs, labels = seat.inputs[rows], seat.labels[rows]
        own = model.predict(inputs)
        residuals = plan.rule.loss.residuals(others + own, labels)
        rounds.append(Round(rows, seen[party][index], residuals))
        plan.rule.apply(
            model,
            inputs,
            predictions=own,
            signal=PredictionsSignal(others, labels),
            step_size=plan.step_size.at(index),
        )
    return rounds


def _at(predictions: Sequence[FloatArray], index: int, party: str) -> FloatArray:
    if index >= len(predictions):
        raise ConfigError(f"predictions of {party}: {len(predictions)} rounds in the view")
    return predictions[index]


def _sum(summands: Sequence[FloatArray]) -> FloatArray:
    total: FloatArray = np.sum(summands, axis=0)
    return total
