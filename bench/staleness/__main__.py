"""FDML under stragglers: virtual time to a target AUC against τ, and regret against T.

Parties run at their own speed in virtual time. The model at a moment is put together afterwards,
from the weights that each party had then; no party sees it.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import linear_regression
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.experiment import DataSettings, Experiment, Run, Several, main
from bench.objective import LOSS, Objective, Trails
from bench.paces import Slower
from bench.tables import or_dash
from securevfl.benchmarks.progress import Report
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, Staleness
from securevfl.reports.tables import Column, Row, seconds
from securevfl.runtime.costs import FixedCosts, Pace
from securevfl.training import Environment, TrainingResult, plan_for, train

NOBODY, IN_TURNS = "none", "turns"
FACTOR, TURN_S = 4.0, 0.1
SERVER_SHARE = 0.02
COMPUTATION_S = 1e-3
"""Fixed, so that runs repeat to the bit; two computations make an iteration."""
SCORED_MOMENTS = 200
REGRET_POINTS = 12


class StalenessSettings(DataSettings):
    """Every τ under every kind of straggler: parties by name, `turns` or `none`; all if empty."""

    dataset: str = "a9a"
    staleness: Several[Staleness] = (0, 4, 64, 1024, "unbounded")
    stragglers: Several[str] = ()
    batch_size: PositiveInt = 100
    rounds: PositiveInt = 3000
    learning_rate: float = 3.0
    target_auc: float = 0.9
    repeats: PositiveInt = 1


def staleness(settings: StalenessSettings, report: Report) -> Iterator[dict[str, Any]]:
    """One row for each τ and straggler, in virtual time: medians, and the largest lead of all runs.

    Raises:
        ConfigError: an unknown straggler, more than two classes, or a job that does not fit.
    """
    dataset = settings.load()
    dataset = replace(dataset, label_party=dataset.parties[1].name)
    known = (NOBODY, *(table.name for table in dataset.parties), IN_TURNS)
    unknown = [each for each in settings.stragglers if each not in known]
    if unknown:
        raise ConfigError(f"straggler = {unknown[0]!r}: expected {', '.join(known)}")
    if dataset.classes != 2:  # noqa: PLR2004
        raise ConfigError(f"{dataset.name} has {dataset.classes} classes: regret takes two")
    objective = Objective.of(dataset)
    plan_for(_job(settings, 0, settings.seed), dataset)
    for straggler in settings.stragglers or known:
        for limit in settings.staleness:
            report(f"straggler: {straggler}, staleness {limit}")
            runs = [
                _run(settings, objective, straggler, limit, settings.seed + index)
                for index in range(settings.repeats)
            ]
            reached = [run["seconds"] for run in runs if run["seconds"] is not None]
            slopes = [run["slope"] for run in runs if run["slope"] is not None]
            all_reached = len(reached) == len(runs)
            yield {
                "dataset": dataset.name,
                "straggler": straggler,
                "factor": FACTOR if straggler != NOBODY else 1.0,
                "staleness": limit,
                "reached_target": all_reached,
                "seconds_to_target": statistics.median(reached) if all_reached else None,
                "total_s": statistics.median(run["total_s"] for run in runs),
                "auc": statistics.median(run["auc"] for run in runs),
                "refused_pulls": statistics.median(run["refused"] for run in runs),
                "largest_lead": max(run["lead"] for run in runs),
                "regret_rounds": runs[0]["regret_rounds"],
                "regret": np.median([run["regret"] for run in runs], axis=0).tolist(),
                "regret_slope": statistics.median(slopes) if slopes else None,
                "runs": runs,
            }


def _job(settings: StalenessSettings, limit: Staleness, seed: int) -> Job:
    return Job.of(
        job={
            "name": "staleness",
            "algorithm": "fdml",
            "rounds": settings.rounds,
            "batch_size": settings.batch_size,
            "learning_rate": settings.learning_rate,
            "sampling": "shuffle",
            "start": "zero",
            "seed": seed,
        },
        network={"preset": "lan"},
        fdml={"staleness": limit},
    )


def _run(
    settings: StalenessSettings, objective: Objective, straggler: str, limit: Staleness, seed: int
) -> dict[str, Any]:
    trails = Trails()
    result = train(
        _job(settings, limit, seed),
        objective.dataset,
        Environment(
            stopwatch=FixedCosts({"local": COMPUTATION_S}),
            paces=_paces(straggler, [p.name for p in objective.dataset.parties]),
            wrap_model=trails.keep,
            record_views=True,
        ),
    )
    times = {
        name: [sum(each.path.values()) for each in result.ledgers[name].snapshots]
        for name in trails
    }
    served = result.others[SERVER]
    rounds, regret = regret_of(objective, result, trails)
    return {
        "seed": seed,
        "seconds": _seconds_to(settings.target_auc, objective, trails, times),
        "total_s": max(each[-1] for each in times.values()),
        "auc": result.clear_auc,
        "refused": sum(served.refused.values()),
        "lead": max(max(leads) for leads in served.leads.values()),
        "regret_rounds": rounds,
        "regret": regret,
        "slope": _slope(rounds, regret),
    }


def _paces(straggler: str, names: list[str]) -> Mapping[str, Pace]:
    # The fixed time of a computation is the server's, too.
    paces: dict[str, Pace] = {SERVER: Slower(SERVER_SHARE)}
    if straggler in names:
        paces[straggler] = Slower(FACTOR)
    if straggler == IN_TURNS:
        for index, name in enumerate(names):
            paces[name] = Slower(FACTOR, TURN_S, index, len(names))
    return paces


def _seconds_to(
    target: float, objective: Objective, trails: Trails, times: Mapping[str, list[float]]
) -> float | None:
    """The first of evenly spread moments at which the parties' weights reach the target."""
    end = max(each[-1] for each in times.values())
    tests = objective.held_out
    labels = objective.dataset.test_labels
    for moment in np.linspace(0, end, SCORED_MOMENTS + 1)[1:]:
        predictions = sum(
            tests[name] @ trail.past[bisect_right(times[name], moment)]
            for name, trail in trails.items()
        )
        if auc(np.asarray(predictions), labels) >= target:
            return float(moment)
    return None


