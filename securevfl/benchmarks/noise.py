"""AUC against differential-privacy noise (FDML's Fig. 4), with what each level promises.

Noise is drawn from the seed of its run, so that sweeps repeat: a job draws its own afresh. All
levels take one η0, tuned without noise. Seeds differ in their noise, batches and, of networks,
starts. Of fdml two curves: parties that step with their own exact prediction, and with the noisy
one that they pushed, as the paper has it. Two AUCs: of released held-out predictions, which carry
noise and are all that anybody gets, and of exact ones, which tell what noise in training costs.

Each run is repeated with half of its rounds, a quarter and so on, as fewer promise more. The rounds
after which a level settles are chosen by the held-out rows.

A job file's job takes the steps that it says, and so does each party alone. What one place does is
then the job itself without noise and clipping.
"""

import hashlib
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from securevfl import __version__
from securevfl.benchmarks.in_one_place import (
    train_in_one_place,
    trained_alone,
    tuned_in_one_place,
)
from securevfl.benchmarks.journal import Journal
from securevfl.benchmarks.noise_jobs import NN, NoiseSettings
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.tuning import tune
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.interrupts import Interrupted
from securevfl.job import Job, OwnPrediction
from securevfl.processes import Tell, in_processes
from securevfl.reports.rows import NoiseRow
from securevfl.training import Environment, plan_for, train

ONE_PLACE, SUM_IN_ONE_PLACE = "one place", "sum in one place"
SETTLED = 0.005
"""A level has settled where its released AUC is no further below that of its best rounds."""
Run = dict[str, list[float]]  # AUCs, exact and released, after `halved` numbers of rounds


@dataclass(frozen=True)
class _Task:
    """One run: at a noise multiplier, or a line to compare with."""

    model: str
    seed: int
    noise: float | None
    own_prediction: OwnPrediction | None = None
    alone: str | None = None
    learning_rate: float | None = 1.0

    @property
    def key(self) -> str:
        return "|".join(map(str, asdict(self).values()))

    @property
    def says(self) -> str:
        """Which run it is, in a few words."""
        what = f"z = {self.noise:g}" if self.noise is not None else self.alone
        return f"{self.model}, {what}, seed {self.seed}"


def sweep(
    settings: NoiseSettings,
    dataset: VerticalDataset,
    journal: Journal | None = None,
    report: Report = silent,
    *,
    ray: str | None = None,
) -> list[NoiseRow]:
    """Run what the journal does not hold yet, and give one row for each model and level.

    Args:
        settings: what to run.
        dataset: the data.
        journal: of what was run before.
        report: told of progress.
        ray: address of a Ray cluster whose cores are taken in place of processes here.

    Raises:
        ConfigError: a model, level or algorithm that cannot be, or a job that does not fit.
        Interrupted: with the rows of the levels that were run.
    """
    _check(settings, dataset)
    done = {} if journal is None else journal.done()
    tasks = _tasks(settings, dataset, done, journal, report)
    left = [task for task in tasks if task.key not in done]
    run = partial(_run, settings, dataset)
    before = len(tasks) - len(left)

    def told(place: int, what: str, part: float) -> None:
        report(f"{left[place].says}: {what}", before + part * len(left), len(tasks))

    report("runs", before, len(tasks))
    workers = settings.workers or os.cpu_count() or 1
    try:
        with in_processes(run, left, workers, "sweep", progress=told, ray=ray) as results:
            for place, result in results:
                done[left[place].key] = result
                if journal is not None:
                    journal.add(left[place].key, result)
    except KeyboardInterrupt:
        missing = sum(task.key not in done for task in tasks)
        found = _rows(settings, dataset, tasks, done)
        raise Interrupted(found, [f"{missing} of {len(tasks)} runs"]) from None
    if journal is not None:
        journal.forget()
    return _rows(settings, dataset, tasks, done)


def _check(settings: NoiseSettings, dataset: VerticalDataset) -> None:
    if not settings.noise:
        raise ConfigError("noise: expected at least one multiplier")
    for model, level, own in product(settings.jobs, settings.noise, settings.own_predictions):
        plan_for(settings.job(dataset, model, settings.seed, level, own), dataset)


