"""Theorem 2 of FedBCD: do its bound (13)-(14) and its rate 1/√T hold in training?

T counts local steps, T = R·Q. The bound is on the average over them of E‖∇L(Θ)‖², over all rows:

    2(L(Θ⁰) − L*)/(ηT) + 2η²(K + 3)Q² Σ_k ℓ_k² V/S + 2KV/S,

for η ≤ √2/(2Q·√(Σ_j ℓ_j² + 3ℓ_k²)) and 1/ℓ. All constants are computed, see `objective`.

The theorem is about `local_rule = "exact"`, equation (7): a party steps with the loss at its own
fresh and the others' stale predictions. Its proof drops a term that has to be at least 0
(`Smoothness.proof_term`), and at the largest of these steps is not: rows say which condition they
meet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, Self

import numpy as np
from pydantic import PositiveInt, model_validator

from bench.documents import by_columns
from bench.experiment import DataSettings, Experiment, Run, main
from bench.objective import Objective
from securevfl.benchmarks.progress import Report, silent
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset, some_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.reports.tables import Column, Row, grouped

DRIFT = 0.55
"""√(Σ_j ℓ_j² + 3 max_k ℓ_k²) of scaled data.

η = 1/√T at Q = √T is a step of the theorem's up to 0.707; with ℓη ≤ 0.55/4 the proof's term is at
least 1 − 0.14 − 0.61.
"""

ROUNDING = 1e-9


class Theorem2Settings(DataSettings):
    """The bound at every rule, Q, S and η; the rate at every rule and T = root².

    Means over seeds of the batches; training starts at zero. Batch sizes divide N, roots the rows.
    """

    local_rules: tuple[Literal["exact", "curvature", "frozen"], ...] = ("exact", "curvature")
    local_steps: tuple[int, ...] = (1, 5, 20)
    batch_sizes: tuple[int, ...] = (57, 456)
    over_limit: tuple[float, ...] = (0.25, 0.75, 1.0, 4.0, 16.0)
    steps: PositiveInt = 400
    roots: tuple[int, ...] = (4, 8, 16, 32, 64)
    rate_dataset: str = "a9a"
    rate_rows: PositiveInt = 4096
    repeats: PositiveInt = 3

    @model_validator(mode="after")
    def _divides(self) -> Self:
        for count in self.local_steps:
            if self.steps % count:
                raise ValueError(f"local_steps {count}: must divide steps = {self.steps}")
        return self

    @property
    def seeds(self) -> range:
        """Of the batches."""
        return range(self.seed, self.seed + self.repeats)


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
) -> Iterator[dict[str, Any]]:
    """A row for every rule, Q, S and η on data of two classes: measured average and bound."""
    objective = Objective.of(dataset)
    for rule, size, count, over in product(
        settings.local_rules, settings.batch_sizes, settings.local_steps, settings.over_limit
    ):
        report(f"{rule}, Q = {count}, S = {size}, {over:g} of the largest step")
        eta = over * objective.smoothness.largest_step(count)
        how = {"local_rule": rule, "local_steps": count, "batch_size": size}
        row = _measured(objective, how, eta, settings.steps, settings.seeds)
        yield {"table": "bound", "over_limit": over, **row}


def rates(
    settings: Theorem2Settings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[dict[str, Any]]:
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
        how = {"local_rule": rule, "local_steps": root, "batch_size": root}
        row = _measured(objective, how, eta, root**2, settings.seeds)
        yield {"table": "rate", "over_limit": None, **row}


def slope(rows: Sequence[Row]) -> float:
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
    objective: Objective, how: Mapping[str, Any], eta: float, steps: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """Average and bound of T steps at η by the rule, Q and S of a job."""
    count, size = how["local_steps"], how["batch_size"]
    fixed = {"rounds": steps // count, "learning_rate": eta, "start": "zero", "eval_every": 0}
    job = Job.of(job={**how, **fixed})
    paths = (objective.follow(job.with_settings(seed=seed)) for seed in seeds)
    averages = [float(np.mean(objective.squared_gradients(path[:-1]))) for path in paths]
    gap = objective.loss(np.zeros(objective.joint.shape[1])) - objective.lowest_loss
    allowed = bound(objective, eta=eta, local_steps=count, batch_size=size, steps=steps, gap=gap)
    measured = float(np.mean(averages))
    term = objective.smoothness.proof_term(eta, count)
    allows = eta <= objective.smoothness.largest_step(count) * (1 + ROUNDING)
    return {
        "dataset": objective.dataset.name,
        "parties": len(objective.blocks),
        **how,
        "eta": eta,
        "rounds": steps // count,
        "steps": steps,
        "measured": measured,
        "spread": float(np.std(averages)),
        "bound": allowed,
        "holds": measured <= allowed,
        "proof_term": term,
        # Who meets the proof's condition takes a step that the theorem allows.
        "within": "proof" if term >= 0 else "statement" if allows else "neither",
    }


def theorem2(settings: Theorem2Settings, report: Report) -> Iterator[dict[str, Any]]:
    """The rows of the bound, then those of the rate.

    `measured` is the mean over seeds of the average of ‖∇L‖² over T steps, `spread` its deviation;
    `proof_term` is what the theorem's proof has at least 0. Where it is, `within` says proof; where
    only the step size is one that the theorem allows, statement.
    """
    for_rate = with_drift(some_rows(settings.load(settings.rate_dataset), settings.rate_rows))
    yield from bounded_gradients(settings, settings.load(), report)
    yield from rates(settings, for_rate, report)


def notes(rows: Sequence[Row]) -> list[str]:
    """The measured rate by rule, and what a column means."""
    by_rule = grouped([row for row in rows if row["table"] == "rate"], "local_rule")
    return [
        *(
            f"{rule}: log error over log rounds has slope {slope(own):.2f}; the theorem's is -1"
            for rule, own in by_rule.items()
            if len(own) > 1
        ),
        "within: whether the proof covers the step size, only the statement, or neither",
    ]


COLUMNS: tuple[Column[Row], ...] = (
    ("rounds", lambda row: str(row["rounds"])),
    ("Q", lambda row: str(row["local_steps"])),
    ("S", lambda row: str(row["batch_size"])),
    ("eta", lambda row: f"{row['eta']:.3g}"),
    ("of largest", lambda row: "-" if row["over_limit"] is None else f"{row['over_limit']:g}"),
    ("proof", lambda row: f"{row['proof_term']:.2f}"),
    ("measured", lambda row: f"{row['measured']:.4g}"),
    ("bound", lambda row: f"{row['bound']:.4g}"),
    ("bound/measured", lambda row: f"{row['bound'] / row['measured']:.1f}"),
    ("holds", lambda row: "yes" if row["holds"] else "no"),
)

EXPERIMENT = Experiment(
    name="theorem2",
    about=__doc__ or "",
    runs={"theorem2": Run(300)},
    quick={
        "local_steps": (5,),
        "batch_sizes": (228,),
        "over_limit": (1.0,),
        "steps": 20,
        "repeats": 1,
        "rate_dataset": "breast_cancer",
        "rate_rows": 256,
        "roots": (4, 8),
    },
    settings=Theorem2Settings,
    measure=theorem2,
    columns=(
        ("rule", lambda row: row["local_rule"]),
        *(COLUMNS[at] for at in (1, 2, 3)),
        ("within", lambda row: row["within"]),
        *COLUMNS[6:],
    ),
    notes=notes,
    tables={"theorem2": by_columns(*COLUMNS)},
)

if __name__ == "__main__":
    main(EXPERIMENT)