def regret_of(
    objective: Objective, result: TrainingResult, trails: Trails
) -> tuple[list[int], list[float]]:
    """The largest regret of any party: what its rounds cost it beyond the best weights.

    A party's regret is the mean over the rounds i so far of F_i(what the party saw) − F_i(Θ*),
    where F_i is the loss of batch i and Θ* minimizes the loss over all rows. A party sees its own
    predictions and the newest that the others pushed. By FDML's Proposition 1 regret is O(1/√T) at
    η = η0/√t if no prediction is older than τ iterations; here, as in the paper's own algorithm, a
    prediction may be an epoch old at any τ > 0 (decision 12).
    """
    dataset = objective.dataset
    schedule = result.plan.schedule
    best = objective.joint @ objective.optimum[:, None]
    batches = [schedule.batch(index) for index in range(result.rounds)]
    at_best = np.array([LOSS.value(best[rows], dataset.train_labels[rows]) for rows in batches])
    names = [table.name for table in dataset.parties]
    excess = []
    for name, block in zip(names, objective.blocks, strict=True):
        pulled = [entry.message for entry in result.views[name].received(PulledSums)]
        seen = []
        for index, (rows, message) in enumerate(zip(batches, pulled, strict=True)):
            assert isinstance(message, PulledSums)  # noqa: S101
            total = message.values + block[rows] @ trails[name].past[index]
            seen.append(LOSS.value(total, dataset.train_labels[rows]))
        excess.append(np.cumsum(np.array(seen) - at_best) / np.arange(1, len(seen) + 1))
    worst = np.max(excess, axis=0)
    rounds = np.unique(
        np.geomspace(min(50, result.rounds), result.rounds, REGRET_POINTS).astype(int)
    )
    return rounds.tolist(), [float(worst[count - 1]) for count in rounds]


def _slope(rounds: list[int], regret: list[float]) -> float | None:
    """Of log regret over log T, by least squares; None without a trend.

    Proposition 1: −½ at worst.
    """
    points = [(np.log(t), np.log(r)) for t, r in zip(rounds, regret, strict=True) if r > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


COLUMNS: tuple[Column[Row], ...] = (
    ("straggler", lambda row: str(row["straggler"])),
    ("tau", lambda row: str(row["staleness"])),
    ("to target", lambda row: "*" if (s := row["seconds_to_target"]) is None else seconds(s)),
    ("all rounds", lambda row: seconds(row["total_s"])),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("refused", lambda row: f"{row['refused_pulls']:,.0f}"),
    ("lead", lambda row: str(row["largest_lead"])),
    ("regret slope", lambda row: or_dash(row["regret_slope"], "{:.2f}".format)),
)

EXPERIMENT = Experiment(
    name="staleness",
    about="FDML under stragglers: virtual time to an AUC by staleness, and regret (FDML).",
    runs={"staleness": Run(300)},
    quick={"dataset": "breast_cancer", "staleness": 0, "stragglers": "none", "rounds": 20},
    settings=StalenessSettings,
    measure=staleness,
    columns=COLUMNS,
    notes=lambda rows: (
        () if all(row["reached_target"] for row in rows) else ("* target not reached",)
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
