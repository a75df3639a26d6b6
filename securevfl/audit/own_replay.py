"""The label party's own training once more, to have the residuals of every round."""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.rounds import Round, predictions_of
from securevfl.attacks.seat import Seat
from securevfl.audit.subject import Recording
from securevfl.errors import ConfigError
from securevfl.protocols.signals import PredictionsSignal


def rounds_of(recording: Recording, seat: Seat, party: str) -> list[Round]:
    """Repeat the label party's own training, to have d of every round.

    Args:
        recording: for the job and its schedule, which are public.
        seat: the label party's.
        party: the feature party under attack.

    Raises:
        ConfigError: a job whose parties take turns, or predictions that are not in the view.
    """
    plan = recording.plan
    if plan.algorithm.in_turns:
        raise ConfigError("parties take turns: the attack takes rounds that all take together")
    assert seat.labels is not None  # noqa: S101
    feature_parties = [name for name in plan.facts.names if name != seat.name]
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
