"""The `blind` exchange beside `plain` and others, with all that it does ahead.

`plain` starts from zero, as `blind` does; others start as they do where nothing is said. All take
the same batches and settings, but nobody sees a loss under `blind`, so that its exact steps are as
short as is always safe. What shows nobody anything on the way has no target to stop at: it makes as
many rounds as its steps take in float, with the same seed, to `ROUNDING` above the target.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, cast

from securevfl.benchmarks.blind_in_float import aucs_in_float
from securevfl.benchmarks.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report, rounds_done, silent
from securevfl.benchmarks.settings.blind import BlindSettings, Loss
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.benchmarks.tuning import LocalSteps, Tuned, chosen, step_settings
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols import catalogue
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.reports.blind import BlindRow, BlindRun
from securevfl.reports.rows import CostFigures, cost_figures
from securevfl.runtime.costs import PHASES
from securevfl.training import Environment, TrainingResult, plan_for, train

CLEAR = "plain"
ROUNDING = 0.0003


@dataclass(frozen=True)
class Steps:
    """Q and S."""

    local_steps: LocalSteps
    batch_size: int | Literal["full"]

    @classmethod
    def of(cls, text: str) -> "Steps":
        """As typed, Q:S.

        Raises:
            ConfigError: neither numbers nor the words.
        """
        steps, _, size = text.partition(":")
        if not ((steps == "exact" or _counts(steps)) and (size == "full" or _counts(size))):
            raise ConfigError(f"--steps {text!r}: expected Q:S as in 5:256, exact:4096 or 1:full")
        return cls(
            "exact" if steps == "exact" else int(steps), "full" if size == "full" else int(size)
        )

    def settings(self, learning_rate: float | None, schedule: str) -> dict[str, object]:
        """What `[job]` says of them."""
        exact = self.local_steps == "exact"
        return {
            **step_settings(self.local_steps, self.batch_size, learning_rate),
            "batch_size": self.batch_size,
            "schedule": None if exact else schedule,
        }


def _counts(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def blind(
    settings: BlindSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[BlindRow]:
    """Train every combination; yields rows as they are done, those of `plain` first.

    Raises:
        ConfigError: a job that does not fit, or data of other than two classes.
    """
    if dataset.classes != 2:  # noqa: PLR2004
        raise ConfigError(f"{dataset.name} has {dataset.classes} classes, an AUC has two")
    exchanges = tuple(dict.fromkeys((CLEAR, *settings.exchanges)))
    for name in exchanges:
        catalogue.require(name, catalogue.EXCHANGES, "exchange")
    losses = sorted(settings.losses, key=lambda loss: loss != "logistic")  # what others differ from
    cases = list(product(map(Steps.of, settings.steps), losses))
    for (steps, loss), name in product(cases, exchanges):
        plan_for(job_of(settings, steps, loss, name), dataset)
    report("scikit-learn in one place")
    _, joint_auc = score_in_one_place(dataset)
    logistic: dict[Steps, Sequence[float]] = {}
    for steps, loss in cases:
        job = job_of(settings, steps, loss, CLEAR)
        tuned = chosen(job, dataset, settings.learning_rate, report)
        work = _BlindRuns(settings, dataset, tuned, report)
        for row in work.rows([job_of(settings, steps, loss, name) for name in exchanges]):
            aucs = [run["auc"] for run in row["runs"]]
            if loss == "logistic" and row["target_auc"] is None:
                logistic.setdefault(steps, aucs)  # of the first, which is in clear
            pairs = zip(aucs, logistic.get(steps, ()), strict=False)
            apart = [auc - other for auc, other in pairs]
            yield {
                **row,
                "joint_auc": joint_auc,
                "apart": statistics.median(apart) if apart else None,
            }


def job_of(settings: BlindSettings, steps: Steps, loss: Loss, exchange: str) -> Job:
    """One exchange's job of a comparison, without a step size of its own."""
    job = Job.of(
        job={
            "name": "blind",
            "rounds": settings.rounds,
            **steps.settings(settings.learning_rate, settings.schedule),
            "tolerance": 0,
            "allow_label_leak": True,  # a comparison of costs, down to one round
            "loss": loss,
            "eval_every": 0,
            "seed": settings.seed,
        },
        exchange={"scheme": exchange},
        network=settings.network,
    )
    if exchange == CLEAR:
        job = job.with_settings(start="zero")
    if not settings.target_aucs or _shows_nothing(job):
        return job
    return job.with_settings(target_auc=max(settings.target_aucs), eval_every=1)


def _shows_nothing(job: Job) -> bool:
    """Whether there is nothing to score before the last round, so that no target can end it."""
    return EXCHANGES[job.exchange.scheme].shares_parameters


