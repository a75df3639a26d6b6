"""The main job: encrypted training to a target AUC, computation and communication apart.

One row per exchange, number of local steps Q and target AUC, with the columns of Table 2 of Liu et
al. 2019. That table is of another task, federated transfer learning with networks, and of a system
that repeats homomorphic work in every local step: `he_per_step` adds rows of that cost. Figures are
medians over repeats with seeds of their own.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import floor
from typing import Literal

from typing_extensions import override

from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.tradeoff import TradeoffSettings
from securevfl.benchmarks.tuning import (
    LocalSteps,
    Tuned,
    at_steps,
    chosen,
    different_steps,
    step_settings,
)
from securevfl.crypto.schemes import SCHEMES, default_engine
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.protocols import catalogue
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.reports.rows import (
    OfflineFigure,
    TradeoffRow,
    TradeoffRun,
    cost_figures,
    made_offline,
)
from securevfl.training import Environment, TrainingResult, plan_for, train

ScoreName = Literal["auc", "accuracy"]
BELOW_CLEAR = 0.005


def tradeoff(
    settings: TradeoffSettings,
    dataset: VerticalDataset,
    report: Report = silent,
) -> Iterator[TradeoffRow]:
    """Run every exchange at every Q; yields rows as they are done.

    Args:
        settings: what to run.
        dataset: the data.
        report: told what runs now.

    Raises:
        ConfigError: a job that does not fit, or that learns nothing and gives no target; or work
            to be repeated where there is none.
    """
    if settings.he_per_step and not any(each in SCHEMES for each in settings.exchanges):
        raise ConfigError("--he-per-step: no homomorphic exchange among --exchange")
    all_steps = different_steps(settings.algorithm, _local_steps(settings, dataset))
    variants = _variants(settings, all_steps)
    for variant in variants:
        plan_for(_job(settings, dataset, variant), dataset)
    settings, how = _with_target(settings, dataset, report)
    rates = _learning_rates(settings, all_steps, dataset, report)
    course = _Course(variants, settings.repeats, report)
    for variant in variants:
        results, tuned = [], rates[variant.local_steps]
        job = _job(settings, dataset, variant, tuned.learning_rate)
        for repeat in range(settings.repeats):
            seeded = job.with_settings(seed=settings.seed + repeat)
            course.told(variant, repeat, 0)
            progress = partial(course.told, variant, repeat)
            results.append(train(seeded, dataset, Environment(progress=progress)))
            course.ended(variant, results[-1].rounds)
        for target in settings.target_aucs:
            yield {**row_to(target, dataset, results, tuned), "target_chosen": how}


def _local_steps(settings: TradeoffSettings, dataset: VerticalDataset) -> tuple[LocalSteps, ...]:
    if settings.base is None or settings.local_steps:
        return settings.local_steps
    return (plan_for(settings.base, dataset).local_steps,)


def _with_target(
    settings: TradeoffSettings, dataset: VerticalDataset, report: Report
) -> tuple[TradeoffSettings, str]:
    """The settings with a target, and how it was chosen."""
    if settings.base is None or settings.target_aucs:
        return settings, "given"
    report("the job in clear, for a target")
    target, how = below_clear(settings.base.with_settings(seed=settings.seed), dataset)
    return replace(settings, target_aucs=(target,)), how


def below_clear(job: Job, dataset: VerticalDataset) -> tuple[float, str]:
    """A target for a job that has none: a little less than its own run in clear ends at.

    Returns:
        The AUC, rounded down to four decimals, and how it was chosen.

    Raises:
        ConfigError: the job learns nothing.
    """
    result = train(job.without_protection.with_settings(eval_every=0), dataset)
    found = result.scores[-1].auc
    if not result.learned:
        raise ConfigError(
            f"no target: the job in clear learns nothing that can be told from chance (AUC "
            f"{found:.4f} on {len(dataset.test_labels)} held-out rows); give --target-auc"
        )
    target = floor((found - BELOW_CLEAR) * 1e4) / 1e4
    return target, f"{BELOW_CLEAR:g} below the job's own run in clear, AUC {found:.4f}"


@dataclass(frozen=True)
class _Variant:
    """What rows differ in."""

    exchange: str
    local_steps: LocalSteps
    he_per_step: bool = False

    @override
    def __str__(self) -> str:
        each = ", homomorphic work in every step" if self.he_per_step else ""
        return f"{self.exchange}, Q = {self.local_steps}{each}"


class _Course:
    """How far an exchange is: it takes the rounds of the first one that was run at the same Q."""

    def __init__(self, variants: Sequence[_Variant], repeats: int, report: Report) -> None:
        self._variants, self._repeats, self._report = variants, repeats, report
        self._rounds: dict[LocalSteps, int] = {}
        self._done: dict[str, int] = {}

    def told(self, variant: _Variant, repeat: int, done: int) -> None:
        """Report rounds done in a run, and in all of the exchange where it is known how many."""
        name = variant.exchange
        what = f"{variant}, run {repeat + 1} of {self._repeats}, round {done}"
        own = [each.local_steps for each in self._variants if each.exchange == name]
        if name == self._variants[0].exchange or not self._rounds.keys() >= set(own):
            self._report(what)
            return
        total = self._repeats * sum(self._rounds[steps] for steps in own)
        self._report(what, min(self._done.get(name, 0) + done, total), total)

    def ended(self, variant: _Variant, rounds: int) -> None:
        """Take note of a run that is done."""
        self._rounds.setdefault(variant.local_steps, rounds)
        self._done[variant.exchange] = self._done.get(variant.exchange, 0) + rounds


def _variants(settings: TradeoffSettings, all_steps: Sequence[LocalSteps]) -> list[_Variant]:
    for name in settings.exchanges:
        catalogue.require(name, catalogue.EXCHANGES, "exchange")
    ways = (False, True) if settings.he_per_step else (False,)
    return [
        _Variant(exchange, local_steps, he_per_step)
        for exchange, he_per_step, local_steps in product(settings.exchanges, ways, all_steps)
        if not he_per_step or (exchange in SCHEMES and local_steps != "exact")
    ]


def _learning_rates(
    settings: TradeoffSettings,
    all_steps: Sequence[LocalSteps],
    dataset: VerticalDataset,
    report: Report,
) -> dict[LocalSteps, Tuned]:
    most = max((each for each in all_steps if each != "exact"), default=1)
    rates: dict[LocalSteps, Tuned] = {}
    for local_steps in all_steps:
        own = local_steps == "exact" or settings.tuning == "per-q"
        at = local_steps if own else most
        if at not in rates:
            job = _job(settings, dataset, _Variant("plain", at))
            rates[at] = chosen(job, dataset, settings.learning_rate, report)
        rates[local_steps] = rates[at]
    return rates


def _job(
    settings: TradeoffSettings,
    dataset: VerticalDataset,
    variant: _Variant,
    learning_rate: float | None = None,
) -> Job:
    if settings.base is None:
        job, asked = _by_options(settings, variant.local_steps, learning_rate)
    else:
        job = at_steps(settings.base, dataset, variant.local_steps)
        asked = job.exchange
    on_phe = variant.exchange == "paillier" and asked.engine == "phe"
    changed = {
        "rounds": (on_phe and settings.phe_rounds) or job.job.rounds,
        "seed": settings.seed,
        "target_auc": max(settings.target_aucs, default=None),
    }
    noisy = EXCHANGES[variant.exchange].adds_noise
    return Job.of(
        **{
            **dict(job),
            "job": {**dict(job.job), **changed},
            "exchange": _exchange(settings, asked, variant),
            "privacy": job.privacy if noisy else {},
        }
    )


def _by_options(
    settings: TradeoffSettings, local_steps: LocalSteps, learning_rate: float | None
) -> tuple[Job, ExchangeSettings]:
    """The job in clear that options describe, and what they ask of homomorphic exchanges."""
    job = Job.of(
        job={
            "name": "tradeoff",
            "algorithm": settings.algorithm,
            "rounds": settings.max_rounds,
            **step_settings(local_steps, settings.batch_size, learning_rate),
            "schedule": None if local_steps == "exact" else settings.schedule,
            "model": settings.model,
            "hidden": settings.hidden or None,
            "loss": settings.loss,
            "eval_every": settings.eval_every,
        },
        network=settings.network,
    )
    asked = ("hide", "key_bits", "engine", "round_trips")
    bits = ("value_fraction_bits", "feature_fraction_bits")
    exchange = {name: getattr(settings, name) for name in (*asked, *bits)}
    return job, Job.of(exchange=exchange).exchange


def _exchange(
    settings: TradeoffSettings, asked: ExchangeSettings, variant: _Variant
) -> dict[str, object]:
    name = variant.exchange
    if name == asked.scheme and settings.base is not None:
        return {**dict(asked), "he_per_step": variant.he_per_step}
    if name not in SCHEMES:
        return {"scheme": name}
    scheme = SCHEMES[name]
    chosen = [SCHEMES[each] for each in settings.exchanges if each in SCHEMES]
    # What no chosen scheme has goes through, to be refused with what is known.
    engine = asked.engine
    if engine not in scheme.engines and any(engine in each.engines for each in chosen):
        engine = None
    round_trips = asked.round_trips
    if scheme.seconds is None and any(each.seconds for each in chosen):
        round_trips = "auto"
    return {
        "scheme": name,
        "hide": asked.hide,
        "key_bits": asked.key_bits if scheme.key_sizes else None,
        "engine": engine,
        "round_trips": round_trips,
        "he_per_step": variant.he_per_step,
        "value_fraction_bits": asked.value_fraction_bits,
        "feature_fraction_bits": asked.feature_fraction_bits,
    }


def rounds_to(result: TrainingResult, target: float, score: ScoreName = "auc") -> int | None:
    """Rounds until the held-out score first reached the target; None if it never did."""
    return next((s.rounds for s in result.scores if getattr(s, score) >= target), None)


def row_to(
    target: float, dataset: VerticalDataset, results: Sequence[TrainingResult], tuned: Tuned
) -> TradeoffRow:
    """What a job's runs, one a seed, cost up to a target."""
    runs = [_run(result, target) for result in results]
    first = results[0]
    job, exchange = first.job.job, first.job.exchange
    encrypted = first.plan.exchange.encrypts
    phases = runs[0]["compute_by_phase_s"]

    def offline(figure: OfflineFigure) -> float:
        return statistics.median(made_offline(run, figure) for run in runs)

    return {
        "dataset": dataset.name,
        "exchange": exchange.scheme,
        "hide": exchange.hide if encrypted else None,
        "algorithm": job.algorithm,
        "local_steps": first.plan.local_steps,
        "he_per_step": exchange.he_per_step,
        "parties": len(dataset.parties),
        "batch_size": first.plan.batch_size,
        "target_auc": target,
        "target_chosen": "given",
        "reached_target": all(run["reached"] for run in runs),
        "rounds": statistics.median(run["rounds"] for run in runs),
        "auc": statistics.median(run["auc"] for run in runs),
        "binormal": first.scores[-1].binormal,
        "compute_s": statistics.median(run["compute_s"] for run in runs),
        "communication_s": statistics.median(run["communication_s"] for run in runs),
        "total_s": statistics.median(run["total_s"] for run in runs),
        "setup_s": statistics.median(run["setup_s"] for run in runs),
        "round_trips": statistics.median(run["round_trips"] for run in runs),
        "bytes_sent": statistics.median(run["bytes_sent"] for run in runs),
        "messages": statistics.median(run["messages"] for run in runs),
        "ciphertext_bytes": statistics.median(run["ciphertext_bytes"] for run in runs),
        "wall_s": statistics.median(run["wall_s"] for run in runs),
        "compute_by_phase_s": {
            phase: statistics.median(run["compute_by_phase_s"][phase] for run in runs)
            for phase in phases
        },
        "offline_compute_s": offline("offline_compute_s"),
        "offline_communication_s": offline("offline_communication_s"),
        "offline_bytes": offline("offline_bytes"),
        "offline_ciphertext_bytes": offline("offline_ciphertext_bytes"),
        "offline_messages": offline("offline_messages"),
        "label_guard_ratio": first.label_guard_ratio,
        "learning_rate": tuned.learning_rate,
        "learning_rate_chosen": tuned.how,
        "key_bits": first.key_bits,
        "engine": exchange.engine or (default_engine(exchange.scheme) if encrypted else None),
        "key_fingerprints": first.key_fingerprints,
        "repeats": len(runs),
        "max_rounds": job.rounds,
        "runs": runs,
    }


def _run(result: TrainingResult, target: float) -> TradeoffRun:
    reached = rounds_to(result, target)
    rounds = reached or result.rounds
    score = next(s for s in reversed(result.scores) if s.rounds <= rounds)
    return {
        "seed": result.job.job.seed,
        "reached": reached is not None,
        "rounds": rounds,
        "auc": score.auc,
        "accuracy": score.accuracy,
        **cost_figures(result.costs(rounds)),
        "wall_s": result.wall_s,
        "key_fingerprints": result.key_fingerprints,
    }
