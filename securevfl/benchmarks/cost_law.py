"""The cost law: a round's homomorphic seconds and operations do not depend on Q.

Runs at different Q alternate, so that a machine that changes its speed changes it for all.
"""

import statistics
from collections.abc import Iterator

from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.cost_law import CostLawSettings
from securevfl.crypto.schemes import SCHEMES
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.reports.benchmarks import CostLawRow
from securevfl.reports.rows import HOMOMORPHIC
from securevfl.training import TrainingResult, plan_for, train


def cost_law(
    settings: CostLawSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[CostLawRow]:
    """Medians over alternating runs; `ratio_to_first` compares with the first Q.

    Raises:
        ConfigError: no homomorphic scheme, or a job that does not fit.
    """
    for scheme in settings.schemes:
        if scheme not in SCHEMES:
            raise ConfigError(f"--exchange {scheme!r}: expected some of {', '.join(SCHEMES)}")
        plan_for(_job(settings, scheme, max(settings.local_steps)), dataset)
    for scheme in settings.schemes:
        yield from _rows(settings, dataset, scheme, report)


def _rows(
    settings: CostLawSettings, dataset: VerticalDataset, scheme: str, report: Report
) -> Iterator[CostLawRow]:
    runs: dict[int, list[TrainingResult]] = {q: [] for q in settings.local_steps}
    for repeat in range(settings.repeats):
        for q in settings.local_steps:
            report(f"{scheme}, Q = {q}", repeat, settings.repeats)
            runs[q].append(train(_job(settings, scheme, q), dataset))
    rounds, first = settings.rounds, None
    for q, results in runs.items():
        seconds = statistics.median(_homomorphic_seconds(r) / rounds for r in results)
        first = first or seconds
        yield {
            "scheme": scheme,
            "key_bits": results[0].key_bits,
            "local_steps": q,
            "homomorphic_s_per_round": seconds,
            "ratio_to_first": seconds / first,
            "local_s_per_round": statistics.median(
                r.costs().compute_by_phase_s["local"] / rounds for r in results
            ),
            "encryptions_per_round": _operations(results[0], "encryptions") / rounds,
            "products_per_round": _operations(results[0], "products") / rounds,
            "decryptions_per_round": _operations(results[0], "decryptions") / rounds,
            "rounds": rounds,
            "repeats": settings.repeats,
        }


def _job(settings: CostLawSettings, scheme: str, q: int) -> Job:
    return Job.of(
        job={
            "rounds": settings.rounds,
            "batch_size": settings.batch_size,
            "local_steps": q,
            "learning_rate": 0.01,
            "eval_every": 0,
            "seed": settings.seed,
        },
        exchange={
            "scheme": scheme,
            "key_bits": settings.key_bits if SCHEMES[scheme].key_sizes else None,
        },
    )


def _homomorphic_seconds(result: TrainingResult) -> float:
    phases = result.costs().compute_by_phase_s
    return sum(phases[phase] for phase in HOMOMORPHIC)


def _operations(result: TrainingResult, name: str) -> int:
    return sum(ledger.operations[name] for ledger in result.ledgers.values())
