"""The `blind` exchange beside `plain` and others, with everything that it does before its rounds.

`plain` starts from zero, as `blind` does; others start as they do where nothing is set. All take
the same batches and settings, but nobody sees a loss under `blind`, so its exact steps are as short
as is always safe. `blind` shows no score before its last round, so no target can stop it: it makes
as many rounds as its steps take in float, with the same seed, to `ROUNDING` above the target.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, PositiveFloat, PositiveInt

from bench.documents import Cells, by_columns
from bench.experiment import DataSettings, Experiment, Network, Run, Several, main, with_progress
from bench.in_one_place import score_in_one_place
from bench.tables import NETWORK
from securevfl.benchmarks.progress import Report
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.benchmarks.tuning import GRID, chosen
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job, NetworkSettings
from securevfl.models.scores import auc
from securevfl.protocols import catalogue
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.reports.rows import OfflineFigure, made_offline
from securevfl.reports.tables import Column, Row, seconds, share, size
from securevfl.runtime.costs import PHASES
from securevfl.training import TrainingResult, plan_for, train

Loss = Literal["logistic", "taylor-logistic", "squared"]

CLEAR = "plain"
ROUNDING = 0.0003


def _steps(text: object) -> str:
    if not re.fullmatch(r"(exact|[1-9]\d*):(full|[1-9]\d*)", str(text)):
        raise ValueError("expected Q:S as in 5:256, exact:4096 or 1:full")
    return str(text)


class BlindSettings(DataSettings):
    """Exchanges beside `plain`, over the same steps and batches.

    Attributes:
        steps: Q:S, where Q is a number of local steps or `exact`, and S a number of rows or `full`.
        target_aucs: held-out AUCs at which runs end; without any, runs take all rounds.
        rounds: at most, where there are targets.
        learning_rate: of a counted Q; tuned on a validation fifth if absent.
        schedule: of the step sizes of a counted Q.
    """

    exchanges: Several[str] = ("bfv", "blind")
    steps: Several[Annotated[str, BeforeValidator(_steps)]] = ("exact:full", "5:256")
    losses: Several[Loss] = ("logistic",)
    target_aucs: Several[float] = ()
    rounds: PositiveInt = 20
    learning_rate: PositiveFloat | None = None
    schedule: Literal["constant", "inverse-sqrt"] = "constant"
    repeats: PositiveInt = 3
    network: Network = NetworkSettings(preset="lan")


def blind(settings: BlindSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each Q:S, loss, exchange and target; those of `plain` come first.

    `party_bytes` and `party_compute_s` are of a round without the offline phase, of the party with
    most of it; `rounds_s` is the critical path of all such rounds, `round_s` that of one. `apart`
    is the AUC less that of `plain` with the logistic loss after as many rounds, null where runs end
    at a target; `joint_auc` is that of scikit-learn's LogisticRegression in one place.

    Raises:
        ConfigError: a job that does not fit, or data with other than two classes.
    """
    dataset = settings.load()
    if dataset.classes != 2:  # noqa: PLR2004
        raise ConfigError(f"{dataset.name} has {dataset.classes} classes, an AUC has two")
    exchanges = tuple(dict.fromkeys((CLEAR, *settings.exchanges)))
    for name in exchanges:
        catalogue.require(name, EXCHANGES, "exchange")
    losses = sorted(settings.losses, key=lambda loss: loss != "logistic")  # what others differ from
    cases = {
        (steps, loss): [job_of(settings, steps, loss, name) for name in exchanges]
        for steps, loss in product(settings.steps, losses)
    }
    for job in (job for jobs in cases.values() for job in jobs):
        plan_for(job, dataset)
    report("scikit-learn in one place")
    _, joint_auc = score_in_one_place(dataset)
    logistic: dict[str, list[float]] = {}
    for (steps, loss), jobs in cases.items():
        tuned = chosen(jobs[0], dataset, settings.learning_rate, report)
        rate = {} if tuned.learning_rate is None else {"learning_rate": tuned.learning_rate}
        for job in jobs:
            for row in _rows(settings, job.with_settings(**rate), dataset, report):
                aucs = [run["auc"] for run in row["runs"]]
                if loss == "logistic" and not settings.target_aucs:
                    logistic.setdefault(steps, aucs)  # of the first, which is in clear
                pairs = zip(aucs, logistic.get(steps, ()), strict=False)
                apart = [score - other for score, other in pairs]
                yield {
                    **row,
                    "dataset": dataset.name,
                    "columns": [len(table.columns) for table in dataset.parties],
                    "apart": statistics.median(apart) if apart else None,
                    "joint_auc": joint_auc,
                    "learning_rate": tuned.learning_rate,
                    "learning_rate_chosen": tuned.how,
                }


