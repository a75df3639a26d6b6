"""Do dbcd and fedbcd reach scikit-learn's optimum of L1, and in how many rounds and bytes?

Without intercept, which liblinear would penalize; the objective is mean loss + λ₁‖Θ‖₁. Nothing is
drawn: all start at zero, so that one run is all runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from pydantic import PositiveFloat, PositiveInt, model_validator

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.objective import Objective, Trails
from bench.tables import or_dash
from securevfl.arrays import FloatArray
from securevfl.benchmarks.progress import Report
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.losses import loss_for
from securevfl.reports.tables import Column, Row, size
from securevfl.training import Environment, TrainingResult, train

Method = Literal["dbcd", "dbcd-alone", "dbcd-greedy", "fedbcd-p", "fedbcd-s"]
Followed = tuple[TrainingResult, FloatArray]
"""A run, and all parties' Θ after every round, the start first; shape (1 + R, P)."""
OPTIMAL = 1e-5
DBCD: Mapping[str, dict[str, Any]] = {
    "dbcd": {},
    "dbcd-alone": {"momentum": False},
    "dbcd-greedy": {"working_set": "greedy", "size": 20},
}


class L1Settings(Settings):
    """Every method at every K and λ₁, cold, and the whole path of dbcd, warm.

    `dbcd-alone` searches along the new direction alone, as the paper does; `gap` is the objective
    to come to, relative to the least.
    """

    dataset: str = "credit"
    l1: tuple[PositiveFloat, ...] = (0.03, 0.01, 0.001, 0.0001)
    methods: tuple[Method, ...] = ("dbcd",)
    parties: tuple[int, ...] = (2, 3)
    loss: Literal["logistic", "squared", "squared-hinge"] = "logistic"
    gap: PositiveFloat = 1e-6
    max_rounds: PositiveInt = 100
    fedbcd_rounds: PositiveInt = 1000

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if any(after >= before for before, after in pairwise(self.l1)):
            raise ValueError("l1: expected falling values")
        return self


@dataclass(frozen=True, eq=False)
class Problem:
    """One λ₁ on all columns in one place, where scikit-learn solves it.

    Attributes:
        inputs: X of all parties, scaled, shape (N, P).
        labels: shape (N,).
        loss: f, by name.
        l1: λ₁.
    """

    inputs: FloatArray
    labels: np.ndarray
    loss: str
    l1: float

    def objectives(self, path: FloatArray) -> FloatArray:
        """Mean loss + λ₁‖Θ‖₁ of every Θ of a path of shape (T, P); shape (T,)."""
        loss = loss_for(self.loss, 2)
        values = [
            loss.value(self.inputs @ weights[:, None], self.labels)
            + self.l1 * float(np.abs(weights).sum())
            for weights in path
        ]
        return np.array(values)

    @cached_property
    def reference(self) -> FloatArray:
        """scikit-learn's Θ, shape (P,)."""
        from sklearn.linear_model import Lasso, LogisticRegression  # noqa: PLC0415
        from sklearn.svm import LinearSVC  # noqa: PLC0415

        strength = 1 / (len(self.labels) * self.l1)
        common: dict[str, Any] = {"fit_intercept": False, "tol": 1e-7, "max_iter": 20_000}
        if self.loss == "logistic":
            model = LogisticRegression(l1_ratio=1, solver="liblinear", C=strength, **common)
        elif self.loss == "squared-hinge":
            model = LinearSVC(penalty="l1", dual=False, C=strength, **common)
        else:
            model = Lasso(alpha=self.l1, **common)
        weights: FloatArray = np.ravel(model.fit(self.inputs, self.labels).coef_)
        return weights

    @cached_property
    def least(self) -> float:
        """The objective there."""
        return float(self.objectives(self.reference[None])[0])

    @cached_property
    def is_unique(self) -> bool:
        """Whether no other Θ is as good: columns whose slope is ±λ₁ are linearly independent.

        As far as slopes at scikit-learn's Θ tell (Tibshirani, Electron. J. Stat. 7, 2013, Lemma 2).
        """
        residuals = loss_for(self.loss, 2).residuals(
            self.inputs @ self.reference[:, None], self.labels
        )
        slopes = np.abs(self.inputs.T @ residuals)[:, 0] / len(self.labels)
        tight = self.inputs[:, slopes > self.l1 * (1 - OPTIMAL)]
        return bool(np.linalg.matrix_rank(tight.T @ tight, hermitian=True) == tight.shape[1])


