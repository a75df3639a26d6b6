"""What parties say of their rows comes to the same plan as where one process knows all of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.data.sources import load
from securevfl.errors import PeerViolation
from securevfl.job import Job
from securevfl.parties.alignment import Common
from securevfl.parties.local_party import agreement_of
from securevfl.parties.own_data import Description, GivenLabels, NamedRows, describe
from securevfl.protocols.plan import Facts
from securevfl.protocols.session.workplace import PartyData
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Program, simulate
from securevfl.training import data_of, resolved
from tests.local_tasks import task_of
from tests.tampering import changed

NAMES = ("party1", "party2")
Described = tuple[Facts, PartyData]


def described(job: Job, name: str) -> Program[Described]:
    identities = dict.fromkeys(NAMES, 64 * "0")
    task = task_of(name, job=job.model_dump(mode="json", exclude_unset=True), identities=identities)
    agreement = agreement_of(task_of("party1", job=task.job, identities=identities), {})

    async def program(channel: Channel, _: Costs) -> Described:
        rows = NamedRows.read(job, name, None)
        every = np.arange(len(rows))
        taken = rows.taken(Common(every, every[:0]))
        return await describe(channel, agreement, taken, taken.load(job), job)

    return program


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bounds": {"mean area": [0, 3000]}},
        {"algorithm": "fdml"},
        {"algorithm": "ftl"},
    ],
)
def test_what_parties_describe_is_what_an_operator_would(settings: dict[str, Any]) -> None:
    job = Job.of(job={"dataset": "breast_cancer", **settings})
    plan, dataset = resolved(job, load("breast_cancer"), ())
    found = simulate({name: described(job, name) for name in NAMES}, PRESETS["lan"]).results
    for table in dataset.parties:
        facts, data = found[table.name]
        assert facts == plan.facts
        assert np.array_equal(facts.row_digests, plan.facts.row_digests)
        expected = data_of(plan, dataset, table)
        assert data.fingerprint == expected.fingerprint
        assert data.class_names == expected.class_names
        assert (data.train_labels is None) == (expected.train_labels is None)


def test_weights_that_no_rows_have_are_refused() -> None:
    far = changed(Description, lambda told: replace(told, weight_bits=129))
    job = Job.of(job={"dataset": "breast_cancer"})
    with pytest.raises(PeerViolation, match=r"party1 announces weights of 2\^65"):
        simulate({name: described(job, name) for name in NAMES}, PRESETS["lan"], tamper=far)


def test_labels_that_are_no_classes_are_refused() -> None:
    """They are not cut off to classes."""
    half = changed(GivenLabels, lambda given: replace(given, train=given.train + 0.5))
    job = Job.of(job={"dataset": "breast_cancer", "algorithm": "fdml"})
    with pytest.raises(PeerViolation, match="party1 gives labels that are no classes"):
        simulate({name: described(job, name) for name in NAMES}, PRESETS["lan"], tamper=half)