def job_of(settings: BlindSettings, steps: str, loss: Loss, exchange: str) -> Job:
    """One exchange's job of a comparison, whose step size may still have to be tuned."""
    count, _, rows = steps.partition(":")
    counted = {"learning_rate": settings.learning_rate or GRID[0], "schedule": settings.schedule}
    job = Job.of(
        job={
            "name": "blind",
            "rounds": settings.rounds,
            "local_steps": count if count == "exact" else int(count),
            "batch_size": rows if rows == "full" else int(rows),
            **({"learning_rate": "auto"} if count == "exact" else counted),
            "tolerance": 0,
            "allow_label_leak": True,  # a comparison of costs, down to one round
            "loss": loss,
            "eval_every": 0,
            "seed": settings.seed,
        },
        exchange={"scheme": exchange},
        network=settings.network,
    )
    if exchange == CLEAR:
        job = job.with_settings(start="zero")
    if not settings.target_aucs or _shows_nothing(job):
        return job
    return job.with_settings(target_auc=max(settings.target_aucs), eval_every=1)


def _shows_nothing(job: Job) -> bool:
    """Whether there is nothing to score before the last round, so that no target can end it."""
    return EXCHANGES[job.exchange.scheme].shares_parameters


def rounds_in_float(plan: Plan, dataset: VerticalDataset) -> Iterator[list[LocalPart]]:
    """Take the steps of a blind job in one place, in float; yields all parts after every round."""
    parts = [
        LocalPart(
            plan,
            table,
            np.random.default_rng([plan.job.job.seed, number]),
            with_intercept=table.name == dataset.label_party,
        )
        for number, table in enumerate(dataset.parties)
    ]
    columns = sum(part.inputs.shape[1] for part in parts)
    steps = [plan.steps(part.model, part.inputs, columns) for part in parts]
    weights = [part.model.weights for part in parts]
    points = list(weights)
    for index in range(plan.rounds):
        rows = plan.schedule.batch(index)
        batches = [part.inputs[rows] for part in parts]
        summed = np.sum([x @ point for x, point in zip(batches, points, strict=True)], axis=0)
        residuals = plan.loss.residuals(summed, dataset.train_labels[rows])
        for number, (part, batch) in enumerate(zip(parts, batches, strict=True)):
            planned = steps[number].planned(index, batch)
            part.model.weights = points[number]
            gradient = batch.T @ residuals / len(rows) + part.model.penalty_gradient(plan.l2)
            after = points[number] - planned.matrix @ gradient
            points[number] = after + planned.beta * (after - weights[number])
            part.model.weights = weights[number] = after
        yield parts


def aucs_in_float(job: Job, dataset: VerticalDataset) -> list[float]:
    """Held-out AUC after each round of the steps that are planned ahead, with σ itself."""
    return [
        auc(
            np.sum([part.held_out @ part.model.weights for part in parts], axis=0),
            dataset.test_labels,
        )
        for parts in rounds_in_float(plan_for(job, dataset), dataset)
    ]