def _rows(
    settings: NoiseSettings,
    dataset: VerticalDataset,
    tasks: Sequence[_Task],
    done: Mapping[str, Run],
) -> list[NoiseRow]:
    """A row for each model and level that was run, where all that it is compared with was too."""
    rows = []
    for own, model in product(settings.own_predictions, settings.jobs):
        of_model = [task for task in tasks if task.model == model]
        runs = [(task, done[task.key]) for task in of_model if task.key in done]
        if {task.alone for task in of_model} - {None, *(task.alone for task, _ in runs)}:
            continue
        there = {(task.noise, task.own_prediction) for task, _ in runs if task.alone is None}
        levels = [(noise, own) for noise in settings.noise if (noise, own) in there]
        rows += [_row(settings, dataset, model, level, runs) for level in levels]
    return rows


def work_of(settings: NoiseSettings, dataset: VerticalDataset) -> dict[str, Any]:
    """What a journal is about: neither where files are, nor how many processes there are."""
    jobs = {
        model: settings.job(dataset, model, settings.seed, settings.noise[0]).hash().hex()
        for model in settings.jobs
    }
    return {
        "version": __version__,
        "data": _content(dataset),
        "label_party": dataset.label_party,
        "over_rounds": True,
        **settings.described(dataset),
        "jobs": jobs,
        "from_file": settings.from_file,
        "seed": settings.seed,
    }


def _content(dataset: VerticalDataset) -> str:
    """SHA-256 (hex) over all values: the rows of a changed file may have the same ids."""
    digest = hashlib.sha256(dataset.row_digests.tobytes())
    for table in dataset.parties:
        digest.update(repr((table.name, table.columns, table.train.shape)).encode())
        digest.update(np.ascontiguousarray(table.train).data)
        digest.update(np.ascontiguousarray(table.test).data)
    digest.update(np.ascontiguousarray(dataset.train_labels).data)
    digest.update(np.ascontiguousarray(dataset.test_labels).data)
    return digest.hexdigest()


def _tasks(
    settings: NoiseSettings,
    dataset: VerticalDataset,
    done: dict[str, Any],
    journal: Journal | None,
    report: Report,
) -> list[_Task]:
    def remembered(what: str, tuned: Callable[[], float | None]) -> float:
        key = f"learning rate|{what}"
        if key not in done:
            done[key] = tuned()
            if journal is not None:
                journal.add(key, done[key])
        return float(done[key])

    levels = [(noise, own) for own in settings.own_predictions for noise in settings.noise]
    tasks = []
    for model in settings.jobs:
        rate, rate_of = _rates(settings, dataset, model, remembered, report)
        for seed in range(settings.seed, settings.seed + settings.repeats):
            tasks += [_Task(model, seed, None, None, name, eta) for name, eta in rate_of.items()]
            tasks += [_Task(model, seed, noise, own, None, rate) for noise, own in levels]
    return tasks


def _rates(
    settings: NoiseSettings,
    dataset: VerticalDataset,
    model: str,
    remembered: Callable[[str, Callable[[], float | None]], float],
    report: Report,
) -> tuple[float | None, dict[str, float | None]]:
    """The step size of a model, and of each line that it is compared with; None: derived."""
    job = settings.job(dataset, model, settings.seed)
    given = job.job.learning_rate
    rate: float | None = None if given == "auto" else given
    if settings.tuned:
        rate = remembered(model, partial(_tuned, job, dataset, report))
    lines = [ONE_PLACE, *(table.name for table in dataset.parties)]
    rate_of: dict[str, float | None] = dict.fromkeys(lines, rate)
    if settings.trains_in_one_place(model):
        rate_of[SUM_IN_ONE_PLACE] = rate
        if settings.tuned and model == NN:  # one network is another model than the parties'
            report("tuning the learning rate of one network")
            tuned = partial(tuned_in_one_place, job, dataset)
            rate_of[ONE_PLACE] = remembered(f"{model}|{ONE_PLACE}", tuned)
    return rate, rate_of


def _tuned(job: Job, dataset: VerticalDataset, report: Report) -> float | None:
    return tune(job, dataset, report=report).learning_rate


def _run(settings: NoiseSettings, dataset: VerticalDataset, task: _Task, tell: Tell) -> Run:
    job = settings.job(
        *(dataset, task.model, task.seed, task.noise, task.own_prediction),
        learning_rate=task.learning_rate,
    )
    if task.alone is None:
        return _over_rounds(job, dataset, tell)
    together = task.alone in (ONE_PLACE, SUM_IN_ONE_PLACE)
    if settings.trains_in_one_place(task.model):
        parties, one_model = None if together else [task.alone], task.alone == ONE_PLACE
        return {"auc": [train_in_one_place(job, dataset, parties, one_model=one_model).auc]}
    if together:
        return {"auc": [train(job, dataset).clear_auc]}
    return {"auc": [trained_alone(job, dataset, task.alone)]}