def l1(settings: L1Settings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for every K, method and λ₁, cold, and for every λ₁ of a warm path.

    Gaps are relative to the objective at scikit-learn's weights; the certified one is the bound
    that the parties have themselves. `differing_zeros` are columns that are 0 at one of the two
    only, which says something where the optimum is `unique`. A warm row starts where the λ₁ before
    ended, and its bytes are those of its λ₁ alone.
    """
    done, cases = 0, len(settings.parties) * len(settings.methods) * len(settings.l1)
    for parties in settings.parties:
        dataset = load(settings.dataset, parties=parties, data_dir=settings.data_dir)
        inputs = Objective.of(dataset, intercept=False).joint
        problems = [
            Problem(inputs, dataset.train_labels, settings.loss, each) for each in settings.l1
        ]
        for method in settings.methods:
            for problem in problems:
                report(f"K = {parties}, {method}, {problem.l1:g}", done, cases)
                done += 1
                run = _follow(job_of(settings, method, problem.l1), dataset)
                yield _row(settings, dataset, problem, run, method)
        if "dbcd" in settings.methods:
            run = _follow(job_of(settings, "dbcd", None), dataset)
            yield from _warm(settings, dataset, problems, run)


def job_of(settings: L1Settings, method: Method, value: float | None) -> Job:
    """A method's job at a λ₁, or over all of them."""
    common = {
        "loss": settings.loss,
        "intercept": False,
        "start": "zero",
        "batch_size": "full",
        "eval_every": 0,
        "seed": settings.seed,
    }
    if method not in DBCD:
        assert value is not None  # noqa: S101
        steps = {"local_steps": 5, "rounds": settings.fedbcd_rounds}
        return Job.of(job={**common, **steps, "algorithm": method, "l1": value})
    own: dict[str, Any] = dict(DBCD[method])
    rounds = settings.max_rounds
    if value is None:
        own["path"], rounds = settings.l1, rounds * len(settings.l1)
    job = {**common, "algorithm": "dbcd", "rounds": rounds, "tolerance": settings.gap}
    return Job.of(job={**job, "l1": value or 0.0}, dbcd=own)


def _follow(job: Job, dataset: VerticalDataset) -> Followed:
    trails = Trails()
    result = train(job, dataset, Environment(wrap_model=trails.keep))
    steps = result.plan.local_steps
    stride = 1 if steps == "exact" else steps
    # What DBCD does first is to start at zero.
    return result, trails.joint(dataset)[-1 - result.rounds * stride :: stride]


def _warm(
    settings: L1Settings, dataset: VerticalDataset, problems: list[Problem], run: Followed
) -> Iterator[dict[str, Any]]:
    """Rows of a path, each with the rounds that it took from where the last one ended."""
    result, followed = run
    before = 0
    points = result.outcomes[dataset.label_party].path
    for number, (problem, point) in enumerate(zip(problems, points, strict=False)):
        ends = [result.outcomes[party.name].path[number] for party in dataset.parties]
        kept = np.concatenate([end.model.weights[:, 0] for end in ends])
        path = np.vstack([followed[before : point.rounds], kept])
        costs, earlier = result.costs(point.rounds), result.costs(max(before, 1))
        yield {
            **_row(settings, dataset, problem, (result, path), "dbcd"),
            "start": "warm",
            "settled": point.settled,
            "certified_gap": point.gap,
            "messages": costs.messages - (earlier.messages if before else 0),
            "bytes_sent": costs.bytes_sent - (earlier.bytes_sent if before else 0),
            # Scored at the end of the path alone; only there is a bound for the bytes on the way.
            "auc": None,
            "bytes_to_gap": None,
        }
        before = point.rounds


def _row(
    settings: L1Settings, dataset: VerticalDataset, problem: Problem, run: Followed, method: Method
) -> dict[str, Any]:
    result, path = run
    gaps, final = problem.objectives(path) / problem.least - 1, path[-1]
    near = np.flatnonzero(gaps <= settings.gap)
    reached = int(near[0]) if len(near) else None
    point = next(iter(result.outcomes[dataset.label_party].path[-1:]), None)
    costs = result.costs()
    return {
        "dataset": dataset.name,
        "loss": problem.loss,
        "parties": len(dataset.parties),
        "method": method,
        "start": "cold",
        "l1": problem.l1,
        "rounds": len(path) - 1,
        "settled": result.ended == "settled",
        "rounds_to_gap": reached,
        "gap": float(gaps[-1]),
        "certified_gap": None if point is None else point.gap,
        "objective": float(problem.least * (1 + gaps[-1])),
        "reference_objective": problem.least,
        "nonzeros": int(np.count_nonzero(final)),
        "reference_nonzeros": int(np.count_nonzero(problem.reference)),
        "differing_zeros": int(np.sum((final != 0) != (problem.reference != 0))),
        "unique": problem.is_unique,
        "messages": costs.messages,
        "bytes_sent": costs.bytes_sent,
        "bytes_to_gap": None if not reached else result.costs(reached).bytes_sent,
        "auc": result.clear_auc,
        "wall_s": result.wall_s,
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """What marks in the table mean, where there are any."""
    found = []
    if any(row["rounds_to_gap"] is None for row in rows):
        found.append("* never came so near")
    if not all(row["unique"] for row in rows):
        found.append("~ the optimum is not unique: which columns are 0 says nothing")
    return found


COLUMNS: tuple[Column[Row], ...] = (
    ("K", lambda row: str(row["parties"])),
    ("method", lambda row: row["method"] + (", warm" if row["start"] == "warm" else "")),
    ("lambda", lambda row: f"{row['l1']:g}"),
    ("to gap", lambda row: "*" if row["rounds_to_gap"] is None else str(row["rounds_to_gap"])),
    ("sent", lambda row: or_dash(row["bytes_to_gap"], size)),
    ("rounds", lambda row: str(row["rounds"])),
    ("gap", lambda row: f"{row['gap']:.0e}"),
    ("bound", lambda row: or_dash(row["certified_gap"], "{:.0e}".format)),
    ("not 0", lambda row: f"{row['nonzeros']}/{row['reference_nonzeros']}"),
    ("differ", lambda row: f"{row['differing_zeros']}{'' if row['unique'] else ' ~'}"),
)
TWO: Mapping[str, Any] = {"l1": (0.01, 0.001), "parties": (2,)}

EXPERIMENT = Experiment(
    name="l1",
    about=__doc__ or "",
    runs={
        "credit": Run(150),
        "a9a": Run(150, {"dataset": "a9a"}),
        "methods": Run(120, {**TWO, "methods": ("dbcd", "dbcd-alone", "dbcd-greedy", "fedbcd-p")}),
        "squared": Run(60, {**TWO, "loss": "squared"}),
        "squared-hinge": Run(60, {**TWO, "loss": "squared-hinge"}),
    },
    quick={
        "dataset": "breast_cancer",
        "l1": (0.1, 0.05),
        "methods": ("dbcd", "fedbcd-p"),
        "parties": (2,),
        "max_rounds": 40,
        "fedbcd_rounds": 5,
    },
    settings=L1Settings,
    measure=l1,
    columns=COLUMNS,
    notes=notes,
    tables={"l1": by_columns(("data", lambda row: str(row["dataset"])), *COLUMNS)},
)

if __name__ == "__main__":
    main(EXPERIMENT)
