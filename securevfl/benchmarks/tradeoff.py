"""The main job: training to a target AUC over a grid, computation and communication apart.

One row per cell of the grid and target AUC, with the columns of Table 2 of Liu et al. 2019. That
table is of another task, federated transfer learning with networks, and of a system that repeats
homomorphic work in every local step: `exchange.he_per_step` shows what that costs. Figures are
medians over repeats with seeds of their own.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import floor
from typing import Any, Literal, cast

from securevfl.benchmarks.grid import Cell, Grid
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.tuning import Tuned
from securevfl.crypto.schemes import running_engine
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.session.scoring import Score
from securevfl.reports.rows import (
    CostFigures,
    CurvePoint,
    TradeoffRow,
    TradeoffRun,
    cost_figures,
)
from securevfl.training import Environment, TrainingResult, plan_for, train

ScoreName = Literal["auc", "accuracy"]
BELOW_CLEAR = 0.005
MOST_POINTS = 100


def tradeoff(
    grid: Grid,
    target_aucs: Sequence[float] = (),
    repeats: int = 1,
    report: Report = silent,
) -> Iterator[TradeoffRow]:
    """Train every cell of a grid; yields rows as they are done.

    Args:
        grid: the jobs.
        target_aucs: held-out AUCs to reach, a row each. Where there is none, the base job's own;
            where it has none, 0.005 below what each data set's job in clear reaches.
        repeats: runs of each cell, with consecutive seeds.
        report: told what runs now.

    Raises:
        ConfigError: a cell's job does not fit, or learns nothing and there is no target.
    """
    for cell in grid.cells:
        if EXCHANGES[cell.exchange].shares_parameters:
            raise ConfigError(
                "bench tradeoff trains to a target AUC, its own where none is given, and "
                f"{cell.exchange!r} shows no score before its last round: compare what `securevfl "
                "train` prints under each exchange, or in a checkout run `python -m bench.blind`"
            )
        job = grid.job_of(cell)
        plan_for(_to(target_aucs, job), grid.load(job))
    targets = _targets(grid, target_aucs, report)
    progress = _Progress(grid.cells, repeats, report)
    for cell in grid.cells:
        tuned = grid.tuned(cell, report)
        job = grid.job_of(cell, tuned)
        dataset = grid.load(job)
        wanted, how = targets[dataset.fingerprint]
        results = []
        for repeat in range(repeats):
            seeded = _to(wanted, job.with_settings(seed=job.job.seed + repeat))
            progress.show(cell, repeat, 0)
            environment = Environment(progress=partial(progress.show, cell, repeat))
            results.append(train(seeded, dataset, environment))
            progress.ended(cell, results[-1].rounds)
        for target in wanted:
            row = row_to(target, dataset, results, tuned)
            yield {**row, "target_chosen": how, "varied": dict(cell.values)}


def _to(targets: Sequence[float], job: Job) -> Job:
    return job.with_settings(target_auc=max(targets)) if targets else job


def _targets(
    grid: Grid, given: Sequence[float], report: Report
) -> dict[str, tuple[Sequence[float], str]]:
    """The targets on each data set, by its fingerprint, and how they were chosen."""
    found: dict[str, tuple[Sequence[float], str]] = {}
    for job, dataset in grid.datasets():
        own = job.job.target_auc
        if given or own is not None:
            found[dataset.fingerprint] = given or (own or 0.0,), "given"
            continue
        report("the job in clear, for a target")
        target, how = below_clear(job, dataset)
        found[dataset.fingerprint] = (target,), how
    return found


def below_clear(job: Job, dataset: VerticalDataset) -> tuple[float, str]:
    """A target for a job that has none: a little less than its own run in clear ends at.

    Returns:
        The AUC, rounded down to four decimals, and how it was chosen.

    Raises:
        ConfigError: the job learns nothing.
    """
    result = train(job.without_protection.with_settings(eval_every=0), dataset)
    found = result.scores[-1].auc
    if not result.learned:
        raise ConfigError(
            f"no target: the job in clear learns nothing that can be told from chance (AUC "
            f"{found:.4f} on {len(dataset.test_labels)} held-out rows); give --target-auc"
        )
    target = floor((found - BELOW_CLEAR) * 1e4) / 1e4
    return target, f"{BELOW_CLEAR:g} below the job's own run in clear, AUC {found:.4f}"


class _Progress:
    """How far an exchange is: a cell takes as many rounds as its twin under the first exchange."""

    def __init__(self, cells: Sequence[Cell], repeats: int, report: Report) -> None:
        self._cells, self._repeats, self._report = cells, repeats, report
        self._rounds: dict[tuple[object, ...], int] = {}
        self._done: dict[str, int] = {}

    def show(self, cell: Cell, repeat: int, done: int) -> None:
        """Report rounds done in a run, and in all of the exchange where their number is known."""
        name = cell.exchange
        what = f"{cell}, run {repeat + 1} of {self._repeats}, round {done}"
        own = [each.apart_from_exchange for each in self._cells if each.exchange == name]
        if name == self._cells[0].exchange or not self._rounds.keys() >= set(own):
            self._report(what)
            return
        total = self._repeats * sum(self._rounds[each] for each in own)
        self._report(what, min(self._done.get(name, 0) + done, total), total)

    def ended(self, cell: Cell, rounds: int) -> None:
        """Take note of a finished run."""
        self._rounds.setdefault(cell.apart_from_exchange, rounds)
        self._done[cell.exchange] = self._done.get(cell.exchange, 0) + rounds


def rounds_to(result: TrainingResult, target: float, score: ScoreName = "auc") -> int | None:
    """Rounds until the held-out score first reached the target; None if it never did."""
    return next((s.rounds for s in result.scores if getattr(s, score) >= target), None)


def row_to(
    target: float, dataset: VerticalDataset, results: Sequence[TrainingResult], tuned: Tuned
) -> TradeoffRow:
    """What a job's runs, one a seed, cost up to a target."""
    runs = [_run(result, target) for result in results]
    first = results[0]
    job, exchange = first.job.job, first.job.exchange
    encrypted = first.plan.exchange.encrypts
    return {
        "dataset": dataset.name,
        "exchange": exchange.scheme,
        "hide": exchange.hide if encrypted else None,
        "algorithm": job.algorithm,
        "local_steps": first.plan.local_steps,
        "he_per_step": exchange.he_per_step,
        "parties": len(dataset.parties),
        "proximal": job.proximal,
        "batch_size": first.plan.batch_size,
        "target_auc": target,
        "target_chosen": "given",
        "reached_target": all(run["reached"] for run in runs),
        "rounds": statistics.median(run["rounds"] for run in runs),
        "rounds_before": 0,
        "auc": statistics.median(run["auc"] for run in runs),
        "best_auc": statistics.median(run["best_auc"] for run in runs),
        "binormal": first.scores[-1].binormal,
        **_median_costs(runs),
        "wall_s": statistics.median(run["wall_s"] for run in runs),
        "label_guard_ratio": first.label_guard_ratio,
        "learning_rate": tuned.learning_rate,
        "learning_rate_chosen": tuned.how,
        "key_bits": first.key_bits,
        "engine": running_engine(exchange.scheme, exchange.engine) if encrypted else None,
        "key_fingerprints": first.key_fingerprints,
        "repeats": len(runs),
        "max_rounds": job.rounds,
        "runs": runs,
        "varied": {},
    }


