"""Federated transfer learning to a target AUC: rounds, computation and communication.

A row per exchange, number of local steps Q, proximal μ and target, as Table 2 and Fig. 3 and 4 of
Liu et al. 2019 on Credit-FTL and NUS-FTL; figures are medians over seeds. Step sizes are tuned in
clear by the local rule that the exchange has.
"""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from securevfl.benchmarks.progress import Report, rounds_done, silent
from securevfl.benchmarks.settings.transfer import TransferSettings
from securevfl.benchmarks.tradeoff import row_to
from securevfl.benchmarks.tuning import Tuned, chosen, step_settings
from securevfl.crypto.schemes import SCHEMES
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.transfer import TransferRow
from securevfl.training import Environment, TrainingResult, plan_for, train


def transfer(
    settings: TransferSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[TransferRow]:
    """Run every exchange at every Q and μ; yields rows as they are done.

    Args:
        settings: what to run.
        dataset: two parties' data.
        report: told what runs now.
    """
    cases = list(product(settings.exchanges, settings.local_steps, settings.proximal))
    for case in cases:
        plan_for(_job(settings, *case), dataset)
    rates: dict[tuple[int, float, str], Tuned] = {}
    for exchange, local_steps, proximal in cases:
        at = local_steps if settings.tuning == "per-q" else max(settings.local_steps)
        job = _job(settings, exchange, at, proximal)
        key = (at, proximal, job.job.local_rule)
        if key not in rates:
            rates[key] = chosen(job, dataset, settings.learning_rate, report)
        tuned = rates[key]
        results = []
        for repeat in range(settings.repeats):
            what = f"{exchange}, Q = {local_steps}, μ = {proximal:g}, run {repeat + 1}"
            job = _job(settings, exchange, local_steps, proximal, tuned.learning_rate)
            seeded = job.with_settings(seed=settings.seed + repeat)
            progress = partial(rounds_done, report, what, job.job.rounds)
            results.append(train(seeded, dataset, Environment(progress=progress)))
        for target in settings.target_aucs:
            yield _row(settings, target, dataset, results, tuned)


def _job(
    settings: TransferSettings,
    exchange: str,
    local_steps: int,
    proximal: float,
    learning_rate: float | None = None,
) -> Job:
    scheme = SCHEMES.get(exchange)
    key_bits = settings.key_bits if scheme and scheme.key_sizes else None
    return Job.of(
        job={
            "name": "transfer",
            "algorithm": "ftl",
            "rounds": settings.max_rounds,
            **step_settings(local_steps, settings.batch_size, learning_rate),
            "proximal": proximal,
            "l2": settings.l2,
            "schedule": settings.schedule,
            "local_rule": settings.local_rule if scheme is None else "gauss-newton",
            "seed": settings.seed,
            "target_auc": max(settings.target_aucs),
            "eval_every": settings.eval_every,
        },
        ftl={
            "units": settings.units,
            "alignment": settings.alignment,
            "overlap": settings.overlap or 1.0,
            "alternating": settings.alternating,
        },
        exchange={
            "scheme": exchange,
            "key_bits": key_bits,
            **({} if scheme is None else {"hide": "both"}),
        },
        network=settings.network,
    )


def _row(
    settings: TransferSettings,
    target: float,
    dataset: VerticalDataset,
    results: Sequence[TrainingResult],
    tuned: Tuned,
) -> TransferRow:
    best = (max(score.auc for score in result.scores) for result in results)
    first = results[0].plan
    return {
        **row_to(target, dataset, results, tuned),
        "proximal": first.job.job.proximal,
        "alternating": settings.alternating,
        "overlap": first.facts.rows,
        "alignment": settings.alignment,
        "local_rule": first.job.job.local_rule,
        "best_auc": statistics.median(best),
    }
