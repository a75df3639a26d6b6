"""A party's rehearsal alone: how far predictions went, and how the parties agree on a period."""

from collections.abc import Awaitable, Mapping
from typing import Any

import numpy as np
import pytest

from bench.blind.__main__ import rounds_in_float
from securevfl.arrays import FloatArray
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import PeerViolation
from securevfl.job import Job
from securevfl.models.losses import Logistic
from securevfl.models.sigmoid_series import MOST_DOUBLINGS, SigmoidSeries
from securevfl.protocols.blind.rehearsal import (
    SPARE,
    Doublings,
    agreed_doublings,
    doublings_for,
    rehearsed_reach,
)
from securevfl.protocols.exchange import Batch
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Simulated, simulate
from securevfl.training import plan_for
from tests.made_data import dataset_of
from tests.tampering import changed

NAMES = ("bank", "shop", "post")


def reaches(dataset: VerticalDataset, **job: object) -> tuple[list[float], float]:
    """Of every party's rehearsal, and of the job itself in clear."""
    settings = {"start": "zero", "eval_every": 0, "rounds": 20, **job}
    plan = plan_for(Job.of(job=settings, exchange={"scheme": "blind"}), dataset)
    found = []
    for table in dataset.parties:
        label_party = table.name == dataset.label_party
        start = np.random.default_rng(0)
        part = LocalPart(plan, table, start, with_intercept=label_party)
        rows = [plan.schedule.batch(each) for each in range(plan.rounds)]
        batches = [Batch(i, False, at, part.inputs[at], None) for i, at in enumerate(rows)]
        penalty = np.full(part.inputs.shape[1], plan.l2)
        penalty[-1] *= not label_party
        steps = plan.steps(part.model, part.inputs, part.inputs.shape[1])
        found.append(rehearsed_reach(part.inputs, batches, steps, penalty))
    largest = 0.0
    for parts in rounds_in_float(plan, dataset):
        summed = np.sum([part.inputs @ part.model.weights for part in parts], axis=0)
        largest = max(largest, float(np.abs(summed).max()))
    return found, largest


def labelled(blocks: list[FloatArray]) -> VerticalDataset:
    """Labels that follow the order of magnitude of values, as a bank's do of balances."""
    inputs = np.hstack(blocks)
    scores = np.arcsinh(inputs / np.maximum(np.median(np.abs(inputs), axis=0), 1e-9))
    scores = scores @ np.repeat([5.0, 1.0], [1, inputs.shape[1] - 1])
    labels = (scores > np.median(scores)).astype(np.int64)
    return dataset_of(blocks, labels, standardize=True)


def one_huge_entry(generator: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    values = generator.standard_normal(shape)
    values[3, 0] = 1e3
    return values


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator, shape: np.exp(2 * generator.standard_normal(shape)),
        lambda generator, shape: generator.pareto(1.5, shape),
        lambda generator, shape: generator.standard_t(2, shape),
        one_huge_entry,
    ],
    ids=["lognormal", "pareto", "t", "one huge entry"],
)
def test_a_rehearsal_reaches_as_far_as_heavy_tails_do(draw: Any) -> None:  # noqa: ANN401
    generator = np.random.default_rng(5)
    dataset = labelled([draw(generator, (4000, 3)) for _ in range(2)])
    rehearsed, reach = reaches(dataset)
    series = SigmoidSeries.for_training(20, accelerated=True)
    assert reach > series.range
    doublings = max(doublings_for(series, each) for each in rehearsed)
    assert reach < series.lengthened(doublings).range < 16 * reach


@pytest.mark.parametrize("name", ["breast_cancer", "normal"])
def test_ordinary_columns_ask_for_no_longer_period(name: str) -> None:
    generator = np.random.default_rng(1)
    blocks = [generator.standard_normal((500, 3)) for _ in range(2)]
    rehearsed, _ = reaches(labelled(blocks) if name == "normal" else load(name))
    series = SigmoidSeries.for_training(20, accelerated=True)
    assert [doublings_for(series, each) for each in rehearsed] == [0, 0]


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_columns_that_say_nothing_stay_where_they_are(value: float) -> None:
    generator = np.random.default_rng(2)
    blocks = [generator.standard_normal((60, 3)), np.full((60, 2), value)]
    rehearsed, _ = reaches(labelled(blocks))
    assert rehearsed[1] == 0.0


def test_periods_are_doubled_until_they_suffice() -> None:
    series = SigmoidSeries.of_period(64)
    edge = series.period / 2 / SPARE
    reached = (0.0, 0.99 * edge, 1.01 * edge, 1.99 * edge, 2.01 * edge, 1e9, np.inf)
    expected = [0, 0, 1, 1, 2, MOST_DOUBLINGS, MOST_DOUBLINGS]
    assert [doublings_for(series, each) for each in reached] == expected


def agreed(own: Mapping[str, int], **options: Any) -> Simulated[int]:  # noqa: ANN401
    def of(channel: Channel, costs: Costs) -> Awaitable[int]:
        party = Party(channel, costs, NAMES, "bank", Logistic())
        return agreed_doublings(party, own[party.name])

    programs: Any = dict.fromkeys(NAMES, of)
    return simulate(programs, PRESETS["lan"], **options)


@pytest.mark.parametrize("most", NAMES)
def test_all_parties_take_the_largest_number_of_any(most: str) -> None:
    own = {name: 4 if name == most else 1 for name in NAMES}
    assert set(agreed(own).results.values()) == {4}


def test_a_number_that_no_rehearsal_gives_is_refused() -> None:
    more = changed(Doublings, lambda message: Doublings(message.count + MOST_DOUBLINGS))
    with pytest.raises(PeerViolation, match="doubles the period 7 times, at most 6"):
        agreed(dict.fromkeys(NAMES, 1), tamper=more)