def _rows(
    settings: BlindSettings, job: Job, dataset: VerticalDataset, report: Report
) -> Iterator[dict[str, Any]]:
    """A row for each target, or one of all rounds."""

    def trained(seeded: Job) -> TrainingResult:
        own = seeded.job
        what = f"{job.exchange.scheme}, Q = {own.local_steps}, {own.loss}, seed {own.seed}"
        shown = with_progress(report, what, own.rounds)
        return train(seeded, dataset, shown)

    seeds = range(settings.seed, settings.seed + settings.repeats)
    jobs = [job.with_settings(seed=seed) for seed in seeds]
    if not (settings.target_aucs and _shows_nothing(job)):
        results = [trained(each) for each in jobs]
        for target in settings.target_aucs or (None,):
            yield _row(results, target)
        return
    curves = [aucs_in_float(each, dataset) for each in jobs]
    for target in settings.target_aucs:
        rounds = [_first(curve, target + ROUNDING) for curve in curves]
        pairs = zip(jobs, rounds, strict=True)
        yield _row([trained(each.with_settings(rounds=most)) for each, most in pairs], target)


def _first(curve: Sequence[float], target: float) -> int:
    """The first round whose AUC reaches the target; else the last."""
    return next((index + 1 for index, score in enumerate(curve) if score >= target), len(curve))


def _row(results: Sequence[TrainingResult], target: float | None) -> dict[str, Any]:
    runs = [_run(result, target) for result in results]
    plan = results[0].plan
    own = ("seed", "reached", "compute_by_phase_s")
    return {
        "exchange": plan.exchange.name,
        "loss": plan.loss.name,
        "start": plan.job.job.start or "random",
        "local_steps": plan.local_steps,
        "batch_size": plan.batch_size,
        "target_auc": target,
        "reached_target": all(run["reached"] for run in runs),
        **{key: statistics.median(run[key] for run in runs) for key in runs[0] if key not in own},
        "runs": runs,
    }


def _run(result: TrainingResult, target: float | None) -> dict[str, Any]:
    # What shows nobody anything ends with its last round, and may be scored by sums alone.
    stopped = None
    if target is not None and not _shows_nothing(result.job):
        stopped = rounds_to(result, target)
    rounds = stopped or result.rounds
    score = result.exact_score.auc
    if stopped is not None:
        score = next(each.auc for each in result.scores if each.rounds == stopped)
    costs = result.costs(rounds)
    ends = [ledger.snapshots[rounds - 1] for ledger in result.ledgers.values()]
    computing = [
        sum(ledger.seconds.get(phase, 0.0) for phase in PHASES)
        for ledger in result.ledgers.values()
    ]
    rounds_s = costs.total_s - costs.offline_s
    return {
        **costs.row(),
        "seed": result.job.job.seed,
        "reached": target is None or score >= target,
        "rounds": rounds,
        "auc": score,
        "party_bytes": max(end.traffic.bytes_sent - end.offline.bytes_sent for end in ends)
        / rounds,
        "party_compute_s": max(computing) / result.rounds,
        "rounds_s": rounds_s,
        "round_s": rounds_s / rounds,
        "wall_s": result.wall_s,
    }


def _loss(row: Row) -> str:
    return "taylor" if row["loss"] == "taylor-logistic" else str(row["loss"])


WHAT: tuple[Column[Row], ...] = (
    ("exchange", lambda row: str(row["exchange"])),
    ("Q:S", lambda row: f"{row['local_steps']}:{row['batch_size']}"),
    ("loss", _loss),
)
FOUND: tuple[Column[Row], ...] = (
    ("rounds", lambda row: f"{row['rounds']:g}{'' if row['reached_target'] else ' *'}"),
    ("AUC", lambda row: share(row["auc"])),
    ("apart", lambda row: share(row["apart"], "+")),
    ("rounds'", lambda row: seconds(row["rounds_s"])),
    ("total", lambda row: seconds(row["total_s"])),
)
TARGET: Column[Row] = (
    "to AUC",
    lambda row: "-" if row["target_auc"] is None else f"{row['target_auc']:.2f}",
)


