"""Canaries whose own releases under the `dp` exchange tell what they are."""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.two_worlds import gaussian_scores, laplace_scores
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, train

LABEL, FEATURE = "label party", "canaries' party"
HELD_OUT = 4
STILL = 1e-12  # a step size at which no weight moves to speak of


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
