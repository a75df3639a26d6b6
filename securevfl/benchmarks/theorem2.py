"""Theorem 2 of Liu et al. 2019 beside what training does: bound (13)-(14) and the rate 1/√T.

T counts local steps, T = R·Q. The bound is on the average over them of E‖∇L(Θ)‖², over all rows:

    2(L(Θ⁰) − L*)/(ηT) + 2η²(K + 3)Q² Σ_k ℓ_k² V/S + 2KV/S,

for η ≤ √2/(2Q·√(Σ_j ℓ_j² + 3ℓ_k²)) and 1/ℓ. All constants are computed, see `objective`.

The theorem is about `local_rule = "exact"`, equation (7): a party steps with the loss at its own
fresh and the others' stale predictions. Its proof drops a term that has to be at least 0
(`Smoothness.proof_term`), and at the largest of these steps is not: rows say which condition they
meet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np

from securevfl.benchmarks.objective import Objective
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.theorem2 import Theorem2Settings
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.reports.benchmarks import Theorem2Row

DRIFT = 0.55
"""√(Σ_j ℓ_j² + 3 max_k ℓ_k²) of scaled data.

η = 1/√T at Q = √T is a step of the theorem's up to 0.707; with ℓη ≤ 0.55/4 the proof's term is at
least 1 − 0.14 − 0.61.
"""

ROUNDING = 1e-9


def bound(
    objective: Objective, *, eta: float, local_steps: int, batch_size: int, steps: int, gap: float
) -> float:
    """The right side of (13)-(14).

    Args:
        objective: for K, ℓ_k and V.
        eta: η.
        local_steps: Q.
        batch_size: S.
        steps: T.
        gap: L(Θ⁰) − L*.
    """
    parties = len(objective.blocks)
    noise = objective.noise(batch_size) / batch_size
    squares = sum(each**2 for each in objective.smoothness.blocks)
    drift = 2 * eta**2 * (parties + 3) * local_steps**2 * squares * noise
    return 2 / (eta * steps) * gap + drift + 2 * parties * noise


def bounded_gradients(
    settings: Theorem2Settings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[Theorem2Row]:
    """A row for every rule, Q, S and η on data of two classes: measured average and bound."""
    objective = Objective.of(dataset)
    for rule, size, count, over in product(
        settings.local_rules, settings.batch_sizes, settings.local_steps, settings.over_limit
    ):
        report(f"{rule}, Q = {count}, S = {size}, {over:g} of the largest step")
        yield _measured(
            objective,
            "bound",
            local_rule=rule,
            local_steps=count,
            batch_size=size,
            eta=over * objective.smoothness.largest_step(count),
            over_limit=over,
            steps=settings.steps,
            seeds=settings.seeds,
        )


def rates(
    settings: Theorem2Settings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[Theorem2Row]:
    """A row for every rule and T = root²: η = 1/√T, S = Q = √T rounds, and the measured average.

    Args:
        settings: what to run.
        dataset: scaled by `with_drift`; every root divides N.
        report: told what runs.

    Raises:
        ConfigError: data that are not scaled so that η = 1/√T meets the condition.
    """
    objective = Objective.of(dataset)
    for rule, root in product(settings.local_rules, settings.roots):
        report(f"{rule}, T = {root**2}")
        eta = 1 / root
        if eta > objective.smoothness.largest_step(root) * (1 + ROUNDING):
            raise ConfigError(f"eta = {eta:g} is over the theorem's limit: scale the features")
        yield _measured(
            objective,
            "rate",
            local_rule=rule,
            local_steps=root,
            batch_size=root,
            eta=eta,
            over_limit=None,
            steps=root**2,
            seeds=settings.seeds,
        )


def slope(rows: Sequence[Theorem2Row]) -> float:
    """Of log error over log rounds; the theorem's rate is −1."""
    rounds = np.log([row["rounds"] for row in rows])
    return float(np.polyfit(rounds, np.log([row["measured"] for row in rows]), 1)[0])


def with_drift(dataset: VerticalDataset, drift: float = DRIFT) -> VerticalDataset:
    """The data with standardized features times what gives that drift.

    Standardized features of several parties have ℓ_k of some units, where 1/√T with Q = √T is no
    step the theorem allows, whatever T.
    """
    from scipy.optimize import brentq  # noqa: PLC0415  # slow to import

    def times(factor: float) -> VerticalDataset:
        def scaled(table: PartyTable) -> PartyTable:
            scaling = Scaling.fit(table.train)
            train, test = scaling.apply(table.train), scaling.apply(table.test)
            return replace(table, train=factor * train, test=factor * test)

        parties = tuple(scaled(table) for table in dataset.parties)
        return replace(dataset, parties=parties, standardize=False)

    def excess(factor: float) -> float:
        return Objective.of(times(factor)).smoothness.drift - drift

    # No formula, as the constant column does not shrink along.
    return times(float(brentq(excess, 0.0, 1.0, xtol=1e-6)) * (1 - 1e-5))


def _measured(
    objective: Objective,
    table: Literal["bound", "rate"],
    *,
    local_rule: str,
    local_steps: int,
    batch_size: int,
    eta: float,
    over_limit: float | None,
    steps: int,
    seeds: Sequence[int],
) -> Theorem2Row:
    rounds = steps // local_steps
    averages = []
    for seed in seeds:
        job = Job.of(
            job={
                "rounds": rounds,
                "batch_size": batch_size,
                "local_steps": local_steps,
                "local_rule": local_rule,
                "learning_rate": eta,
                "start": "zero",
                "eval_every": 0,
                "seed": seed,
            }
        )
        path = objective.follow(job)
        averages.append(float(np.mean(objective.squared_gradients(path[:-1]))))
    gap = objective.loss(np.zeros(objective.joint.shape[1])) - objective.lowest_loss
    allowed = bound(
        objective,
        eta=eta,
        local_steps=local_steps,
        batch_size=batch_size,
        steps=rounds * local_steps,
        gap=gap,
    )
    measured = float(np.mean(averages))
    term = objective.smoothness.proof_term(eta, local_steps)
    allows = eta <= objective.smoothness.largest_step(local_steps) * (1 + ROUNDING)
    return {
        "table": table,
        "dataset": objective.dataset.name,
        "local_rule": local_rule,
        "parties": len(objective.blocks),
        "local_steps": local_steps,
        "batch_size": batch_size,
        "eta": eta,
        "rounds": rounds,
        "steps": rounds * local_steps,
        "measured": measured,
        "spread": float(np.std(averages)),
        "bound": allowed,
        "holds": measured <= allowed,
        "over_limit": over_limit,
        "proof_term": term,
        # Who meets the proof's condition takes a step that the theorem allows.
        "within": "proof" if term >= 0 else "statement" if allows else "neither",
    }