@dataclass(frozen=True)
class _BlindRuns:
    """Trains the jobs of a comparison with the step size that all take."""

    settings: BlindSettings
    dataset: VerticalDataset
    tuned: Tuned
    report: Report

    def rows(self, jobs: Sequence[Job]) -> Iterator[BlindRow]:
        """For every job and target one."""
        settings = self.settings
        seeds = range(settings.seed, settings.seed + settings.repeats)
        for job in jobs:
            blindly = settings.target_aucs and _shows_nothing(job)
            results = [] if blindly else self._runs(job, [settings.rounds] * settings.repeats)
            curves = [aucs_in_float(self._of(job, seed), self.dataset) for seed in seeds if blindly]
            for target in settings.target_aucs or (None,):
                if target is not None and blindly:
                    results = self._runs(
                        job, [_first(curve, target + ROUNDING) for curve in curves]
                    )
                yield self._row(results, target)

    def _of(self, job: Job, seed: int) -> Job:
        if job.job.learning_rate != "auto":
            job = job.with_settings(learning_rate=self.tuned.learning_rate)
        return job.with_settings(seed=seed)

    def _runs(self, job: Job, rounds: Sequence[int]) -> list[TrainingResult]:
        what = f"{job.exchange.scheme}, Q = {job.job.local_steps}, {job.job.loss}"
        results = []
        for repeat, most in enumerate(rounds):
            seeded = self._of(job, self.settings.seed + repeat).with_settings(rounds=most)
            progress = partial(rounds_done, self.report, f"{what}, run {repeat + 1}", most)
            results.append(train(seeded, self.dataset, Environment(progress=progress)))
        return results

    def _row(self, results: Sequence[TrainingResult], target: float | None) -> BlindRow:
        runs = [_run(result, target) for result in results]
        plan = results[0].plan
        return {
            **_median_costs(runs),
            "dataset": self.dataset.name,
            "exchange": plan.exchange.name,
            "loss": plan.loss.name,
            "start": plan.job.job.start or "random",
            "local_steps": plan.local_steps,
            "batch_size": plan.batch_size,
            "columns": [len(table.columns) for table in self.dataset.parties],
            "target_auc": target,
            "reached_target": all(run["reached"] for run in runs),
            "rounds": statistics.median(run["rounds"] for run in runs),
            "auc": statistics.median(run["auc"] for run in runs),
            "apart": None,
            "joint_auc": 0.0,
            "learning_rate": self.tuned.learning_rate,
            "learning_rate_chosen": self.tuned.how,
            "party_bytes": statistics.median(run["party_bytes"] for run in runs),
            "party_compute_s": statistics.median(run["party_compute_s"] for run in runs),
            "rounds_s": statistics.median(run["rounds_s"] for run in runs),
            "round_s": statistics.median(run["rounds_s"] / run["rounds"] for run in runs),
            "wall_s": statistics.median(run["wall_s"] for run in runs),
            "max_rounds": self.settings.rounds,
            "repeats": len(runs),
            "runs": runs,
        }


def _first(curve: Sequence[float], target: float) -> int:
    """The first round after which it is there; else the last."""
    return next((index + 1 for index, auc in enumerate(curve) if auc >= target), len(curve))


def _run(result: TrainingResult, target: float | None) -> BlindRun:
    # What shows nobody anything ends with its last round, and may be scored by sums alone.
    stopped = None
    if target is not None and not _shows_nothing(result.job):
        stopped = rounds_to(result, target)
    rounds = stopped or result.rounds
    if stopped is None:
        auc = result.exact_score.auc
    else:
        auc = next(score.auc for score in result.scores if score.rounds == rounds)
    costs = result.costs(rounds)
    ends = [ledger.snapshots[rounds - 1] for ledger in result.ledgers.values()]
    computing = [
        sum(ledger.seconds.get(phase, 0.0) for phase in PHASES)
        for ledger in result.ledgers.values()
    ]
    return {
        **cost_figures(costs),
        "seed": result.job.job.seed,
        "reached": target is None or auc >= target,
        "rounds": rounds,
        "auc": auc,
        "party_bytes": max(end.bytes_sent - end.offline.bytes_sent for end in ends) / rounds,
        "party_compute_s": max(computing) / result.rounds,
        "rounds_s": costs.total_s - costs.offline_s,
        "wall_s": result.wall_s,
    }


def _median_costs(runs: Sequence[BlindRun]) -> CostFigures:
    figures = cast("Sequence[Mapping[str, Any]]", runs)
    phases = runs[0]["compute_by_phase_s"]
    medians: dict[str, Any] = {
        name: statistics.median(run[name] for run in figures)
        for name in CostFigures.__annotations__
        if name in runs[0] and name != "compute_by_phase_s"
    }
    medians["compute_by_phase_s"] = {
        phase: statistics.median(run["compute_by_phase_s"][phase] for run in runs)
        for phase in phases
    }
    return cast("CostFigures", medians)
