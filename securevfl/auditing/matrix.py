"""The matrix of attacks and exchanges: runs are recorded, attacked, and judged over seeds.

An attack gets one party's view of a recorded run and the side knowledge that its row names. A cell
measures these attacks on this job and proves nothing: `no_leak_found` means what it says.

A policy names attacks that must find no leak. A leak, an undecided figure and a missing result
violate it.
Negative controls and what-ifs (other settings than the job's) do not count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from securevfl.auditing.advice import CHANGES, Advisor
from securevfl.auditing.judging import Finding, NotRun, decisive, judge, verdict_of
from securevfl.auditing.measuring import Attack, Measurement, known_attacks
from securevfl.auditing.subject import Subject, widest_peer
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.interrupts import Interrupted
from securevfl.job import Job
from securevfl.processes import Tell, in_processes
from securevfl.protocols.catalogue import algorithm_of, check_names, exchange_of, require
from securevfl.shown import seeds_of
from securevfl.training import plan_for

Row = dict[str, Any]
Report = Callable[[str, float, int], None]
"""Called with what runs, how much is done, and of how much."""

# Rough run times relative to the others, for the progress display.
SLOW, WITH_CURVES = 4.0, 1.3
KEPT, OPEN = ("no_leak_found", "immune"), ("leaks", "undecided")


@dataclass(frozen=True)
class AuditSettings:
    """What to audit."""

    jobs: Mapping[str, Job]  # the job to run, by exchange
    attacks: tuple[str, ...] = field(default_factory=lambda: tuple(known_attacks()))
    repeats: int = 5  # how many seeds, counted from the job's
    workers: int = 1  # processes
    curves: bool = True  # whether the first seed also measures curves
    ray: str | None = None  # address of a Ray cluster to use instead of processes


def audit(
    dataset: VerticalDataset,
    settings: AuditSettings,
    report: Report = lambda what, done, total: None,
) -> list[Row]:
    """Run all attacks; rows come in the order of the exchanges, progress in hundredths.

    Raises:
        ConfigError: an unknown attack or exchange, or a job that does not fit the data.
        Interrupted: with the rows of the seeds that were finished.
    """
    known = known_attacks()
    for name in settings.attacks:
        require(name, known, "attack")
    for job in settings.jobs.values():
        if job.job.class_weight or any(each.weights is not None for each in dataset.parties):
            raise ConfigError("class_weight, weight_column: no attack takes weights into account")
        # A missing noise multiplier is an error here, not a reason why an attack shows nothing.
        plan_for(job if exchange_of(job).adds_noise else job.without_protection, dataset)
    seeds = range(settings.repeats)
    # Slow exchanges first, so that none of them finishes alone on one core.
    names = sorted(settings.jobs, key=lambda name: not exchange_of(settings.jobs[name]).is_slow)
    tasks = list(product(names, seeds))
    costs = [
        (SLOW if exchange_of(settings.jobs[name]).is_slow else 1.0)
        * (WITH_CURVES if index == 0 else 1.0)
        for name, index in tasks
    ]
    attack = partial(_measured, dataset, settings, _modules(settings))
    found: dict[tuple[str, int], list[Measurement]] = {}

    def progress(place: int, what: str, done: float) -> None:
        name, index = tasks[place]
        report(f"{name}, seed {index + 1}: {what}", 100 * done, 100)

    workers, ray = settings.workers, settings.ray
    try:
        with in_processes(
            attack, tasks, workers, "audit", progress=progress, costs=costs, ray=ray
        ) as results:
            for place, measured in results:
                found[tasks[place]] = measured
    except KeyboardInterrupt:
        left = [(name, sum((name, seed) not in found for seed in seeds)) for name in settings.jobs]
        missing = [f"{name}: {count} of {len(seeds)} seeds" for name, count in left if count]
        raise Interrupted(_rows(dataset, settings, found), missing) from None
    return _rows(dataset, settings, found)


def _rows(
    dataset: VerticalDataset,
    settings: AuditSettings,
    found: Mapping[tuple[str, int], Sequence[Measurement]],
) -> list[Row]:
    by_cell: dict[tuple[str, str, str], list[Measurement]] = {}
    for name, index in product(settings.jobs, range(settings.repeats)):
        for each in found.get((name, index), ()):
            by_cell.setdefault((name, each.attack, each.case), []).append(each)
    rows = [_row(name, measured) for (name, _, _), measured in by_cell.items()]
    peer, advisor, known = widest_peer(dataset), Advisor(dataset), known_attacks()
    for row in rows:
        detail, attack = row["detail"], row["attack"]
        detail["about"] = {
            "label_party": dataset.label_party,
            "feature_party": peer.name,
            "columns": len(peer.columns),
            "people": len(dataset.train_labels),
        }
        own = not (detail["control"] or detail["what_if"])
        if own and row["verdict"] in OPEN and attack in CHANGES:
            job = settings.jobs[row["exchange"]]
            detail["to_change"] = advisor.advice(known[attack], job)
    return rows


def _modules(settings: AuditSettings) -> tuple[str, ...]:
    """The modules of attacks, exchanges and algorithms, which other processes have to import."""
    known = known_attacks()
    # Code that is in no module, as in a notebook, has None.
    measures = [getattr(known[name].measure, "__module__", "") or "" for name in settings.attacks]
    described = (of(job) for job in settings.jobs.values() for of in (exchange_of, algorithm_of))
    return tuple(sorted({*measures, *(type(each).__module__ for each in described)}))


def _known_here(job: Job, settings: AuditSettings, modules: Iterable[str]) -> Mapping[str, Attack]:
    """All attacks, imported if this process needs them; a ConfigError if it cannot."""
    for module in modules:
        with suppress(ImportError, ValueError):  # a module without a file, or the main program
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
    """All attacks on one exchange under one seed; only reasons if the job does not fit the data."""
    name, index = task
    job = settings.jobs[name]
    known = _known_here(job, settings, modules)
    attacks = [known[attack] for attack in settings.attacks]
    try:
        plan_for(job, dataset)
    except ConfigError as error:
        return [attack.without_figure(NotRun(str(error))) for attack in attacks]
    subject = Subject(
        job, dataset, job.job.seed + index, with_curves=settings.curves and index == 0
    )
    measured: list[Measurement] = []
    done, total = 0.0, sum(attack.cost for attack in attacks)
    for attack in attacks:

        def progress(round_: int, rounds: int, name: str = attack.name, done: float = done) -> None:
            tell(f"{name}, round {round_} of {rounds}", done, total)

        tell(attack.name, done, total)
        subject.progress = progress
        measured += attack(subject)
        done += attack.cost
    return measured


def _row(exchange: str, measured: Sequence[Measurement]) -> Row:
    """One cell as JSON, from one measurement per seed; details are those of the first seed."""
    first = measured[0]
    outcomes = [each.outcome for each in measured]
    findings = [each for each in outcomes if isinstance(each, Finding)]
    reasons = [each.reason for each in outcomes if not isinstance(each, Finding)]
    detail: Row = {"case": first.case, "control": first.control, "what_if": first.what_if}
    if reasons:
        detail["reason"] = reasons[0]
    measured_detail = findings[0].detail if findings else {}
    if findings:
        findings = decisive(findings)
        judgement = judge(findings)
        detail |= {
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
        "value": _median([each.value for each in findings]),
        "chance": _median([each.chance for each in findings]),
        "model_alone": _median([each.model_alone for each in findings]),
        "verdict": verdict_of(outcomes),
        "detail": detail | measured_detail,
    }


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.median(there)) if there else None


@dataclass(frozen=True)
class Violation:
    """An attack that must find no leak but may, under one exchange and in one case."""

    attack: str
    exchange: str
    case: str  # which of its settings; empty if it has only one, or if nothing was measured
    says: str  # one line: that it leaks, that it is undecided, or why it was not run


def violations(
    rows: Sequence[Mapping[str, Any]],
    must_resist: Iterable[str],
    exchanges: Iterable[str],
    unfit: str = "",
) -> list[Violation]:
    """What violates a policy, exchange by exchange.

    Each attack of the policy needs a row without a leak, for each exchange, audited or not.
    `unfit` says why these rows cannot support any policy; every policy is violated then.
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
            says = f"{attack} was not run under {exchange}: {why}"
            broken.append(Violation(attack, exchange, "", says))
    return broken


def _violation(row: Mapping[str, Any]) -> Violation:
    attack, exchange, case = row["attack"], row["exchange"], row["detail"]["case"]
    where = f"{exchange} ({case})" if case else exchange
    verdict, why = "was not run", row["detail"].get("reason")
    if row["verdict"] in OPEN:
        verdict, why = "leaks", f"{row['metric']} {row['value']:.3g}"
    if row["verdict"] == "undecided":
        verdict, why = "is undecided", f"{why} with {seeds_of([row])}; more decide (--repeats)"
    return Violation(attack, exchange, case, f"{attack} {verdict} under {where}: {why}")
