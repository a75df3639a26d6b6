"""Real runs of the `dp` exchange whose releases or messages tell two neighbouring worlds apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.two_worlds import (
    WorldsKnowledge,
    gaussian_scores,
    laplace_scores,
    world_score,
)
from securevfl.audit.seats import local_part, table_of, with_table
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel
from securevfl.privacy.mechanisms import Mechanism
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


def in_situ(job: Job, dataset: VerticalDataset, runs: int) -> tuple[FloatArray, FloatArray]:
    """Scores of worlds in which one record is as it is, or 10,000 times as large and wrong.

    The adversary knows everything else: θ⁰, all other rows, and the messages that either world
    sends without noise. It reads the messages of the *other* records only.

    Args:
        job: a job under `dp`, full batches; its noise is drawn afresh each run.
        dataset: features scaled already.
        runs: of each world.

    Returns:
        One score a run, of either world.

    Raises:
        ConfigError: worlds that send the same.
    """
    party = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    start = local_part(plan_for(job, dataset), dataset, party).model.weights
    worlds = (dataset, _with_large_record(dataset, party, start))

    def others(world_job: Job, world: VerticalDataset) -> FloatArray:
        """All released predictions of records but the first, shape (rounds, rows − 1)."""

        def same_start(name: str, model: LocalModel) -> LocalModel:
            if name == party:
                model.weights = start
            return model

        environment = Environment(record_views=True, wrap_model=same_start)
        result = train(world_job, world, environment)
        return np.array([seen[1:, 0] for seen in _messages(result, dataset.label_party)])

    silent: dict[str, Any] = {"noise_multiplier": 0.0, "noise_seed": 0}
    if job.privacy.gradient_clip is not None:
        silent["gradient_noise_multiplier"] = 0.0
    quiet = Job.of(**{**dict(job), "privacy": {**dict(job.privacy), **silent}})
    knowledge = WorldsKnowledge(*(others(quiet, world) for world in worlds))
    first, second = (
        np.array([world_score(others(job, world), knowledge) for _ in range(runs)])
        for world in worlds
    )
    return first, second


def _with_large_record(dataset: VerticalDataset, party: str, start: FloatArray) -> VerticalDataset:
    """The first record 10,000 times as large, on the side of θ⁰ where its label is not."""
    table = table_of(dataset, party)
    rows = table.train.copy()
    predicted = float((rows[0] @ start)[0]) if start.shape[0] == rows.shape[1] else 1.0
    side = 1.0 if dataset.train_labels[0] == 0 else -1.0
    rows[0] *= SCALED * np.copysign(1.0, predicted) * side
    return with_table(dataset, replace(table, train=rows))


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
        row_digests=row_digests(range(rows)),
    )


def _saturated(clip: float) -> Callable[[str, LocalModel], LocalModel]:
    """Predictions far beyond ±β, which clipping brings to ±β exactly."""

    def wrap(name: str, model: LocalModel) -> LocalModel:
        if name == FEATURE:
            model.weights = np.full_like(model.weights, 10 * clip)
        return model

    return wrap
