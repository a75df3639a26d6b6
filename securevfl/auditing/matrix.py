"""The matrix attack × exchange: real runs recorded, attacked, and judged over seeds.

An attack gets a party's seat of a recorded run and what its row calls side knowledge. A cell is a
measurement of these attacks on this job, not a proof: `resists` means that they found nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from securevfl.auditing.judging import Finding, NotShown, decisive, judge, verdict_of
from securevfl.auditing.measures.cheats import selection_matrix
from securevfl.auditing.measures.ciphertexts import (
    approximate_key,
    crafted_query,
    noise,
    ratio,
    symbols,
)
from securevfl.auditing.measures.epsilon import empirical_epsilon
from securevfl.auditing.measures.features import anchors, binary, components, gram
from securevfl.auditing.measures.held_out import held_out
from securevfl.auditing.measures.inference import equality_solving
from securevfl.auditing.measures.labels import gradient_labels, residual_labels
from securevfl.auditing.measures.labels_across_jobs import labels_of_jobs
from securevfl.auditing.measures.labels_zero_start import integer_decoding
from securevfl.auditing.measures.rotation import rotation_twins
from securevfl.auditing.measures.transfer import component_labels, unit_features, unit_labels
from securevfl.auditing.measuring import Attack, Measurement
from securevfl.auditing.subject import Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.processes import in_processes
from securevfl.protocols.catalogue import exchange_of
from securevfl.protocols.names import require
from securevfl.training import plan_for

Row = dict[str, Any]

MEASURES: Mapping[str, Attack] = {
    each.name: each
    for each in (
        rotation_twins,
        gram,
        anchors,
        components,
        binary,
        held_out,
        residual_labels,
        gradient_labels,
        component_labels,
        unit_labels,
        unit_features,
        integer_decoding,
        labels_of_jobs,
        ratio,
        noise,
        symbols,
        approximate_key,
        crafted_query,
        selection_matrix,
        equality_solving,
        empirical_epsilon,
    )
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
    for name in settings.attacks:
        require(name, MEASURES, "attack")
    for job in settings.jobs.values():
        # Noise that nobody has chosen is a mistake, and no reason why an attack shows nothing.
        plan_for(job if exchange_of(job).adds_noise else job.without_protection, dataset)
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
    attacks = [MEASURES[attack] for attack in settings.attacks]
    try:
        plan_for(job, dataset)
    except ConfigError as error:
        return [attack.without_figure(NotShown(str(error))) for attack in attacks]
    subject = Subject(job, dataset, job.job.seed + index, with_curves=index == 0)
    return [each for attack in attacks for each in attack(subject)]


def _row(exchange: str, measured: Sequence[Measurement]) -> Row:
    """A cell as JSON has it, from its measurements, one a seed; side figures are the first's."""
    first = measured[0]
    outcomes = [each.outcome for each in measured]
    findings = [each for each in outcomes if isinstance(each, Finding)]
    details = findings[0].detail if findings else {}
    findings = decisive(findings) if findings else []
    reasons = [each.reason for each in outcomes if not isinstance(each, Finding)]
    detail = {"case": first.case, "control": first.control, "what_if": first.what_if}
    if reasons:
        detail["reason"] = reasons[0]
    return {
        "attack": first.attack,
        "exchange": exchange,
        "adversary": first.adversary,
        "side_knowledge": first.side_knowledge,
        "metric": findings[0].metric.name if findings else None,
        "value": _mean([each.value for each in findings]),
        "chance": _mean([each.chance for each in findings]),
        "model_alone": _mean([each.model_alone for each in findings]),
        "verdict": verdict_of(outcomes),
        "detail": detail | (_judged(findings) if findings else {}) | details,
    }


def _judged(findings: Sequence[Finding]) -> dict[str, Any]:
    """What the seeds say."""
    judgement = judge(findings)
    return {
        "certain": judgement.certain,
        "advantage": judgement.advantage,
        "advantage_interval": list(judgement.interval),
        "margin": judgement.margin,
        "allowed": findings[0].allowed,
        "values": [each.value for each in findings],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None
