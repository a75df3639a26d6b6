"""The matrix attack × exchange: real runs recorded, attacked, and judged over seeds.

An attack gets one party's view of a recorded run and the side knowledge that its row names. A cell
measures these attacks on this job and proves nothing: `resists` means that they found nothing.

A policy asks that attacks be shown to resist: a leak breaks it, and so does whatever was not shown.
Negative controls are no attacks, and what-ifs are other jobs: neither keeps a policy nor breaks it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from securevfl.auditing.judging import Finding, NotShown, decisive, judge, verdict_of
from securevfl.auditing.measuring import Attack, Measurement, known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.interrupts import Interrupted
from securevfl.job import Job
from securevfl.processes import Tell, in_processes
from securevfl.protocols.catalogue import algorithm_of, check_names, exchange_of, require
from securevfl.training import plan_for

Row = dict[str, Any]
Report = Callable[[str, float, int], None]
"""Told what runs, and how much is done of how much."""

# An exchange's and a first seed's time beside the others', roughly: progress is weighed by it.
SLOW, WITH_CURVES = 4.0, 1.3
KEPT = ("resists", "immune")


@dataclass(frozen=True)
class AuditSettings:
    """What to audit."""

    jobs: Mapping[str, Job]  # by exchange, the job to run
    attacks: tuple[str, ...] = field(default_factory=lambda: tuple(known_attacks()))
    repeats: int = 5  # seeds, from the job's on
    workers: int = 1  # processes, each with exchanges and seeds of its own
    curves: bool = True  # whether the first seed measures what only curves show
    ray: str | None = None  # address of a cluster whose cores are taken in place of processes


def audit(
    dataset: VerticalDataset,
    settings: AuditSettings,
    report: Report = lambda what, done, total: None,
) -> list[Row]:
    """All rows, in the order of the exchanges.

    What runs is reported in hundredths; an interrupt has the rows of the seeds that were done.

    Raises:
        ConfigError: an unknown attack or exchange, or a job that does not fit the data.
    """
    known = known_attacks()
    for name in settings.attacks:
        require(name, known, "attack")
    for job in settings.jobs.values():
        # Noise that nobody has chosen is a mistake, and no reason why an attack shows nothing.
        plan_for(job if exchange_of(job).adds_noise else job.without_protection, dataset)
    seeds = range(settings.repeats)
    # The slow ones first, so that none of them ends alone on one core.
    names = sorted(settings.jobs, key=lambda name: not exchange_of(settings.jobs[name]).is_slow)
    tasks = [(name, index) for name in names for index in seeds]
    attack = partial(_measured, dataset, settings, _modules(settings))
    found: dict[tuple[str, int], list[Measurement]] = {}

    def told(place: int, what: str, done: float) -> None:
        name, index = tasks[place]
        report(f"{name}, seed {index + 1}: {what}", 100 * done, 100)

    costs = [_cost(settings.jobs[name], index) for name, index in tasks]
    try:
        with in_processes(
            attack, tasks, settings.workers, "audit", told=told, costs=costs, ray=settings.ray
        ) as results:
            for place, measured in results:
                found[tasks[place]] = measured
    except KeyboardInterrupt:
        raise Interrupted(_rows(settings, found), _missing(settings, found)) from None
    return _rows(settings, found)


def _rows(
    settings: AuditSettings, found: Mapping[tuple[str, int], Sequence[Measurement]]
) -> list[Row]:
    by_cell: dict[tuple[str, str, str], list[Measurement]] = {}
    order = list(settings.jobs)
    for name, index in sorted(found, key=lambda task: (order.index(task[0]), task[1])):
        for each in found[name, index]:
            by_cell.setdefault((name, each.attack, each.case), []).append(each)
    return [_row(name, measured) for (name, _, _), measured in by_cell.items()]


def _missing(settings: AuditSettings, found: Collection[tuple[str, int]]) -> list[str]:
    """What an interrupt left undone, a line for each exchange."""
    done = {name: sum(task[0] == name for task in found) for name in settings.jobs}
    return [
        f"{name}: {settings.repeats - count} of {settings.repeats} seeds"
        for name, count in done.items()
        if count < settings.repeats
    ]


def _cost(job: Job, index: int) -> float:
    """What a seed takes beside the others: the first has curves."""
    return (SLOW if exchange_of(job).is_slow else 1.0) * (WITH_CURVES if index == 0 else 1.0)


def _modules(settings: AuditSettings) -> tuple[str, ...]:
    """Where attacks, exchanges and algorithms come from, which other processes import, too."""
    known = known_attacks()
    # What is written in no module, as in a notebook or a page of the documents, has None.
    measures = [getattr(known[name].measure, "__module__", "") or "" for name in settings.attacks]
    described = (of(job) for job in settings.jobs.values() for of in (exchange_of, algorithm_of))
    return tuple(sorted({*measures, *(type(each).__module__ for each in described)}))


def _known_here(job: Job, settings: AuditSettings, modules: Iterable[str]) -> Mapping[str, Attack]:
    """All attacks, in a process that may have to import them first.

    Raises:
        ConfigError: an attack, an exchange or an algorithm that the process cannot import.
    """
    for module in modules:
        with suppress(ImportError, ValueError):  # a module that no file is of, or the main program
            import_module(module)
    known = known_attacks()
    try:
        check_names(job)
        for name in settings.attacks:
            require(name, known, "attack")
    except ConfigError as error:
        raise ConfigError(f"{error}; import it in a module, or audit with one worker") from None
    return known


def _measured(
    dataset: VerticalDataset,
    settings: AuditSettings,
    modules: Iterable[str],
    task: tuple[str, int],
    tell: Tell,
) -> list[Measurement]:
    """All attacks on one exchange under one seed; only reasons where it does not fit the data."""
    name, index = task
    job = settings.jobs[name]
    known = _known_here(job, settings, modules)
    attacks = [known[attack] for attack in settings.attacks]
    try:
        plan_for(job, dataset)
    except ConfigError as error:
        return [attack.without_figure(NotShown(str(error))) for attack in attacks]
    subject = Subject(
        job, dataset, job.job.seed + index, with_curves=settings.curves and index == 0
    )
    measured: list[Measurement] = []
    costs = [attack.cost for attack in attacks]
    for place, attack in enumerate(attacks):
        at = sum(costs[:place]), sum(costs)
        tell(attack.name, *at)
        subject.progress = partial(_tell_rounds, tell, attack.name, at)
        measured += attack(subject)
    return measured


def _tell_rounds(tell: Tell, name: str, at: tuple[float, float], done: int, rounds: int) -> None:
    tell(f"{name}, round {done} of {rounds}", *at)


def _row(exchange: str, measured: Sequence[Measurement]) -> Row:
    """A cell as JSON has it, from its measurements, one a seed; side figures are the first's."""
    first = measured[0]
    outcomes = [each.outcome for each in measured]
    findings = [each for each in outcomes if isinstance(each, Finding)]
    details = findings[0].detail if findings else {}
    findings = decisive(findings) if findings else []
    reasons = [each.reason for each in outcomes if not isinstance(each, Finding)]
    detail: Row = {"case": first.case, "control": first.control, "what_if": first.what_if}
    if reasons:
        detail["reason"] = reasons[0]
    if findings:
        judgement = judge(findings)
        detail |= {
            "certain": judgement.certain,
            "advantage": judgement.advantage,
            "advantage_interval": list(judgement.interval),
            "margin": judgement.margin,
            "allowed": findings[0].allowed,
            "values": [each.value for each in findings],
        }
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
        "detail": detail | details,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


