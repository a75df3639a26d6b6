"""Theorem 2 of FedBCD: do its bound (13)-(14) and its rate 1/√T hold in training?

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
from typing import Literal, Self

import numpy as np
from pydantic import PositiveInt, model_validator
from typing_extensions import TypedDict

from bench.documents import by_columns
from bench.experiment import DataSettings, Experiment, Run, main
from bench.objective import Objective
from securevfl.benchmarks.progress import Report, silent
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset, some_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.reports.tables import Column

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


class Theorem2Row(TypedDict):
    """Average of ‖∇L‖² over T steps: mean and deviation over seeds, beside the bound.

    `proof_term` is what the theorem's proof has at least 0; where it is, `within` says proof, where
    only the step size is one that the theorem allows, statement.
    """

    table: Literal["bound", "rate"]
    dataset: str
    local_rule: str
    parties: int
    local_steps: int
    batch_size: int
    eta: float
    rounds: int
    steps: int
    measured: float
    spread: float
    bound: float
    holds: bool
    over_limit: float | None
    proof_term: float
    within: Literal["proof", "statement", "neither"]


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


def theorem2(settings: Theorem2Settings, report: Report) -> Iterator[Theorem2Row]:
    """The rows of the bound, then those of the rate."""
    for_rate = with_drift(some_rows(settings.load(settings.rate_dataset), settings.rate_rows))
    yield from bounded_gradients(settings, settings.load(), report)
    yield from rates(settings, for_rate, report)


def notes(rows: Sequence[Theorem2Row]) -> list[str]:
    """The measured rate by rule, and what a column means."""
    by_rule: dict[str, list[Theorem2Row]] = {}
    for row in rows:
        if row["table"] == "rate":
            by_rule.setdefault(row["local_rule"], []).append(row)
    return [
        *(
            f"{rule}: log error over log rounds has slope {slope(own):.2f}; the theorem's is -1"
            for rule, own in by_rule.items()
            if len(own) > 1
        ),
        "within: whether the proof covers the step size, only the statement, or neither",
    ]


COLUMNS: tuple[Column[Theorem2Row], ...] = (
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
