"""Do the homomorphic seconds of a round grow with Q? One encrypted product serves all local steps.

Runs at different Q alternate, so that a machine that changes its speed changes it for all.
"""

import statistics
from collections.abc import Iterator
from typing import Any

from pydantic import PositiveInt

from bench.experiment import DataSettings, Experiment, Run, main
from bench.tables import HOMOMORPHIC
from securevfl.benchmarks.progress import Report
from securevfl.crypto.schemes import SCHEMES
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.tables import Column, Row, seconds
from securevfl.training import TrainingResult, train

OPERATIONS = ("encryptions", "products", "decryptions")


class CostLawSettings(DataSettings):
    """Every scheme at every Q; medians over runs that alternate."""

    schemes: tuple[str, ...] = ("paillier", "ckks", "bfv")
    local_steps: tuple[PositiveInt, ...] = (1, 50)
    rounds: PositiveInt = 3
    repeats: PositiveInt = 5


def cost_law(settings: CostLawSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for every scheme and Q; operations are of the first run."""
    dataset = settings.load()
    for scheme in settings.schemes:
        yield from _rows(settings, dataset, scheme, report)


def _rows(
    settings: CostLawSettings, dataset: VerticalDataset, scheme: str, report: Report
) -> Iterator[dict[str, Any]]:
    runs: dict[int, list[TrainingResult]] = {q: [] for q in settings.local_steps}
    for repeat in range(settings.repeats):
        for q in settings.local_steps:
            report(f"{scheme}, Q = {q}", repeat, settings.repeats)
            runs[q].append(train(_job(settings, scheme, q), dataset))
    rounds, first = settings.rounds, None
    for q, results in runs.items():
        homomorphic = statistics.median(_homomorphic_seconds(r) / rounds for r in results)
        first = first or homomorphic
        ledgers = results[0].ledgers.values()
        yield {
            "scheme": scheme,
            "key_bits": results[0].key_bits,
            "local_steps": q,
            "homomorphic_s_per_round": homomorphic,
            "ratio_to_first": homomorphic / first,
            "local_s_per_round": statistics.median(
                r.costs().compute_by_phase_s["local"] / rounds for r in results
            ),
            **{
                f"{name}_per_round": sum(each.operations[name] for each in ledgers) / rounds
                for name in OPERATIONS
            },
        }


def _job(settings: CostLawSettings, scheme: str, q: int) -> Job:
    return Job.of(
        job={
            "rounds": settings.rounds,
            "batch_size": 64,
            "local_steps": q,
            "learning_rate": 0.01,
            "eval_every": 0,
            "seed": settings.seed,
        },
        exchange={"scheme": scheme, "key_bits": 2048 if SCHEMES[scheme].key_sizes else None},
    )


def _homomorphic_seconds(result: TrainingResult) -> float:
    phases = result.costs().compute_by_phase_s
    return sum(phases[phase] for phase in HOMOMORPHIC)


COLUMNS: tuple[Column[Row], ...] = (
    ("scheme", lambda row: f"{row['scheme']} {row['key_bits'] or ''}".rstrip()),
    ("Q", lambda row: str(row["local_steps"])),
    ("homomorphic", lambda row: seconds(row["homomorphic_s_per_round"])),
    ("to first Q", lambda row: f"{row['ratio_to_first']:.2f}x"),
    ("local", lambda row: seconds(row["local_s_per_round"])),
    ("encryptions", lambda row: f"{row['encryptions_per_round']:g}"),
    ("products", lambda row: f"{row['products_per_round']:g}"),
    ("decryptions", lambda row: f"{row['decryptions_per_round']:g}"),
)

EXPERIMENT = Experiment(
    name="cost_law",
    about=__doc__ or "",
    runs={"cost_law": Run(25)},
    quick={"schemes": ("bfv",), "local_steps": (1, 5), "rounds": 1, "repeats": 1},
    settings=CostLawSettings,
    measure=cost_law,
    columns=COLUMNS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
