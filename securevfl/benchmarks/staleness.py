"""FDML under stragglers: virtual time to a target AUC against τ, and regret against T.

Parties run at their own speed in virtual time. What the model was at a moment is put together
afterwards, from the weights that each party had then; no party sees it.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from math import sqrt

import numpy as np

from securevfl.benchmarks.objective import LOSS, Objective, Trail
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.staleness import StalenessSettings
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.models.scores import auc
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, Staleness
from securevfl.reports.benchmarks import StalenessRow, StalenessRun
from securevfl.runtime.costs import FixedCosts, Pace, Slower, Stopwatch
from securevfl.training import Environment, TrainingResult, plan_for, train

NOBODY, IN_TURNS = "none", "turns"
SCORED_MOMENTS = 200
REGRET_POINTS = 12
SERVER_SHARE = 0.02


def staleness(
    settings: StalenessSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[StalenessRow]:
    """One row for each τ and straggler.

    Raises:
        ConfigError: an unknown straggler, more than two classes, or a job that does not fit.
    """
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
            yield {
                "dataset": dataset.name,
                "straggler": straggler,
                "factor": settings.factor if straggler != NOBODY else 1.0,
                "staleness": limit,
                "batch_size": settings.batch_size,
                "target_auc": settings.target_auc,
                "reached_target": len(reached) == len(runs),
                "seconds_to_target": statistics.median(reached)
                if len(reached) == len(runs)
                else None,
                "total_s": statistics.median(run["total_s"] for run in runs),
                "auc": statistics.median(run["auc"] for run in runs),
                "refused_pulls": statistics.median(run["refused"] for run in runs),
                "largest_lead": max(run["lead"] for run in runs),
                "regret_rounds": runs[0]["regret_rounds"],
                "regret": [
                    statistics.median(values)
                    for values in zip(*(run["regret"] for run in runs), strict=True)
                ],
                "regret_slope": statistics.median(slopes) if slopes else None,
                "repeats": settings.repeats,
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
        network=settings.network,
        fdml={"staleness": limit},
    )


def _run(
    settings: StalenessSettings,
    objective: Objective,
    straggler: str,
    limit: Staleness,
    seed: int,
) -> StalenessRun:
    trails: dict[str, Trail] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        trails[name] = Trail(model)
        return trails[name]

    # Two computations make an iteration.
    fixed = FixedCosts({"local": settings.compute_ms / 2e3})
    result = train(
        _job(settings, limit, seed),
        objective.dataset,
        Environment(
            stopwatch=fixed if settings.compute_ms else Stopwatch(),
            paces=_paces(settings, straggler, [p.name for p in objective.dataset.parties]),
            wrap_model=keep,
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


def _paces(settings: StalenessSettings, straggler: str, names: list[str]) -> Mapping[str, Pace]:
    paces: dict[str, Pace] = {}
    if settings.compute_ms:  # which all computations take, the server's too
        paces[SERVER] = Slower(SERVER_SHARE)
    if straggler in names:
        paces[straggler] = Slower(settings.factor)
    if straggler == IN_TURNS:
        for index, name in enumerate(names):
            paces[name] = Slower(settings.factor, settings.turn_s, index, len(names))
    return paces


def _seconds_to(
    target: float,
    objective: Objective,
    trails: Mapping[str, Trail],
    times: Mapping[str, list[float]],
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
    objective: Objective, result: TrainingResult, trails: Mapping[str, Trail]
) -> tuple[list[int], list[float]]:
    """Regret, the largest of the parties': what its rounds cost it beyond the best weights.

    That is the mean over the rounds i so far of F_i(what the party saw) − F_i(Θ*), F_i the loss of
    batch i; a party sees the newest pushed predictions of the others beside its own. Θ* minimizes
    the loss over all rows. FDML's Proposition 1 has it O(1/√T) at η = η0/√t where no prediction is
    older than τ iterations; here, as in the paper's own algorithm, one may be an epoch old at any
    τ > 0 (decision 12).
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
    if len(points) < 2:  # noqa: PLR2004
        return None
    x, y = np.array(points).T
    centred = x - x.mean()
    return float(centred @ y / sqrt(centred @ centred) ** 2)
