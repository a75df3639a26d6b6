"""The matrix attack × exchange: real runs recorded, attacked, and judged over seeds.

An attack gets a party's seat of a recorded run and what its row calls side knowledge. A cell is a
measurement of these attacks on this job, not a proof: `resists` means that they found nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from securevfl.audit.finding import Finding, judge
from securevfl.audit.measure_ciphertexts import (
    approximate_key,
    crafted_query,
    noise,
    ratio,
    symbols,
)
from securevfl.audit.measure_epsilon import empirical_epsilon
from securevfl.audit.measure_features import anchors, binary, components, gram
from securevfl.audit.measure_inference import equality_solving
from securevfl.audit.measure_labels import gradient_labels, residual_labels
from securevfl.audit.measure_rotation import rotation_twins
from securevfl.audit.subject import Measurement, Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.processes import in_processes
from securevfl.protocols.catalogue import exchange_of
from securevfl.training import plan_for

Row = dict[str, Any]
Measure = Callable[[Subject], Iterator[Measurement]]

MEASURES: Mapping[str, Measure] = {
    "rotation_twin": rotation_twins,
    "gram": gram,
    "anchors": anchors,
    "components": components,
    "binary_columns": binary,
    "labels_from_residuals": residual_labels,
    "labels_from_gradients": gradient_labels,
    "ciphertext_ratio": ratio,
    "ciphertext_noise": noise,
    "jacobi_symbol": symbols,
    "ckks_key": approximate_key,
    "crafted_query": crafted_query,
    "equality_solving": equality_solving,
    "epsilon": empirical_epsilon,
}
"""Every attack by the name that rows carry."""


@dataclass(frozen=True)
class AuditSettings:
    """What to audit.

    Attributes:
        jobs: by exchange, the job to run.
        attacks: which rows; all by default.
        repeats: seeds, from the job's on.
        workers: processes, each with exchanges and seeds of its own.
    """

    jobs: Mapping[str, Job]
    attacks: tuple[str, ...] = tuple(MEASURES)
    repeats: int = 5
    workers: int = 1


def audit(
    dataset: VerticalDataset,
    settings: AuditSettings,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Row]:
    """All rows, in the order of the exchanges.

    Args:
        dataset: real data.
        settings: what to audit.
        report: told which exchange is done, how many runs are, and of how many.

    Raises:
        ConfigError: an unknown attack or exchange, or a job that does not fit the data.
    """
    unknown = [name for name in settings.attacks if name not in MEASURES]
    if unknown:
        raise ConfigError(f"attack = {unknown[0]!r}: unknown; known are {', '.join(MEASURES)}")
    for job in settings.jobs.values():
        plan_for(job.without_protection, dataset)
    seeds = range(settings.repeats)
    # The slow ones first, so that none of them ends alone on one core.
    names = sorted(settings.jobs, key=lambda name: not exchange_of(settings.jobs[name]).is_slow)
    tasks = [(name, index) for name in names for index in seeds]
    attack = partial(_measured, dataset, settings)
    by_cell: dict[tuple[str, str, str], list[Measurement]] = {}
    report(tasks[0][0], 0, len(tasks))
    with in_processes(attack, tasks, settings.workers, "audit") as results:
        for done, ((name, _), found) in enumerate(zip(tasks, results, strict=True), 1):
            for each in found:
                by_cell.setdefault((name, each.attack, each.case), []).append(each)
            report(name, done, len(tasks))
    order = list(settings.jobs)
    cells = sorted(by_cell, key=lambda cell: order.index(cell[0]))
    return [_row(cell[0], by_cell[cell]) for cell in cells]


def _measured(
    dataset: VerticalDataset, settings: AuditSettings, task: tuple[str, int]
) -> list[Measurement]:
    """All attacks on one exchange under one seed; only reasons where it does not fit the data."""
    name, index = task
    job = settings.jobs[name]
    try:
        plan_for(job, dataset)
    except ConfigError as error:
        return [Measurement(attack, reason=str(error)) for attack in settings.attacks]
    subject = Subject(job, dataset, job.job.seed + index, with_curves=index == 0)
    return [each for attack in settings.attacks for each in MEASURES[attack](subject)]


def _row(exchange: str, measured: Sequence[Measurement]) -> Row:
    """A cell as JSON has it, from its measurements, one a seed."""
    first = measured[0]
    row: Row = {
        "attack": first.attack,
        "exchange": exchange,
        "adversary": first.adversary,
        "side_knowledge": first.side_knowledge,
        "metric": None,
        "value": None,
        "chance": None,
        "model_alone": None,
        "verdict": "not_applicable",
        "detail": {
            "case": first.case,
            "control": first.control,
            "what_if": first.what_if,
            "reason": first.reason,
        },
    }
    findings = [each.finding for each in measured if each.finding is not None]
    if not findings:
        return row
    judgement = judge(findings)
    row |= {
        "metric": findings[0].metric.name,
        "value": _mean([each.value for each in findings]),
        "chance": _mean([each.chance for each in findings]),
        "model_alone": _mean([each.model_alone for each in findings]),
        "verdict": judgement.verdict,
        "detail": {
            "case": first.case,
            "control": first.control,
            "what_if": first.what_if,
            "certain": judgement.certain,
            "advantage": judgement.advantage,
            "advantage_interval": list(judgement.interval),
            "margin": judgement.margin,
            "allowed": findings[0].allowed,
            "values": [each.value for each in findings],
            **_first_detail(findings),
        },
    }
    return row


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _first_detail(findings: Sequence[Finding]) -> dict[str, Any]:
    """Curves and side figures are those of the first seed."""
    return findings[0].detail


def check_policy(must_resist: Sequence[str], attacks: Sequence[str]) -> None:
    """Check that a policy is about attacks that are run.

    Raises:
        ConfigError: it is not.
    """
    for name in must_resist:
        if name not in attacks:
            raise ConfigError(f"must_resist: {name!r} is not run; run are {', '.join(attacks)}")


def violations(rows: Sequence[Row], must_resist: Sequence[str]) -> list[Row]:
    """The rows that break a policy: attacks that must resist and were not shown to.

    Negative controls are no attacks, and what-ifs are other jobs. An attack that applies to no
    exchange breaks nothing.
    """
    return [
        row
        for row in rows
        if row["attack"] in must_resist
        and row["verdict"] == "leaks"
        and not row["detail"]["control"]
        and not row["detail"]["what_if"]
    ]
