"""Labels from aggregated gradients G = Xᵀd/S, which encryption leaves visible.

Write d = s(H) − y: s is σ(H) for logistic loss, softmax for more classes. A visit of a batch shows
basisᵀd of the batch's row space (see `row_spaces`), so that with a guess of s it is as many
equations in the labels of the batch as its rank. The attack solves all of them together, within
0 ≤ y ≤ 1 and near what the attacker's own model says of y, which is granted:

- *one round*: `labels_from_one_round`; with θ⁰ = 0 everywhere s is ½ and no guess.
- *over rounds*: `labels_from_gradients`; s is what the own model says, moved by how far the
  attacker's part of the joint model was from its end. Every visit counts: those of the same batch
  are averaged, others stacked.
- a guess of s that is off is mostly off by a function of one's own columns, while training is far
  from its end most of all: that falls on the directions in which the batch's columns are largest,
  and equations are trusted the less the more they disagree with the own model there.
- rows of leverage 1 in a batch show their own d, whose sign is the label, whatever s.

One batch's gradient is the sufficient statistic of a logistic regression on that batch alone: what
leaks beyond the attacker's own model is how far P parameters overfit S rows. So full batches tell
little, however often they are visited: all their gradients lie in the one row space of X, where the
labels' part Xᵀy is what the own model is fitted to, and the differences Xᵀ(s − s′) between rounds
tell of the other parties' predictions what the attacker's own columns say of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.box_least_squares import Box, Prior, box_least_squares
from securevfl.attacks.gradient_visits import TrainingKnowledge, Visit, replay
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.attacks.row_spaces import LEVERAGE_ONE, RowSpace, stacked
from securevfl.errors import ConfigError
from securevfl.models.losses import Loss

# Variance of the guess of s that the equations are held to: 0.1² where s is guessed.
GUESSED, KNOWN = 1e-2, 1e-3
# What visits of the same batch are weighted by: variance of a guess that is the own model's.
NEAR = 1e-4
# What is nearly certain by the own model may still be otherwise; how certain keeps its rank.
MIN_PROBABILITY, LEAST = 0.02, 1e-6
# Logarithms of how far a guess may be off for a column of length 1.
DEVIATIONS = (-12.0, 2.0)
# What misses by more deviations than that is off for a reason of its own.
MOST_DEVIATIONS = 3
# Variances of what is off in no particular direction.
EVERYWHERE = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
# Losses for which d < 0 where y = 1 and d > 0 where y = 0, whatever H.
SIGN_LOSSES = {"logistic", "multinomial"}


@dataclass(frozen=True, eq=False)
class OneRoundKnowledge:
    """Side knowledge for one gradient.

    Attributes:
        matrix: the attacker's X of the batch, shape (S, P).
        predicted: s, shape (S, C): ½ where training starts at zero.
    """

    matrix: FloatArray
    predicted: FloatArray


def labels_from_one_round(gradient: FloatArray, knowledge: OneRoundKnowledge) -> LabelEstimate:
    """Read a batch's labels off one gradient, shape (P, C), with no model to start from.

    Returns:
        An estimate for rows 0 … S − 1 of the batch.
    """
    space = RowSpace.of(knowledge.matrix)
    rows = np.arange(len(knowledge.matrix))
    seen = space.coordinates(gradient * len(rows))
    visit = Visit(rows, space, seen, np.zeros_like(knowledge.predicted))
    flat = np.full_like(knowledge.predicted, 1 / max(knowledge.predicted.shape[1], 2))
    return solve_labels([visit], [knowledge.predicted], flat, KNOWN)


def labels_from_gradients(
    gradients: Sequence[FloatArray], knowledge: TrainingKnowledge
) -> LabelEstimate:
    """Read labels off all gradients of a job.

    Args:
        gradients: Xᵀd/S as the attacker learned it, one a round, shapes (P, C).
        knowledge: what else the attacker has.

    Returns:
        An estimate for all N rows.

    Raises:
        ConfigError: gradients that do not fit the batches or the features.
    """
    seen = told_by_gradients(gradients, knowledge)
    return solve_labels(seen.visits, seen.guesses, knowledge.own_model, GUESSED, seen.signs)


@dataclass(frozen=True, eq=False)
class Told:
    """What the gradients of a job tell, before anything is solved.

    Attributes:
        visits: what was seen.
        guesses: s of each visit, shapes (S, C).
        signs: rows whose d shows as it is, with the labels that its sign tells, shapes (n,) and
            (n, C).
    """

    visits: Sequence[Visit]
    guesses: Sequence[FloatArray]
    signs: Sequence[tuple[IntArray, FloatArray]]


def told_by_gradients(gradients: Sequence[FloatArray], knowledge: TrainingKnowledge) -> Told:
    """Repeat a party's training, and guess s of every visit.

    Raises:
        ConfigError: gradients that do not fit the batches or the features, or a loss whose d is
            not s(H) − y.
    """
    loss = knowledge.plan.rule.loss
    if loss.label_change != 1:
        raise ConfigError(f"residuals of {loss.name} loss are not s(H) - y")
    visits, last = replay(gradients, knowledge)
    beyond = _predictions(loss, knowledge.own_model) - last
    guesses = [label_part(loss, visit.predictions + beyond[visit.rows]) for visit in visits]
    signs = _signs_at_leverage_one(visits) if loss.name in SIGN_LOSSES else []
    return Told(visits, guesses, signs)


def solve_labels(
    visits: Sequence[Visit],
    guesses: Sequence[FloatArray],
    own: FloatArray,
    variance: float,
    told: Sequence[tuple[IntArray, FloatArray]] = (),
) -> LabelEstimate:
    """The labels that fit all visits, near what the attacker's own model says.

    Args:
        visits: what was seen.
        guesses: s of each visit, shapes (S, C).
        own: the own model's probabilities of all rows, shape (N, C).
        variance: of the guesses.
        told: rows whose labels are known, with these, shapes (n,) and (n, C).
    """
    spread = np.clip(own, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    lower, upper = np.zeros_like(own), np.ones_like(own)
    for rows, values in told:
        lower[rows] = upper[rows] = values
    # d = s − y, so that basisᵀy = basisᵀs − basisᵀd. Of the same batch on average: the nearer the
    # joint model was to its end, the better the guess.
    sums: dict[int, tuple[FloatArray, float]] = {}
    for visit, guess in zip(visits, guesses, strict=True):
        weight = 1 / (NEAR + float(np.mean((guess - own[visit.rows]) ** 2)))
        total, weights = sums.get(id(visit.space), (np.zeros_like(visit.seen), 0.0))
        target = visit.space.basis.T @ guess - visit.seen
        sums[id(visit.space)] = total + weight * target, weights + weight
    batches = list({id(visit.space): visit for visit in visits}.values())
    targets = [total / weights for total, weights in sums.values()]
    trust = [np.ones(len(target)) for target in targets]
    if variance >= GUESSED:
        trust = _trust(batches, targets, own)
    count = np.bincount(np.concatenate([batch.rows for batch in batches]), minlength=len(own))
    labels = box_least_squares(
        stacked(
            len(own),
            [
                (batch.rows, batch.space.basis * share)
                for batch, share in zip(batches, trust, strict=True)
            ],
        ),
        np.concatenate(targets) * np.concatenate(trust)[:, None],
        count.astype(np.float64),
        Box(lower, upper),
        Prior(own, variance / (spread * (1 - spread))),
    )
    for rows, values in told:
        labels[rows] = np.where(values > 0, labels.max(), labels.min())
    binary = own.shape[1] == 1
    return LabelEstimate(np.arange(len(own)), labels - 0.5 if binary else labels)


def _trust(
    batches: Sequence[Visit], targets: Sequence[FloatArray], own: FloatArray
) -> list[FloatArray]:
    """What each equation is multiplied by, shapes (rank,).

    A guess that is off by X·β in a batch, β of deviation τ, is off by τ·scale in each direction of
    its row space. Beside the labels' own variance and one that is the same in all directions, that
    makes how far targets are from what the own model says; the most likely τ is taken.
    """
    spread = own * (1 - own)
    scales = np.concatenate([batch.space.scales for batch in batches])[:, None]
    expected = np.concatenate([(each.space.basis**2).T @ spread[each.rows] for each in batches])
    pairs = zip(batches, targets, strict=True)
    missed = np.concatenate(
        [target - each.space.basis.T @ own[each.rows] for each, target in pairs]
    )

    def unlikelihood(log_deviation: float, everywhere: float) -> float:
        total = expected + (np.exp(log_deviation) * scales) ** 2 + everywhere
        return float(np.sum(np.log(total) + missed**2 / total))

    fits = [
        minimize_scalar(unlikelihood, bounds=DEVIATIONS, args=(each,), method="bounded")
        for each in EVERYWHERE
    ]
    best = min(range(len(fits)), key=lambda number: fits[number].fun)
    off = (np.exp(fits[best].x) * scales[:, 0]) ** 2
    beyond = missed**2 / (expected + off[:, None] + EVERYWHERE[best])
    unexplained = np.maximum(beyond.max(axis=1) / MOST_DEVIATIONS**2, 1)
    trust = np.sqrt(GUESSED / (GUESSED + off) / unexplained)
    ends = np.cumsum([len(target) for target in targets])[:-1]
    return np.split(trust, ends)


def label_part(loss: Loss, predictions: FloatArray) -> FloatArray:
    """s(H) of d = s(H) − y, shape (S, C); y as one column of 0 and 1 or one for each class."""
    zeros = np.zeros(len(predictions), dtype=np.int64)
    parts = loss.residuals(predictions, zeros)
    if loss.outputs > 1:
        parts[:, 0] += 1.0
    return parts


def _predictions(loss: Loss, probabilities: FloatArray) -> FloatArray:
    """H with s(H) of these probabilities, shape (N, C)."""
    inside = np.clip(probabilities, LEAST, 1 - LEAST)
    if loss.outputs > 1:
        return np.log(inside)
    if loss.name in SIGN_LOSSES:
        return np.log(inside / (1 - inside))
    return (probabilities - label_part(loss, np.zeros_like(inside))) / loss.curvature


def _signs_at_leverage_one(visits: Sequence[Visit]) -> list[tuple[IntArray, FloatArray]]:
    """The rows whose d shows as it is, and the labels that their signs tell."""
    told = []
    for visit in visits:
        at_one = visit.space.leverages > LEVERAGE_ONE
        if at_one.any():
            residuals = visit.space.basis[at_one] @ visit.seen
            lowest = residuals.min(axis=1, keepdims=True)
            labels = residuals <= 0 if residuals.shape[1] == 1 else residuals == lowest
            told.append((visit.rows[at_one], labels.astype(np.float64)))
    return told
