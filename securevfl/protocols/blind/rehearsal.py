"""A rehearsal of a blind job by one party alone, which finds how long a period its columns need.

Predictions of rows far out leave half the period of logistic residuals, and a job shows nobody that
they do before its end. So each party takes the job's steps on its own columns in clear, with labels
that it makes up. These follow ordinary values of every column: labels that followed extremes would
need small weights only. The others hear how often Λ has to be doubled for 1.4 times what |H|
reached, and the job takes the largest number.

Learns:
    every party: this number of every other, from 0 to 6. It follows from the sender's columns
        alone, and from no label: how far its most unusual rows could be moved, to a factor of two.
Guarantees: none that predictions stay within the period, which `rounds.require_range` checks.
Source: docs/decisions/0047-when-predictions-leave-the-period.md.
"""

from collections.abc import Iterable
from math import ceil, log2

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import PeerViolation
from securevfl.models.losses import sigmoid
from securevfl.models.sigmoid_series import MOST_DOUBLINGS, SigmoidSeries
from securevfl.protocols.exchange import Batch
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import exchange_with
from securevfl.sparse import Matrix, dense
from securevfl.wire.codec import Message, message_kind

SPARE = 1.4
_DRAWS, _ORDINARY, _LOG_ODDS = 8, 2.0, 4.0


@message_kind(82, stage="setup")
class Doublings(Message):
    """How often the sender's columns double the period of logistic residuals."""

    count: int


def doublings_for(series: SigmoidSeries, reach: float) -> int:
    """How often to double the period for predictions up to `reach`, as far as possible."""
    needed = min(2 * SPARE * reach / series.period, 2.0**MOST_DOUBLINGS)
    return ceil(log2(needed)) if needed > 1 else 0


async def agreed_doublings(party: Party, own: int) -> int:
    """The largest number of any party; a PeerViolation if one is out of bounds."""
    others = await exchange_with(party.channel, party.others, Doublings(own))
    for name, each in others.items():
        if each.count > MOST_DOUBLINGS:
            raise PeerViolation(
                f"{name} doubles the period {each.count} times, at most {MOST_DOUBLINGS} expected"
            )
    return max(own, *(each.count for each in others.values()))


def rehearsed_reach(
    inputs: Matrix, batches: Iterable[Batch], steps: LocalSteps, penalty: FloatArray
) -> float:
    """The largest |H| of all rounds for a party alone, from zero, with several made-up labels.

    `inputs` has shape (N, P), and `penalty` (P,) the l2 of each weight; `steps` are used up.
    """
    labels = _made_labels(dense(inputs))
    weights = points = np.zeros((inputs.shape[1], _DRAWS))
    reach = 0.0
    for index, batch in enumerate(batches):
        planned = steps.planned(index, batch.inputs)
        residuals = sigmoid(batch.inputs @ points) - labels[batch.rows]
        gradient = batch.inputs.T @ residuals / len(batch.rows) + penalty[:, None] * points
        after = points - planned.matrix @ gradient
        points, weights = after + planned.beta * (after - weights), after
        reach = max(reach, float(np.max(np.abs(inputs @ weights), initial=0.0)))
    return reach


def _made_labels(inputs: FloatArray) -> FloatArray:
    """Labels in balance that follow from random weights of ordinary values, shape (N, draws)."""
    generator = np.random.default_rng(0)
    log_odds = np.zeros((len(inputs), _DRAWS))
    for column in inputs.T:
        usual = float(np.median(np.abs(column))) or 1.0
        ordinary = np.clip(column / usual, -_ORDINARY, _ORDINARY)
        log_odds += np.multiply.outer(ordinary, generator.standard_normal(_DRAWS))
    log_odds -= np.median(log_odds, axis=0)
    spread = np.quantile(np.abs(log_odds), 0.9, axis=0)
    log_odds *= np.divide(_LOG_ODDS, spread, out=np.zeros_like(spread), where=spread > 0)
    return (log_odds > generator.logistic(size=log_odds.shape)).astype(np.float64)
