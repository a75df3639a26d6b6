from functools import partial
from math import inf

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from securevfl.arrays import FloatArray
from securevfl.attacks.two_worlds import GuessedWorld, WorldRound, log_likelihood, world_score
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Logistic
from securevfl.privacy.mechanisms import GradientNoise, Mechanism
from securevfl.protocols.local_steps import LocalRule, LocalSteps, Pace
from securevfl.protocols.session.early_stopping import Decision

ROWS, COLUMNS, ROUNDS, STEP = 5, 3, 4, 2.0
Generator = np.random.Generator


def world(inputs: FloatArray, clip: float = 100.0, gradient_noise: float = 0.3) -> GuessedWorld:
    pace = Pace(1.0, inf, 0, len(inputs), lambda _: STEP, derived=False)
    return GuessedWorld(
        LinearModel(np.ones((COLUMNS, 1))),
        inputs,
        partial(LocalSteps, inputs=inputs, rule=LocalRule(Logistic(), 1), pace=pace),
        Mechanism("gaussian", 0.005 * 100 / clip, clip),
        GradientNoise(gradient_noise, 0.5),
    )


def seen(generator: Generator) -> list[WorldRound]:
    released, answered = generator.standard_normal((2, ROUNDS, ROWS, 1))
    return [WorldRound(released[each], answered[each], Decision(each)) for each in range(ROUNDS)]


@pytest.mark.parametrize("skipped", [0, 2])
def test_the_filter_is_the_likelihood_of_all_releases_together(
    generator: Generator, skipped: int
) -> None:
    inputs, rounds = generator.standard_normal((ROWS, COLUMNS)), seen(generator)
    found = [log_likelihood(rounds, world(each), skipped) for each in (inputs, inputs[::-1].copy())]
    expected = []
    for rows in (inputs, inputs[::-1]):
        # θ of all rounds at once: known moves, and noise that adds up from round to round.
        theta, means = np.ones((COLUMNS, 1)), []
        for each in rounds:
            means.append((rows @ theta)[skipped:])
            assert each.residuals is not None
            gradients = rows * each.residuals
            lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
            theta = theta - STEP / ROWS * (gradients / np.maximum(lengths / 0.5, 1)).sum(
                axis=0
            ).reshape(-1, 1)
        spread = (STEP / ROWS * 0.3 * 2 * 0.5) ** 2
        steps = np.minimum.outer(np.arange(ROUNDS), np.arange(ROUNDS))
        shown = rows[skipped:]
        covariance = np.kron(steps, spread * shown @ shown.T)
        covariance += np.eye(len(covariance))
        values = np.concatenate([each.predictions[skipped:] for each in rounds]).ravel()
        expected.append(
            multivariate_normal.logpdf(values, np.concatenate(means).ravel(), covariance)
        )
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-9)


def test_worlds_that_are_the_same_are_not_distinguished(generator: Generator) -> None:
    one = world(generator.standard_normal((ROWS, COLUMNS)))
    assert world_score(seen(generator), one, one) == 0


def test_clipped_predictions_tell_nothing_of_the_weights(generator: Generator) -> None:
    """Rows far beyond the clip are at it, whatever noise on gradients does."""
    inputs = np.abs(generator.standard_normal((ROWS, COLUMNS))) * 1e6
    rounds = seen(generator)
    likelihoods = [
        log_likelihood(rounds, world(inputs, clip=1.0, gradient_noise=noise))
        for noise in (0.001, 0.002)
    ]
    expected = -sum(float(np.sum((each.predictions - 1) ** 2)) for each in rounds) / 2
    assert likelihoods == pytest.approx([expected, expected])
