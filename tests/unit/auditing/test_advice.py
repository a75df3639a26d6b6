"""Advice is tried on the job that it is for: what is printed runs, and takes the leak away."""

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.auditing.advice import CHANGES, Advisor
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.matrix import AuditSettings, audit
from securevfl.auditing.measuring import Attack, known_attacks
from securevfl.auditing.subject import Subject
from securevfl.errors import FeatureLeakRefused, LabelLeakRefused
from securevfl.job import Job
from securevfl.reports.findings import settings_text
from securevfl.training import Environment, plan_for, train
from tests.jobs import breast_cancer, job_of
from tests.made_data import dataset_of

BLIND = "[exchange] scheme = 'blind'"
FULL = "[job] batch_size = 'full'"
BOTH = "[exchange] scheme = 'bfv', hide = 'both' with [job] loss = 'taylor-logistic'"
JOBS = {
    "nothing set": job_of(),
    "noise": job_of("dp", privacy={"noise_multiplier": 1.0}),
    "minibatches": job_of("bfv", batch_size=64),
    "minibatches in clear": job_of(batch_size=64),
    "full batches": job_of("bfv"),
    "scored every round": job_of("bfv", eval_every=1),
    "from zero": job_of(start="zero"),
    "networks": job_of(model="mlp", learning_rate=0.1),
}


@cache
def advisor(parties: int = 2) -> Advisor:
    return Advisor(breast_cancer(parties))


def advice(attack: str, job: Job, parties: int = 2) -> list[tuple[str, str]]:
    """What is printed of each change, and why it helps."""
    found = advisor(parties).advice(known_attacks()[attack], job)
    return [(settings_text(each["settings"]), each["why"]) for each in found]


def as_printed(job: Job, text: str) -> Job:
    """The job after somebody has put into its file what the page says."""
    kept, *left_out = text.split(" without ")
    sections: dict[str, Any] = {section.strip("[]"): {} for section in left_out}
    for section, keys in re.findall(r"\[(\w+)\] (.*?)(?= with |$)", kept):
        sections[section] = tomllib.loads(keys.replace(", ", "\n"))
    own = {name: getattr(job.job, name) for name in job.job.model_fields_set}
    return Job.of(**{**dict(job), **sections, "job": {**own, **sections.get("job", {})}})


def permitted(job: Job, folder: Path) -> bool:
    """Whether a real run, which asks the guards, is as the job has it."""
    try:
        train(job.with_settings(rounds=1), breast_cancer(), Environment(guard_directory=folder))
    except (LabelLeakRefused, FeatureLeakRefused):
        return False
    return True


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("name", JOBS)
def test_a_job_takes_every_change_that_is_printed_for_it(name: str, parties: int) -> None:
    dataset, reasons = breast_cancer(parties), set()
    for attack in filter(CHANGES.get, CHANGES):
        for text, why in advice(attack, JOBS[name], parties):
            other = as_printed(JOBS[name], text)
            plan, subject = plan_for(other, dataset), Subject(other, dataset, 0)
            # A guard's permission is one of full batches, or of a single scoring.
            counted = plan.full_batches or plan.job.job.eval_every == 0
            immune, checked = known_attacks()[attack].immune(subject), plan.checks > 0
            assert {"immune": immune, "checked": checked}.get(why, counted), text
            reasons.add(why)
    assert "immune" in reasons


@pytest.mark.parametrize(
    ("name", "attack", "texts"),
    [
        ("nothing set", "anchors", [BLIND, BOTH]),
        ("noise", "rotation_twin", [f"{BLIND} without [privacy]"]),
        ("minibatches", "labels_from_gradients", [FULL, BLIND]),
        # No guard would permit fewer rows a batch under encryption.
        (
            "minibatches in clear",
            "labels_from_residuals",
            [f"[exchange] scheme = 'bfv' with {FULL}", BLIND],
        ),
        # It permits full batches already.
        ("full batches", "labels_from_gradients", [BLIND]),
        ("scored every round", "held_out_features", ["[job] eval_every = 0", BOTH]),
        ("scored every round", "gram", [f"{BLIND} with [job] eval_every = 0", BOTH]),
        (
            "from zero",
            "integer_decoding",
            ["[exchange] scheme = 'bfv' with [job] start = 'random'"],
        ),
        ("networks", "gram", []),
        ("full batches", "crafted_query", [BLIND]),
    ],
)
def test_the_least_that_helps_is_printed_and_at_most_two(
    name: str, attack: str, texts: list[str]
) -> None:
    assert [text for text, _ in advice(attack, JOBS[name])] == texts


def test_an_override_of_the_guards_is_no_permission() -> None:
    job = job_of(batch_size=64, allow_label_leak=True)
    assert advice("labels_from_residuals", job)[0][0].endswith(FULL)


def test_the_guards_of_all_parties_are_asked() -> None:
    # Batches of 700 keep predictions, which the first party's guard counts, but not labels, whose
    # variance is a quarter.
    generator = np.random.default_rng(3)
    blocks = np.split(generator.standard_normal((1400, 4)), 2, axis=1)
    dataset = dataset_of(blocks, np.arange(1400) % 2)
    job = job_of(batch_size=700, loss="taylor-logistic", learning_rate=0.1, local_steps=1)
    for label_party in ("party0", "party1"):
        found = Advisor(replace(dataset, label_party=label_party))
        (_, both) = found.advice(known_attacks()["gram"], job)
        assert settings_text(both["settings"]).endswith(f"hide = 'both' with {FULL}")


def test_full_batches_take_away_what_minibatches_leak(tmp_path: Path) -> None:
    job = JOBS["minibatches"].with_settings(rounds=20)
    (text, why), _ = advice("labels_from_gradients", job)
    assert (text, why) == (FULL, "permitted by the guard")
    other = as_printed(job, text)
    within = [first_case(known_attacks()["labels_from_gradients"], each) for each in (job, other)]
    assert within == [False, True]
    asked = [permitted(each, tmp_path / each.hash().hex()) for each in (job, other)]
    assert asked == [False, True]


def first_case(attack: Attack, job: Job) -> bool:
    """Whether an attack on the job itself stays within its margins."""
    cases = attack.measure(Subject(job, breast_cancer(), 0, with_curves=False))
    assert not isinstance(cases, Finding | NotRun)
    found = next(iter(cases)).measure()
    assert isinstance(found, Finding)
    return found.within


def test_rows_say_what_to_change_and_whom_they_are_about() -> None:
    names = ("labels_from_residuals", "jacobi_symbol")
    leak, immune = audit(breast_cancer(), AuditSettings({"plain": job_of()}, names, repeats=1))
    assert leak["verdict"] == "leaks"
    assert leak["detail"]["to_change"] == [
        {"settings": {"exchange": {"scheme": "bfv"}}, "why": "immune"},
        {"settings": {"exchange": {"scheme": "blind"}}, "why": "immune"},
    ]
    assert "to_change" not in immune["detail"]
    assert leak["detail"]["about"] == {
        "label_party": "party1",
        "feature_party": "party2",
        "columns": 15,
        "people": 456,
    }
