"""Two neighbouring worlds, in which one record has either of two values, and real runs in each.

The adversary is the label party. It knows everything but the noise and which world it is: θ⁰, all
other rows, both values. Data sets are either somebody's, with an extreme record, or made to be the
worst that a promise covers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import sqrt

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.two_worlds import Round, World, world_score
from securevfl.auditing.seats import local_part, table_of, with_table
from securevfl.auditing.views import courses_of, predictions_of
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Logistic
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.local_steps import Course
from securevfl.sparse import require_dense
from securevfl.training import Environment, TrainingResult, plan_for, train

LABEL, FEATURE = "label party", "canary's party"
SCALED = 10_000.0
ROWS, HELD_OUT = 1024, 4
HUGE, SMALL = 1e6, 1e-3
SLACK, DAMPED = 0.2, 0.2


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A job on two data sets that differ in one record of one party.

    Attributes:
        job: its noise is drawn afresh each run.
        worlds: the data sets; the record is the first.
        party: whose record it is.
        starts: θ⁰ of parties that do not draw it.
    """

    job: Job
    worlds: tuple[VerticalDataset, VerticalDataset]
    party: str
    starts: Mapping[str, FloatArray]


@dataclass(frozen=True, eq=False)
class Told:
    """Scores of runs in the first world, and in the second.

    Attributes:
        by_all: by all that the label party received.
        by_others: by the other records' releases alone.
    """

    by_all: tuple[FloatArray, FloatArray]
    by_others: tuple[FloatArray, FloatArray]


def told_apart(neighbours: Neighbours, runs: int) -> Told:
    """Score real runs by the likelihood ratio of the worlds.

    Args:
        neighbours: full batches.
        runs: of each world.
    """
    starts = neighbours.starts
    privacy = neighbours.job.privacy.model_copy(update={"noise_seed": None})
    job = Job.of(**{**dict(neighbours.job), "privacy": privacy})

    def start(name: str, model: LocalModel) -> LocalModel:
        model.weights = starts.get(name, model.weights)
        return model

    environment = Environment(record_views=True, wrap_model=start)
    worlds = [_world(job, each, neighbours.party, starts) for each in neighbours.worlds]
    scores = np.empty((2, 2, runs))
    for (truth, dataset), run in product(enumerate(neighbours.worlds), range(runs)):
        seen = _rounds(train(job, dataset, environment), neighbours.party)
        scores[:, truth, run] = [world_score(seen, *worlds, skipped=each) for each in (0, 1)]
    by_all, by_others = scores
    return Told((by_all[0], by_all[1]), (by_others[0], by_others[1]))


def extreme_record(job: Job, dataset: VerticalDataset, scale: float = SCALED) -> Neighbours:
    """A data set whose first record at the first feature party is extreme, in either of two ways.

    These are the two rows, or negatives of rows, that are predicted the farthest apart at θ⁰, made
    so long that predictions and gradients are clipped: predictions stand at β in one world and at
    −β in the other, gradients of a linear model at β_g and −β_g along one direction. Steps without
    clipping follow one such row and nothing else, whichever it is: then the record is as it was in
    the first world.

    Args:
        job: under `dp`, full batches.
        dataset: features scaled already.
        scale: how much longer than the rows.
    """
    party = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    part = local_part(plan_for(job, dataset), dataset, party)
    table = table_of(dataset, party)
    candidates = scale * np.vstack([table.train, -table.train])
    predicted = part.model.predict(part.model.inputs(candidates))

    def with_record(row: FloatArray) -> VerticalDataset:
        return with_table(dataset, replace(table, train=np.vstack([row, table.train[1:]])))

    low, high = predicted.max(axis=1).argmin(), predicted.min(axis=1).argmax()
    clipped = job.privacy.gradient_clip is not None
    first = with_record(candidates[low]) if clipped else dataset
    worlds = first, with_record(candidates[high])
    return Neighbours(job, worlds, party, {party: part.model.weights})


def worst_case(privacy: PrivacySettings, rounds: int, local_steps: int) -> Neighbours:
    """Data made so that noisy predictions tell the weights, and the weights the record.

    A promise covers any rows, any θ⁰ and any step size. Here the record's prediction is clipped to
    −β or β by the first weight, and its gradient, as long as β_g at least and never of another
    sign, moves the second one way or the other. All other rows only read the second weight, so
    that it stays within their clip; the label party predicts them exactly right, so that their
    gradients are 0, and the record exactly wrong.

    Args:
        privacy: with noise on gradients.
        rounds: T.
        local_steps: Q.
    """
    clip, noise = privacy.gradient_clip, privacy.gradient_noise_multiplier
    assert clip is not None and noise is not None  # noqa: S101, PT018
    curvature = Logistic().curvature
    length = 2 * clip
    drawn, pushed = noise * 2 * clip, clip
    # Local steps after the first renew residuals: the record's keeps its sign, and readers pull
    # back by no more than a part of what moves them.
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
    job = Job.of(
        job={
            "algorithm": "fedbcd-p",
            "rounds": rounds,
            "batch_size": "full",
            "local_steps": local_steps,
            "learning_rate": ROWS * step,
            "l2": 0.0,
            "start": "zero",
            "standardize": False,
            "eval_every": 0,
        },
        exchange={"scheme": "dp"},
        privacy=privacy.model_copy(update={"label_noise_multiplier": 0.0}),
    )

    def with_record(side: float) -> VerticalDataset:
        rows = np.tile([0.0, gain], (ROWS, 1))
        rows[0] = side * length * np.array([SMALL, 1.0])
        return VerticalDataset(
            name="worst case",
            parties=tuple(
                PartyTable(name, ("first", "second"), values, values[:HELD_OUT])
                for name, values in ((LABEL, known), (FEATURE, rows))
            ),
            label_party=LABEL,
            train_labels=labels,
            test_labels=labels[:HELD_OUT],
            classes=2,
            standardize=False,
            row_digests=row_digests(range(ROWS)),
        )

    starts = {LABEL: np.array([[HUGE], [HUGE], [0.0]]), FEATURE: np.array([[HUGE], [0.0]])}
    return Neighbours(job, (with_record(-1.0), with_record(1.0)), FEATURE, starts)


def _world(
    job: Job, dataset: VerticalDataset, party: str, starts: Mapping[str, FloatArray]
) -> World:
    plan = plan_for(job, dataset)
    parts = {name: local_part(plan, dataset, name) for name in plan.facts.names}
    part = parts[party]
    part.model.weights = starts[party]
    columns = sum(each.parameters or each.inputs.shape[1] for each in parts.values())
    assert plan.account is not None  # noqa: S101
    return World(
        part.model,
        require_dense(part.inputs, "an audit"),
        partial(plan.steps, inputs=require_dense(part.inputs, "an audit"), columns=columns),
        plan.account.mechanism,
        plan.account.gradients,
    )


def _rounds(result: TrainingResult, party: str) -> list[Round]:
    """What the label party received from a party, sent it and told it."""
    view = result.views[party]
    answers = (entry.message for entry in view.received(Residuals))
    answered = {each.step: each.values for each in answers if isinstance(each, Residuals)}
    told = courses_of(view)
    released = predictions_of(result.views[result.plan.facts.label_party], party)
    return [
        Round(values, answered.get(index), told.get(index, Course(index)))
        for index, values in enumerate(released)
    ]
