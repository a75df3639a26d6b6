"""Two worlds that differ in one record, real runs in each, and scores that tell them apart.

The adversary is the label party. It knows everything except the noise and which world it is in: θ⁰,
all other rows, and both values of the record. The data set is either the job's, with an extreme
record, or the worst that the privacy guarantee covers. Canaries are records that the adversary
recognizes by their own noisy predictions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import sqrt

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.two_worlds import (
    GuessedWorld,
    WorldRound,
    gaussian_scores,
    laplace_scores,
    world_score,
)
from securevfl.auditing.subject import local_part, table_of, with_section, with_table
from securevfl.auditing.views import clear_arrays, decisions_of, predictions_of
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Logistic
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.session.early_stopping import Decision
from securevfl.sparse import require_dense
from securevfl.training import Environment, TrainingResult, plan_for, train

LABEL, FEATURE = "label party", "canary's party"
SCALED = 10_000.0
ROWS, HELD_OUT = 1024, 4
HUGE, SMALL = 1e6, 1e-3
SLACK, DAMPED = 0.2, 0.2
STILL = 1e-12  # a step size at which no weight moves to speak of
Scores = tuple[FloatArray, FloatArray]
"""Of runs or canaries in the first world, and in the second."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A job on two data sets that differ in one record of one party."""

    job: Job  # its noise is drawn anew in each run
    worlds: tuple[VerticalDataset, VerticalDataset]
    party: str  # which holds the record
    starts: Mapping[str, FloatArray]  # θ⁰ of parties that do not draw it


def released_canaries(
    privacy: PrivacySettings, releases: int, canaries: int, generator: np.random.Generator
) -> Scores:
    """Scores of canaries that predict −β and of others that predict β, from ν releases of each.

    A coin decides the kind of each canary.
    """
    signs = generator.choice([-1.0, 1.0], canaries)[:, None]
    job = _made_job(privacy, algorithm="fedsgd", rounds=releases, learning_rate=STILL)
    known = generator.standard_normal(canaries)[:, None]
    dataset = _made_data("canaries", known, signs, np.arange(canaries) % 2)
    # Predictions far beyond ±β, which clipping brings to ±β exactly.
    environment = _recorded(lambda name, start: 10 * privacy.clip if name == FEATURE else start)
    result = train(job, dataset, environment)
    seen = np.hstack(predictions_of(result.views[LABEL], FEATURE)).T
    scores = gaussian_scores(seen)
    if privacy.mechanism == "laplace":
        assert privacy.noise_multiplier is not None  # noqa: S101
        scores = laplace_scores(seen, Mechanism("laplace", privacy.noise_multiplier, privacy.clip))
    return scores[signs[:, 0] < 0], scores[signs[:, 0] > 0]


def scored_runs(neighbours: Neighbours, runs: int) -> tuple[Scores, Scores]:
    """Score real runs of each world, on full batches, by the worlds' likelihood ratio.

    The first scores use everything that the label party received, the second only the releases of
    the other records.
    """
    job = with_section(neighbours.job, "privacy", noise_seed=None)
    environment = _recorded(neighbours.starts.get)
    worlds = [_guessed(neighbours, job, each) for each in neighbours.worlds]
    scores = np.empty((2, 2, runs))
    for (truth, dataset), run in product(enumerate(neighbours.worlds), range(runs)):
        seen = _rounds(train(job, dataset, environment), neighbours.party)
        scores[:, truth, run] = [world_score(seen, *worlds, skipped=each) for each in (0, 1)]
    by_all, by_others = scores
    return (by_all[0], by_all[1]), (by_others[0], by_others[1])


def extreme_record(job: Job, dataset: VerticalDataset) -> Neighbours:
    """Two worlds in which the first record of the first feature party is extreme in either way.

    The two values are the rows, or negated rows, whose predictions at θ⁰ are farthest apart. They
    are scaled until predictions and gradients are clipped: predictions at β in one world and −β in
    the other, gradients of a linear model at β_g and −β_g along one direction. Without gradient
    clipping such a row would dominate every step, so the first world keeps the original record. The
    job is under `dp` with full batches, and features are scaled already.
    """
    party = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    part = local_part(plan_for(job, dataset), dataset, party)
    table = table_of(dataset, party)
    candidates = SCALED * np.vstack([table.train, -table.train])
    predicted = part.model.predict(part.model.inputs(candidates))

    def with_record(row: FloatArray) -> VerticalDataset:
        return with_table(dataset, replace(table, train=np.vstack([row, table.train[1:]])))

    low, high = predicted.max(axis=1).argmin(), predicted.min(axis=1).argmax()
    clipped = job.privacy.gradient_clip is not None
    first = with_record(candidates[low]) if clipped else dataset
    worlds = first, with_record(candidates[high])
    return Neighbours(job, worlds, party, {party: part.model.weights})


