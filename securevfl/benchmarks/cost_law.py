"""The cost law: a round's homomorphic seconds and operations do not depend on Q.

Runs at different Q alternate, so that a machine that changes its speed changes it for all.
"""

import statistics
from collections.abc import Iterator
from typing import Any

from securevfl.data.tables import VerticalDataset
from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.training import TrainingResult, train

Row = dict[str, Any]
HOMOMORPHIC = ("encrypt", "evaluate", "decrypt")
OPERATIONS = ("encryptions", "products", "decryptions")


def cost_law(
    dataset: VerticalDataset,
    *,
    schemes: tuple[tuple[str, int | None], ...] = (
        ("paillier", 2048),
        ("ckks", None),
        ("bfv", None),
    ),
    local_steps: tuple[int, ...] = (1, 50),
    batch_size: int = 64,
    rounds: int = 3,
    repeats: int = 5,
) -> Iterator[Row]:
    """Medians over alternating runs; `ratio_to_first` compares with the first Q.

    Args:
        dataset: the data.
        schemes: pairs of scheme and key bits.
        local_steps: values of Q.
        batch_size: S.
        rounds: rounds a run.
        repeats: runs of each Q.
    """
    for scheme, key_bits in schemes:
        runs: dict[int, list[TrainingResult]] = {q: [] for q in local_steps}
        for _ in range(repeats):
            for q in local_steps:
                runs[q].append(train(_job(scheme, key_bits, q, batch_size, rounds), dataset))
        first = None
        for q, results in runs.items():
            seconds = statistics.median(_homomorphic_seconds(r) / rounds for r in results)
            first = first or seconds
            yield {
                "scheme": scheme,
                "key_bits": key_bits,
                "local_steps": q,
                "homomorphic_s_per_round": seconds,
                "ratio_to_first": seconds / first,
                "local_s_per_round": statistics.median(
                    r.costs().compute_by_phase_s["local"] / rounds for r in results
                ),
                **{
                    f"{name}_per_round": _operations(results[0], name) / rounds
                    for name in OPERATIONS
                },
                "rounds": rounds,
                "repeats": repeats,
            }


def _job(scheme: str, key_bits: int | None, q: int, batch_size: int, rounds: int) -> Job:
    return Job(
        job=JobSettings(
            rounds=rounds, batch_size=batch_size, local_steps=q, learning_rate=0.01, eval_every=0
        ),
        exchange=ExchangeSettings(scheme=scheme, key_bits=key_bits),
    )


def _homomorphic_seconds(result: TrainingResult) -> float:
    phases = result.costs().compute_by_phase_s
    return sum(phases[phase] for phase in HOMOMORPHIC)


def _operations(result: TrainingResult, name: str) -> int:
    return sum(ledger.operations[name] for ledger in result.ledgers.values())
