"""L1-regularized linear models: rounds and bytes to the optimum that scikit-learn finds.

Without intercept, which liblinear would penalize; the objective is mean loss + λ₁‖Θ‖₁. Nothing is
drawn: all start at zero, so that one run is all runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.benchmarks.objective import Objective, Trail
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.l1 import L1Settings, Method
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import loss_for
from securevfl.reports.benchmarks import L1Row
from securevfl.training import Environment, TrainingResult, train

OPTIMAL = 1e-5
DBCD: Mapping[str, dict[str, Any]] = {
    "dbcd": {},
    "dbcd-alone": {"momentum": False},
    "dbcd-greedy": {"working_set": "greedy"},
}


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


@dataclass(frozen=True, eq=False)
class Followed:
    """A run, with all parties' Θ after every round, the start first; shape (1 + R, P)."""

    result: TrainingResult
    path: FloatArray


def l1(
    settings: L1Settings, datasets: Mapping[int, VerticalDataset], report: Report = silent
) -> Iterator[L1Row]:
    """A row for every K, method and λ₁, and for every λ₁ of a warm path."""
    done, cases = 0, len(settings.parties) * len(settings.methods) * (len(settings.l1))
    for parties, dataset in datasets.items():
        blocks = Objective.of(dataset).blocks
        inputs = np.hstack(
            [
                block[:, : len(table.columns)]
                for block, table in zip(blocks, dataset.parties, strict=True)
            ]
        )
        problems = [
            Problem(inputs, dataset.train_labels, settings.loss, each) for each in settings.l1
        ]
        for method in settings.methods:
            for problem in problems:
                report(f"K = {parties}, {method}, {problem.l1:g}", done, cases)
                done += 1
                run = _follow(job_of(settings, method, problem.l1), dataset)
                yield _row(settings, dataset, problem, run, method=method)
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
        steps = {"local_steps": settings.local_steps, "rounds": settings.fedbcd_rounds}
        return Job.of(job={**common, **steps, "algorithm": method, "l1": value})
    own: dict[str, Any] = dict(DBCD[method])
    if method == "dbcd-greedy":
        own["size"] = settings.size
    rounds = settings.max_rounds
    if value is None:
        own["path"], rounds = settings.l1, rounds * len(settings.l1)
    job = {**common, "algorithm": "dbcd", "rounds": rounds, "tolerance": settings.gap}
    return Job.of(job={**job, "l1": value or 0.0}, dbcd=own)


def _follow(job: Job, dataset: VerticalDataset) -> Followed:
    trails: dict[str, Trail] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        trails[name] = Trail(model)
        return trails[name]

    result = train(job, dataset, Environment(wrap_model=keep))
    steps = result.plan.local_steps
    stride = 1 if steps == "exact" else steps
    names = [party.name for party in dataset.parties]
    path = np.hstack([np.hstack(trails[name].past).T for name in names])
    # What DBCD does first is to start at zero.
    return Followed(result, path[-1 - result.rounds * stride :: stride])


def _warm(
    settings: L1Settings, dataset: VerticalDataset, problems: list[Problem], run: Followed
) -> Iterator[L1Row]:
    """Rows of a path, each with the rounds that it took from where the last one ended."""
    before = 0
    points = run.result.outcomes[dataset.label_party].path
    for number, (problem, point) in enumerate(zip(problems, points, strict=False)):
        ends = [run.result.outcomes[party.name].path[number] for party in dataset.parties]
        kept = np.concatenate([end.model.weights[:, 0] for end in ends])
        path = np.vstack([run.path[before : point.rounds], kept])
        row = _row(settings, dataset, problem, Followed(run.result, path), method="dbcd")
        row["start"], row["settled"], row["certified_gap"] = "warm", point.settled, point.gap
        costs, earlier = run.result.costs(point.rounds), run.result.costs(max(before, 1))
        row["messages"] = costs.messages - (earlier.messages if before else 0)
        row["bytes_sent"] = costs.bytes_sent - (earlier.bytes_sent if before else 0)
        # Scored at the end of the path alone, and only there is a bound for the bytes on the way.
        row["auc"], row["bytes_to_gap"] = None, None
        yield row
        before = point.rounds


def _row(
    settings: L1Settings,
    dataset: VerticalDataset,
    problem: Problem,
    run: Followed,
    *,
    method: Method,
) -> L1Row:
    result, gaps = run.result, problem.objectives(run.path) / problem.least - 1
    near = np.flatnonzero(gaps <= settings.gap)
    reached = int(near[0]) if len(near) else None
    point = next(iter(result.outcomes[dataset.label_party].path[-1:]), None)
    costs, final = result.costs(), run.path[-1]
    return {
        "dataset": dataset.name,
        "loss": problem.loss,
        "parties": len(dataset.parties),
        "method": method,
        "start": "cold",
        "l1": problem.l1,
        "rounds": len(run.path) - 1,
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