def scaling_record(job: Job, dataset: VerticalDataset) -> Neighbours:
    """Two worlds in which a record is as it was, or huge in every column.

    The job standardizes columns without bounds by the party's own rows, which no noise covers: a
    huge record leaves all other rows near each other, and moves their predictions. Bounds clip it.
    """
    party = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    table, job = table_of(dataset, party), job.with_settings(standardize=True)
    huge = np.full_like(table.train[:1], HUGE)
    changed = replace(table, train=np.vstack([huge, table.train[1:]]))
    part = local_part(plan_for(job, dataset), dataset, party)
    worlds = dataset, with_table(dataset, changed)
    return Neighbours(job, worlds, party, {party: part.model.weights})


def worst_case(privacy: PrivacySettings, rounds: int, local_steps: int) -> Neighbours:
    """Worst-case data: noisy predictions reveal the weights, and the weights reveal the record.

    The privacy guarantee covers any rows, any θ⁰ and any step size. Here the first weight takes the
    record's prediction to −β or β. The record's gradient, at least β_g long and of constant sign,
    moves the second weight one way or the other. All other rows read only the second weight, within
    their clip. The label party predicts them exactly right, so that their gradients are 0, and the
    record exactly wrong.
    """
    clip, noise = privacy.gradient_clip, privacy.gradient_noise_multiplier
    assert clip is not None and noise is not None  # noqa: S101, PT018
    curvature = Logistic().curvature
    length = 2 * clip
    drawn, pushed = noise * 2 * clip, clip
    # Later local steps use new residuals: the record's has to keep its sign, and the other rows may
    # undo only a part of each move.
    within = sqrt(local_steps) * drawn + local_steps * pushed
    step = SLACK / (curvature * length * within)
    steps = rounds * local_steps
    reach = 3 * sqrt(steps) * step * drawn + steps * step * pushed
    gain = privacy.clip / reach
    if local_steps > 1:
        gain = min(gain, sqrt(DAMPED / (ROWS * step * curvature)))
    labels = np.arange(ROWS) % 2
    known = np.where(labels[:, None] == 1, [1.0, 0.0], [-1.0, 0.0])
    known[0] = 0.0, 1.0
    job = _made_job(
        privacy.model_copy(update={"label_noise_multiplier": 0.0}),
        algorithm="fedbcd-p",
        rounds=rounds,
        local_steps=local_steps,
        learning_rate=ROWS * step,
        l2=0.0,
    )

    def with_record(side: float) -> VerticalDataset:
        rows = np.tile([0.0, gain], (ROWS, 1))
        rows[0] = side * length * np.array([SMALL, 1.0])
        return _made_data("worst case", known, rows, labels)

    starts = {LABEL: np.array([[HUGE], [HUGE], [0.0]]), FEATURE: np.array([[HUGE], [0.0]])}
    return Neighbours(job, (with_record(-1.0), with_record(1.0)), FEATURE, starts)


def _made_job(privacy: PrivacySettings, **settings: object) -> Job:
    """A job under noise with full batches, scored only at its end."""
    full = {"batch_size": "full", "start": "zero", "standardize": False, "eval_every": 0}
    return Job.of(job={**full, **settings}, exchange={"scheme": "dp"}, privacy=privacy)


def _made_data(
    name: str, known: FloatArray, records: FloatArray, labels: IntArray
) -> VerticalDataset:
    columns = ("first", "second")[: known.shape[1]]
    return VerticalDataset(
        name=name,
        parties=tuple(
            PartyTable(party, columns, values, values[:HELD_OUT])
            for party, values in ((LABEL, known), (FEATURE, records))
        ),
        label_party=LABEL,
        train_labels=labels,
        test_labels=labels[:HELD_OUT],
        classes=2,
        standardize=False,
        row_digests=row_digests(range(len(labels))),
    )


def _recorded(start: Callable[[str, FloatArray], FloatArray | float]) -> Environment:
    """An environment that records views and sets each party's first weights."""

    def wrap(name: str, model: LocalModel) -> LocalModel:
        model.weights = np.broadcast_to(start(name, model.weights), model.weights.shape).copy()
        return model

    return Environment(record_views=True, wrap_model=wrap)


def _guessed(neighbours: Neighbours, job: Job, dataset: VerticalDataset) -> GuessedWorld:
    plan = plan_for(job, dataset)
    parts = {name: local_part(plan, dataset, name) for name in plan.facts.names}
    part = parts[neighbours.party]
    part.model.weights = neighbours.starts[neighbours.party]
    columns = sum(each.parameters or each.inputs.shape[1] for each in parts.values())
    assert plan.account is not None  # noqa: S101
    inputs = require_dense(part.inputs, "an audit")
    return GuessedWorld(
        part.model,
        inputs,
        partial(plan.steps, inputs=inputs, columns=columns),
        plan.account.mechanism,
        plan.account.gradients,
    )


def _rounds(result: TrainingResult, party: str) -> list[WorldRound]:
    view = result.views[party]
    answered = {step: values for step, (values, *_) in clear_arrays(view, "residuals")}
    decisions = decisions_of(view)
    released = predictions_of(result.views[result.plan.facts.label_party], party)
    return [
        WorldRound(values, answered.get(index), decisions.get(index, Decision(index)))
        for index, values in enumerate(released)
    ]