def _median_costs(runs: Sequence[TradeoffRun]) -> CostFigures:
    """The median of each figure that costs have, phase by phase of computation."""
    costs: list[dict[str, Any]] = [dict(run) for run in runs]
    phases = [run.pop("compute_by_phase_s") for run in costs]

    def medians(of: Sequence[Mapping[str, float]], keys: Iterable[str]) -> dict[str, Any]:
        return {key: statistics.median(each[key] for each in of) for key in keys}

    figures = medians(costs, [key for key in CostFigures.__annotations__ if key in costs[0]])
    return cast("CostFigures", {**figures, "compute_by_phase_s": medians(phases, phases[0])})


def _run(result: TrainingResult, target: float) -> TradeoffRun:
    reached = rounds_to(result, target)
    rounds = reached or result.rounds
    score = next(s for s in reversed(result.scores) if s.rounds <= rounds)
    return {
        "seed": result.job.job.seed,
        "reached": reached is not None,
        "rounds": rounds,
        "auc": score.auc,
        "best_auc": max(each.auc for each in result.scores),
        "accuracy": score.class_accuracy,
        "curve": curve_of(result.scores),
        **cost_figures(result.costs(rounds)),
        "wall_s": result.wall_s,
        "key_fingerprints": result.key_fingerprints,
    }


def curve_of(scores: Sequence[Score]) -> list[CurvePoint]:
    """Loss and AUC of a run by rounds, thinned to `MOST_POINTS` or fewer."""
    apart = max(1, -(-len(scores) // MOST_POINTS))
    last = range(len(scores) - 1, -1, -apart)
    groups = [scores[max(0, end - apart + 1) : end + 1] for end in reversed(last)]
    points: list[CurvePoint] = []
    for group in groups:
        seen = [score.training_loss for score in group if score.training_loss is not None]
        points.append(
            {
                "rounds": group[-1].rounds,
                "training_loss": statistics.fmean(seen) if seen else None,
                "auc": group[-1].auc,
            }
        )
    return points