def halved(rounds: int) -> list[int]:
    """A number of rounds, half of it and so on down to 1, the fewest first."""
    return [*halved(rounds // 2), rounds] if rounds else []


def _over_rounds(job: Job, dataset: VerticalDataset, tell: Tell) -> Run:
    found: Run = {"auc": [], "auc_noisy": []}
    result, runs, before = None, halved(job.job.rounds), 0

    def told(done: int) -> None:
        tell(f"round {before + done} of {sum(runs)}", before + done, sum(runs))

    for rounds in runs:
        # More rounds change nothing if training had ended before.
        if result is None or result.rounds == result.plan.rounds:
            result = train(job.with_settings(rounds=rounds), dataset, Environment(progress=told))
        before += rounds
        found["auc"].append(result.clear_auc)
        found["auc_noisy"].append(result.scores[-1].auc)
    return found


def _row(
    settings: NoiseSettings,
    dataset: VerticalDataset,
    model: str,
    level: tuple[float, OwnPrediction | None],
    runs: Sequence[tuple[_Task, Run]],
) -> NoiseRow:
    noise, own_prediction = level
    at_level = [run for task, run in runs if (task.noise, task.own_prediction) == level]
    lines = {
        name: statistics.mean(run["auc"][-1] for task, run in runs if task.alone == name)
        for name in dict.fromkeys(task.alone for task, _ in runs if task.alone is not None)
    }
    best = max((table.name for table in dataset.parties), key=lambda name: lines[name])
    job = settings.job(dataset, model, settings.seed, noise, own_prediction)
    account = plan_for(job, dataset).account
    assert account is not None  # noqa: S101
    promise, all_rounds = account.after(account.rounds), halved(account.rounds)
    exact, noisy = (np.array([run[key] for run in at_level]) for key in ("auc", "auc_noisy"))
    means, released = exact.mean(axis=0), noisy.mean(axis=0)
    settled = int(np.flatnonzero(released >= released.max() - SETTLED)[0])
    return {
        "dataset": dataset.name,
        "model": model,
        "algorithm": job.job.algorithm,
        "mechanism": job.privacy.mechanism,
        "own_prediction": own_prediction,
        "noise_multiplier": noise,
        "clip": job.privacy.clip,
        "releases": promise.releases,
        "delta": job.privacy.delta,
        "epsilon_release": promise.epsilon_release,
        "epsilon_end_to_end": promise.epsilon_end_to_end,
        "epsilon_end_to_end_text": promise.epsilon_end_to_end_text,
        "gradient_clip": promise.gradient_clip,
        "gradient_noise_multiplier": promise.gradient_noise_multiplier,
        "auc_mean": float(means[-1]),
        "auc_std": float(np.std(exact[:, -1], ddof=1)) if len(exact) > 1 else None,
        "auc_noisy_mean": float(released[-1]),
        "auc_noisy_std": float(np.std(noisy[:, -1], ddof=1)) if len(noisy) > 1 else None,
        "settled": settled,
        "over_rounds": [
            {
                "rounds": each,
                "auc_mean": float(means[place]),
                "auc_noisy_mean": float(released[place]),
                "epsilon_release": account.after(each).epsilon_release,
                "epsilon_end_to_end": account.after(each).epsilon_end_to_end,
            }
            for place, each in enumerate(all_rounds)
        ],
        "auc_local_only": lines[best],
        "local_only_party": best,
        "auc_centralized": lines[ONE_PLACE],
        "auc_sum_in_one_place": lines.get(SUM_IN_ONE_PLACE, lines[ONE_PLACE]),
        "learning_rate": _rate_of(runs, None),
        "learning_rate_centralized": _rate_of(runs, ONE_PLACE),
        "repeats": len(exact),
        "aucs": exact[:, -1].tolist(),
        "aucs_noisy": noisy[:, -1].tolist(),
        "noise": promise.noise,
    }


def _rate_of(runs: Sequence[tuple[_Task, Run]], alone: str | None) -> float | None:
    return next(task.learning_rate for task, _ in runs if task.alone == alone)