def notes(rows: Sequence[Row]) -> list[str]:
    """What the columns mean."""
    found = [
        "apart: AUC less that of plain with the logistic loss after as many rounds",
        "rounds': their critical path; total: with the offline phase",
    ]
    if not all(row["reached_target"] for row in rows):
        found.append("* target not reached within these rounds")
    return found


def _by_round(figure: OfflineFigure, show: Callable[[float], str]) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = made_offline(row, figure) / row["rounds"]
        return show(value) if value else "-"

    return text


def _path(row: Row) -> str:
    return seconds((row["compute_s"] - made_offline(row, "offline_compute_s")) / row["rounds"])


A_ROUND: tuple[Column[Row], ...] = (
    *WHAT,
    ("sent", lambda row: size(row["party_bytes"])),
    ("compute", lambda row: seconds(row["party_compute_s"])),
    ("path", _path),
    ("a round", lambda row: seconds(row["round_s"])),
    ("pads sent", _by_round("offline_bytes", size)),
    ("pads compute", _by_round("offline_compute_s", seconds)),
)


def of_a_round(rows: Sequence[Row]) -> Cells:
    """What a round takes: no other columns for the offline phase."""
    return [[name for name, _ in A_ROUND], *([show(row) for _, show in A_ROUND] for row in rows)]


TO_AN_AUC = {"dataset": "a9a", "learning_rate": 1, "target_aucs": 0.90, "rounds": 100}
SIZES = ("exact:4096", "20:1024", "5:256")
A9A = {"dataset": "a9a", "exchanges": ("blind",), "rounds": 20}

EXPERIMENT = Experiment(
    name="blind",
    about=__doc__ or "",
    runs={
        "breast_cancer": Run(20, {"steps": ("1:64", "5:64"), "learning_rate": 0.3, "rounds": 16}),
        "credit": Run(
            90,
            {
                "dataset": "credit",
                "steps": ("1:256", "5:256", "10:256"),
                "learning_rate": 0.1,
                "target_aucs": (0.69, 0.70, 0.71),
                "rounds": 200,
            },
        ),
        "a9a-wan": Run(220, {**TO_AN_AUC, "steps": ("exact:full", *SIZES), "network": "wan"}),
        **{
            f"a9a-{network}": Run(
                45, {**TO_AN_AUC, "steps": SIZES, "network": network, "repeats": 1}
            )
            for network in ("lan", "intercontinental")
        },
        "auc-exact": Run(80, {**A9A, "steps": "exact:full", "repeats": 1}),
        "auc-20": Run(
            70,
            {
                **A9A,
                "steps": "20:1024",
                "losses": ("logistic", "taylor-logistic"),
                "learning_rate": 1,
            },
        ),
        "auc-5": Run(
            45,
            {"dataset": "a9a", "steps": "5:256", "rounds": 100, "learning_rate": 0.5, "repeats": 1},
        ),
        "icu2012": Run(
            50,
            {
                "dataset": "icu2012-714",
                "steps": "5:256",
                "learning_rate": 0.003,
                "target_aucs": 0.82,
                "rounds": 60,
            },
        ),
    },
    quick={"dataset": "breast_cancer", "steps": "5:64", "rounds": 2, "repeats": 1},
    settings=BlindSettings,
    measure=blind,
    columns=(*WHAT, TARGET, *FOUND),
    notes=notes,
    tables={
        "blind": by_columns(NETWORK, TARGET, *WHAT, *FOUND),
        "joint": by_columns(*WHAT, *FOUND, ("joint", lambda row: f"{row['joint_auc']:.4f}")),
        "wall": by_columns(*WHAT, *FOUND, ("wall", lambda row: seconds(row["wall_s"]))),
        "round": of_a_round,
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
