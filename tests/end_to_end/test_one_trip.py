"""One round trip a round: the same training as two, and nothing more to see."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.job import ExchangeSettings, Job, NetworkSettings
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import breast_cancer, run_job

ROUNDS = 8
PARAMETERS = 1e-4
SETTINGS = {"rounds": ROUNDS, "batch_size": 64, "learning_rate": 0.3, "eval_every": 0}
ONE = {"scheme": "bfv", "round_trips": 1}
TWO = {"scheme": "bfv", "round_trips": 2}


def kinds(result: TrainingResult, party: str) -> Counter[type]:
    received = result.views[party].received()
    return Counter(type(e.message) for e in received if e.message.stage == "round")


def test_a_round_is_three_messages_and_one_round_trip() -> None:
    result = run_job(breast_cancer(), ONE, **SETTINGS)
    label = breast_cancer().label_party
    (feature,) = (table.name for table in breast_cancer().parties if table.name != label)
    # Only the first predictions travel in clear, only the last round has none to come.
    assert kinds(result, label) == {Predictions: 1, EncryptedStep: ROUNDS - 1, EncryptedProducts: 1}
    assert kinds(result, feature) == {EncryptedValues: ROUNDS, DecryptedProducts: ROUNDS}
    # The first predictions' hop and the last gradient's are not shared with a neighbour.
    assert result.costs(ROUNDS).round_trips == ROUNDS + 1
    two = run_job(breast_cancer(), TWO, **SETTINGS)
    assert two.costs(ROUNDS).round_trips == 2 * ROUNDS


def test_the_label_party_sees_the_predictions_that_two_trips_send_and_uniform_products() -> None:
    one = run_job(breast_cancer(), ONE, **SETTINGS)
    two = run_job(breast_cancer(), TWO, **SETTINGS)
    label = breast_cancer().label_party
    opened = [entry.values for entry in one.views[label].learned()]
    masked = [entry.values for entry in one.views[label].decrypted()]
    sent = [
        e.message.values for e in two.views[label].received() if isinstance(e.message, Predictions)
    ]
    assert len(opened) == ROUNDS - 1
    for ahead, clear in zip(opened, sent[1:], strict=True):
        assert np.max(np.abs(ahead - clear)) <= PARAMETERS * np.max(np.abs(clear))
    # Masked gradients are not the gradients: top bits are uniform (false alarm 1e-6 by 5 sigma).
    tops = np.concatenate([values.ravel() >> np.uint64(63) for values in masked])
    assert abs(float(tops.mean()) - 0.5) <= 5 * 0.5 / np.sqrt(len(tops))


def job(network: str, batch_size: int) -> Job:
    return Job(
        job=Job().job.model_copy(update={**SETTINGS, "batch_size": batch_size}),
        exchange=ExchangeSettings(scheme="bfv"),
        network=NetworkSettings(preset=network),
    )


def test_auto_takes_one_trip_on_long_lines_and_two_on_short_ones() -> None:
    dataset = breast_cancer()
    far = train(job("intercontinental", 64), dataset, Environment())
    near = train(job("lan", 228), dataset, Environment())
    assert far.costs(ROUNDS).round_trips == ROUNDS + 1
    assert near.costs(ROUNDS).round_trips == 2 * ROUNDS


def scales(dataset: VerticalDataset) -> list[int]:
    result = run_job(
        dataset,
        {"scheme": "bfv", "round_trips": 1},
        rounds=5,
        batch_size=16,
        learning_rate=0.3,
        start="zero",
        allow_label_leak=True,
        eval_every=0,
    )
    received = result.views[dataset.label_party].received(EncryptedStep)
    return [entry.message.scale for entry in received if isinstance(entry.message, EncryptedStep)]


@pytest.mark.parametrize("turned", ["all columns", "some columns"])
def test_turning_the_signs_of_columns_changes_no_scale(turned: str) -> None:
    """From θ⁰ = 0 the runs mirror each other: A, and so all that may show, is the same."""
    dataset = some_rows(breast_cancer(), 48)
    (at,) = (i for i, t in enumerate(dataset.parties) if t.name != dataset.label_party)
    table = dataset.parties[at]
    signs = -np.ones(len(table.columns))
    if turned == "some columns":
        signs = np.random.default_rng(7).choice([-1.0, 1.0], len(table.columns))
    tables = list(dataset.parties)
    tables[at] = replace(table, train=table.train * signs, test=table.test * signs)
    seen = scales(dataset)
    assert len(seen) == 4
    assert scales(replace(dataset, parties=tuple(tables))) == seen
