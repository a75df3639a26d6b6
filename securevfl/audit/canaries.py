"""Real runs of the `dp` exchange whose releases or messages tell two neighbouring worlds apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.two_worlds import (
    Round,
    World,
    gaussian_scores,
    laplace_scores,
    world_score,
)
from securevfl.audit.seats import local_part, table_of, with_table
from securevfl.audit.views import courses_of, predictions_of
from securevfl.data.tables import PartyTable, VerticalDataset, fingerprint
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.local_steps import Course
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, plan_for, train

LABEL, FEATURE = "label party", "canaries' party"
HELD_OUT = 4
STILL = 1e-12  # a step size at which no weight moves to speak of
SCALED = 10_000.0


def released_canaries(
    privacy: PrivacySettings, releases: int, canaries: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Scores of canaries that predict −β, and of others that predict β, by their own releases.

    Args:
        privacy: the noise, with its multiplier.
        releases: ν, of each canary.
        canaries: how many, half of them each way by chance.
        generator: draws which.

    Returns:
        What the label party makes of its view: scores of the first, and of the second.
    """
    signs = generator.choice([-1.0, 1.0], canaries)
    result = train(
        Job.of(
            job={
                "algorithm": "fedsgd",
                "rounds": releases,
                "batch_size": "full",
                "learning_rate": STILL,
                "start": "zero",
                "standardize": False,
                "eval_every": 0,
            },
            exchange={"scheme": "dp"},
            privacy=privacy,
        ),
        _canary_data(signs, generator),
        Environment(record_views=True, wrap_model=_saturated(privacy.clip)),
    )
    seen = np.hstack(_messages(result, LABEL)).T
    scores = gaussian_scores(seen)
    if privacy.mechanism == "laplace":
        assert privacy.noise_multiplier is not None  # noqa: S101
        mechanism = Mechanism("laplace", privacy.noise_multiplier, privacy.clip)
        scores = laplace_scores(seen, mechanism)
    return scores[signs < 0], scores[signs > 0]


@dataclass(frozen=True, eq=False)
class InSitu:
    """Scores of two neighbouring worlds, one a run, for the first and for the second.

    Attributes:
        all_messages: by everything that the label party received.
        others: by the other records' releases alone.
    """

    all_messages: tuple[FloatArray, FloatArray]
    others: tuple[FloatArray, FloatArray]


def in_situ(job: Job, dataset: VerticalDataset, runs: int, scale: float = SCALED) -> InSitu:
    """Real training in which one record has either of two extreme values.

    The adversary is the label party, and knows everything else: θ⁰, all other rows, both values.
    These are the two rows, or their negatives, that are predicted the farthest apart at θ⁰, made
    so long that predictions and gradients are clipped: predictions stand at β in one world and at
    −β in the other, gradients of a linear model at β_g and −β_g along one direction.

    Args:
        job: a job under `dp`, full batches; its noise is drawn afresh each run.
        dataset: features scaled already.
        runs: of each world.
        scale: how much longer than the rows.
    """
    party = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    start = local_part(plan_for(job, dataset), dataset, party).model.weights

    def same_start(name: str, model: LocalModel) -> LocalModel:
        if name == party:
            model.weights = start
        return model

    environment = Environment(record_views=True, wrap_model=same_start)
    neighbours = _neighbours(job, dataset, party, scale)
    worlds = [_world(job, each, party, start) for each in neighbours]
    scores = np.empty((2, 2, runs))
    for (truth, neighbour), run in product(enumerate(neighbours), range(runs)):
        seen = _rounds(train(job, neighbour, environment), party)
        scores[:, truth, run] = [world_score(seen, *worlds, skipped=each) for each in (0, 1)]
    return InSitu((scores[0, 0], scores[0, 1]), (scores[1, 0], scores[1, 1]))


def _neighbours(
    job: Job, dataset: VerticalDataset, party: str, scale: float
) -> tuple[VerticalDataset, VerticalDataset]:
    part = local_part(plan_for(job, dataset), dataset, party)
    table = table_of(dataset, party)
    candidates = scale * np.vstack([table.train, -table.train])
    predicted = part.model.predict(part.model.inputs(candidates))
    chosen = predicted.max(axis=1).argmin(), predicted.min(axis=1).argmax()

    def with_first(row: FloatArray) -> VerticalDataset:
        rows = np.vstack([row, table.train[1:]])
        return with_table(dataset, replace(table, train=rows))

    first, second = (with_first(candidates[each]) for each in chosen)
    return first, second


def _world(job: Job, dataset: VerticalDataset, party: str, start: FloatArray) -> World:
    plan = plan_for(job, dataset)
    part = local_part(plan, dataset, party)
    part.model.weights = start
    assert plan.account is not None  # noqa: S101
    columns = sum(
        each.parameters or each.inputs.shape[1]
        for each in (local_part(plan, dataset, name) for name in plan.facts.names)
    )
    return World(
        part.model,
        part.inputs,
        partial(plan.steps, inputs=part.inputs, columns=columns),
        plan.account.mechanism,
        plan.account.gradients,
    )


def _rounds(result: TrainingResult, party: str) -> list[Round]:
    """What the label party received from a party, sent it and told it."""
    entries = result.views[party].received(Residuals)
    answered = {
        e.message.step: e.message.values for e in entries if isinstance(e.message, Residuals)
    }
    told = courses_of(result.views[party])
    released = predictions_of(result.views[result.plan.facts.label_party], party)
    return [
        Round(values, answered.get(index), told.get(index, Course(index)))
        for index, values in enumerate(released)
    ]


def _messages(result: TrainingResult, party: str) -> list[FloatArray]:
    """Predictions that a party received, in order, shape (S, C) each."""
    messages = [entry.message for entry in result.views[party].received(Predictions)]
    return [message.values for message in messages if isinstance(message, Predictions)]


def _canary_data(signs: FloatArray, generator: np.random.Generator) -> VerticalDataset:
    rows = len(signs)

    def table(name: str, train_rows: FloatArray) -> PartyTable:
        return PartyTable(name, ("canary",), train_rows[:, None], train_rows[:HELD_OUT, None])

    return VerticalDataset(
        name="canaries",
        parties=(table(LABEL, generator.standard_normal(rows)), table(FEATURE, signs)),
        label_party=LABEL,
        train_labels=np.arange(rows) % 2,
        test_labels=np.arange(HELD_OUT) % 2,
        classes=2,
        standardize=False,
        fingerprint=fingerprint(range(rows)),
    )


def _saturated(clip: float) -> Callable[[str, LocalModel], LocalModel]:
    """Predictions far beyond ±β, which clipping brings to ±β exactly."""

    def wrap(name: str, model: LocalModel) -> LocalModel:
        if name == FEATURE:
            model.weights = np.full_like(model.weights, 10 * clip)
        return model

    return wrap