@dataclass(frozen=True)
class Violation:
    """An attack that must resist, under one exchange and in one case, and was not shown to."""

    attack: str
    exchange: str
    case: str  # which of its settings; empty where it has one only, or nothing was measured
    says: str  # in one line that it leaks, or why nothing is shown


def violations(
    rows: Sequence[Mapping[str, Any]],
    must_resist: Iterable[str],
    exchanges: Iterable[str],
    unfit: str = "",
) -> list[Violation]:
    """What breaks a policy, exchange by exchange.

    Each attack that must resist needs a row that shows it, for each exchange, audited or not.
    `unfit` says why these rows are no basis for a policy, which is broken then; empty where they
    are.
    """
    broken = []
    for exchange, attack in product(dict.fromkeys(exchanges), dict.fromkeys(must_resist)):
        own = [
            row
            for row in rows
            if (row["attack"], row["exchange"]) == (attack, exchange)
            and not (row["detail"]["control"] or row["detail"]["what_if"])
        ]
        broken += [_violation(row) for row in own if row["verdict"] not in KEPT]
        if unfit or not own:
            why = unfit or "nothing was measured of this job's own settings"
            says = f"{attack} is not shown to resist under {exchange}: {why}"
            broken.append(Violation(attack, exchange, "", says))
    return broken


def _violation(row: Mapping[str, Any]) -> Violation:
    attack, exchange, case = row["attack"], row["exchange"], row["detail"]["case"]
    where = f"{exchange} ({case})" if case else exchange
    if row["verdict"] == "leaks":
        says = f"{attack} leaks under {where}: {row['metric']} {row['value']:.3g}"
    else:
        says = f"{attack} is not shown to resist under {where}: {row['detail']['reason']}"
    return Violation(attack, exchange, case, says)
