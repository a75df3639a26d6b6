"""The one contract of all exchanges: what a description says is what recorded views show."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.auditing.views import clear_values
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.job import Job
from securevfl.protocols.exchange import Exchange
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import FRACTION_BITS, Predictions
from securevfl.runtime.views import Decrypted, Learned, Received, View
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, breast_cancer, received, relative_difference

ROUNDS = 4
Arrays = list[NDArray[Any]]


def few_rows(parties: int) -> VerticalDataset:
    return some_rows(breast_cancer(parties), 48)


def check_contract(
    exchange: Exchange, variant: dict[str, Any], load: Callable[[int], VerticalDataset]
) -> None:
    """Train under an exchange, and hold its views against what it says of itself."""
    within = max(1e-3, exchange.error)
    for parties in range(exchange.fewest_parties, 4):
        dataset, job = load(parties), job_of(exchange, variant, parties)
        result, twin = (
            train(each, dataset, Environment(keys=SmallKeys(), record_views=True))
            for each in (job, job.without_protection)
        )
        learns = exchange.learns(job)
        label, feature = dataset.label_party, feature_party(dataset)
        if not exchange.adds_noise:
            assert relative_difference(result, twin) <= exchange.error
        messages = exchange.messages(job.exchange, parties)
        # Between two ends of rounds: one round trip begins with predictions and ends without.
        assert result.costs(3).messages - result.costs(2).messages == messages
        predictions = values_of(twin, label, Predictions, feature)
        residuals = values_of(twin, feature, Residuals, label)
        seen = numbers(result.views[label])
        singly = sum(any(close(each, other, within) for other in seen) for each in predictions)
        # Noise from the first round on: not even the twin's first predictions, which are the same.
        assert singly == ROUNDS * (learns.predictions == "singly" and not exchange.adds_noise)
        carried = carries(result.views[label])
        assert ("values" in carried) == (learns.predictions == "singly")
        assert ("shares" in carried) == (learns.predictions == "summed")
        if learns.predictions == "summed":
            sums = list(clear_values([result.views[label]]).values())
            others = [name for name in result.plan.facts.names if name != label]
            given = [values_of(twin, label, Predictions, name) for name in others]
            totals = np.sum(given, axis=0)
            assert all(any(close(total, each, within) for each in sums) for total in totals)
        shown = numbers(result.views[feature])
        matches = sum(any(close(each, other, within) for other in shown) for each in residuals)
        if learns.residuals == "clear" and not exchange.adds_noise:
            assert matches == ROUNDS
        elif learns.residuals != "clear":
            assert matches == 0
        # The sign of d is the label, whatever noise is on the predictions behind it.
        labels = dataset.train_labels[result.plan.schedule.batch(0)][:, None] == 1
        exposed = sum(np.array_equal(each < 0, labels) for each in shown)
        assert exposed == ROUNDS * (learns.residuals == "clear")
        assert ("values" in carries(result.views[feature])) == (learns.residuals != "hidden")
        gradients = [e for e in result.views[feature].entries if isinstance(e, Learned)]
        assert bool(gradients) == learns.gradients
        assert (result.label_guard_ratio is not None) == learns.gradients
        owners = {name for name, each in result.outcomes.items() if each.key_fingerprint}
        # In shares nobody decrypts under one key of the job.
        assert bool(owners) == (exchange.encrypts and not exchange.shares_parameters)


def job_of(exchange: Exchange, variant: dict[str, Any], parties: int) -> Job:
    both = variant.get("exchange", {}).get("hide") == "both"
    noise = {"noise_multiplier": 0.5, "noise_seed": 1} if exchange.adds_noise else {}
    steps: dict[str, Any] = {"rounds": ROUNDS, "local_steps": 2, "learning_rate": 0.1}
    steps |= {"loss": "taylor-logistic" if both else "logistic", "batch_size": "full"}
    if exchange.shares_parameters:
        # So few rows tell labels at the end where no round tells anything; its start is zero.
        steps |= {"allow_label_leak": True, "start": "zero"}
    scored = not both or parties == 2
    return Job.of(
        job={**steps, "eval_every": 0 if scored else "never"},
        exchange={"scheme": exchange.name, **variant.get("exchange", {})},
        privacy={**noise, **variant.get("privacy", {})},
    )


def feature_party(dataset: VerticalDataset) -> str:
    return next(each.name for each in dataset.parties if each.name != dataset.label_party)


def carries(view: View) -> set[str]:
    return {each.message.carries for each in view.received() if each.message.stage == "round"}


def values_of(result: TrainingResult, *which: Any) -> Arrays:  # noqa: ANN401
    return [message.values for message in received(result, *which)]


def numbers(view: View) -> Arrays:
    """Every array of a round that a party sees, however it came; shares as they would decode."""
    found: Arrays = []
    for entry in view.entries:
        if isinstance(entry, Learned | Decrypted):
            found.append(entry.values)
        elif isinstance(entry, Received) and entry.message.stage == "round":
            arrays = [e for e in vars(entry.message).values() if isinstance(e, np.ndarray)]
            is_share = entry.message.carries == "shares"
            found += [decode(from_ring(e), FRACTION_BITS) for e in arrays] if is_share else arrays
    return found


def close(expected: NDArray[Any], seen: NDArray[Any], within: float) -> bool:
    """Whether an array is another one, or in fixed point."""
    if expected.shape != seen.shape:
        return False
    scale = np.max(np.abs(expected))
    return bool(np.max(np.abs(seen.astype(float) - expected)) <= within * scale)
