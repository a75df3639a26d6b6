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

*Several jobs.* Another job on the same people that differs in anything (columns, rows, batches)
brings other equations in the same labels, and nothing in either says that they belong together but
the people. So what each job may show by itself adds up: all of it is solved at once. Parties that
pool what they saw are so many more entries of the same jobs.

*Ends.* Where the loss is least, λθ_k = −X_kᵀd/N (the intercept's entry 0): the end of a job is the
gradient of its last round, P equations in all residuals, whatever hides the rounds. As far as
training was from its end the equations are off, which `solve_labels` gauges by itself.

*Real targets*, of squared loss: d = H − y, and a party knows its own H_k of every round. From
residuals in clear y is H − d, of which it lacks the others' H alone: what of y their columns do not
say is read as it is. From gradients it has as many equations in the targets of a batch, with the
guess of H that its own best model gives; the answer is the targets nearest to that model that fit
the equations as far as they are trusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import lsqr

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import AdversaryView, Visit, replay
from securevfl.attacks.least_squares import box_least_squares
from securevfl.attacks.row_spaces import LEVERAGE_ONE, RowSpace, stacked
from securevfl.errors import ConfigError
from securevfl.models.losses import Loss

# Variance of the guess of s that equations are held to, 0.1² where s is guessed; and of H.
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


Signs = list[tuple[IntArray, FloatArray]]
"""Rows whose d shows as it is, with the labels that its sign tells, shapes (n,) and (n, C)."""


@dataclass(frozen=True, eq=False)
class SeenJob:
    """One job at one party, and who its rows are."""

    gradients: Sequence[FloatArray]  # Xᵀd/S as the attacker learned it, one a round, shapes (P, C)
    adversary: AdversaryView  # what else the party holds of that job
    people: IntArray  # of each of its rows the number among all N people, shape (rows of the job,)


@dataclass(frozen=True, eq=False)
class JobEnd:
    """What a party holds when a job is over."""

    # Its X with the intercept's column, if any, scaled as in training, shape (N, P)
    inputs: FloatArray
    parameters: FloatArray  # its θ_k, shape (P, C)
    penalty: FloatArray  # λ of every parameter, shape (P,)
    people: IntArray  # of each row the number among all people, shape (N,)


def labels_from_one_round(
    gradient: FloatArray, matrix: FloatArray, predicted: FloatArray
) -> LabelEstimate:
    """Read a batch's labels off one gradient, with no model to start from.

    `predicted` is s, shape (S, C): ½ where training starts at zero. Rows are 0 … S − 1 of the
    batch.
    """
    space = RowSpace.of(matrix)
    rows = np.arange(len(matrix))
    seen = space.coordinates(gradient * len(rows))
    visit = Visit(rows, space, seen, np.zeros_like(predicted))
    flat = np.full_like(predicted, 1 / max(predicted.shape[1], 2))
    return solve_labels([visit], [predicted], flat, KNOWN)


def labels_from_gradients(jobs: Sequence[SeenJob], own_model: FloatArray) -> LabelEstimate:
    """Read labels of all N people off all gradients of all jobs, of losses whose d is s(H) − y.

    There is one entry for each job, and for each of the parties that pool theirs. `own_model` is
    what the best model of all columns that the attacker used says of every person, probabilities of
    shape (N, 1) for class 1 or (N, C): granted, as labels that it tells are no leak.
    """
    if not jobs:
        raise ConfigError("gradients of 0 jobs, expected at least 1")
    visits: list[Visit] = []
    guesses: list[FloatArray] = []
    signs: Signs = []
    spaces: dict[tuple[bytes, bytes], RowSpace] = {}
    for job in jobs:
        loss = job.adversary.plan.rule.loss
        if loss.label_change != 1:
            raise ConfigError(f"residuals of {loss.name} loss are not s(H) - y")
        seen, last = replay(job.gradients, job.adversary)
        beyond = _predictions(loss, own_model[job.people]) - last
        guesses += [label_part(loss, visit.predictions + beyond[visit.rows]) for visit in seen]
        if loss.name in SIGN_LOSSES:
            signs += [(job.people[rows], labels) for rows, labels in _signs_at_leverage_one(seen)]
        for visit in seen:
            people = job.people[visit.rows]
            # The same columns of the same people are the same equations in whichever job.
            key = (people.tobytes(), visit.space.basis.tobytes())
            visits.append(replace(visit, rows=people, space=spaces.setdefault(key, visit.space)))
    return solve_labels(visits, guesses, own_model, GUESSED, signs)


def labels_from_ends(jobs: Sequence[JobEnd], own_model: FloatArray) -> LabelEstimate:
    """Read labels off the parameters that some jobs end with; see `labels_from_gradients`."""
    if not jobs:
        raise ConfigError("parameters of no job, expected at least 1")
    visits, guesses = [], []
    for job in jobs:
        if job.parameters.shape != (job.inputs.shape[1], own_model.shape[1]):
            raise ConfigError(
                f"parameters of shape {job.parameters.shape}, expected "
                f"{(job.inputs.shape[1], own_model.shape[1])}"
            )
        space = RowSpace.of(job.inputs)
        product = -len(job.inputs) * job.penalty[:, None] * job.parameters
        predictions = job.inputs @ job.parameters
        visits.append(Visit(job.people, space, space.coordinates(product), predictions))
        guesses.append(np.asarray(own_model[job.people]))
    return solve_labels(visits, guesses, own_model, GUESSED)


def solve_labels(
    visits: Sequence[Visit],
    guesses: Sequence[FloatArray],
    own: FloatArray,
    variance: float,
    told: Signs | tuple[()] = (),
) -> LabelEstimate:
    """The labels that fit all visits, near what the own model says, of all rows, shape (N, C).

    Guesses are s of each visit, shapes (S, C), all of one variance; the labels of some rows are
    told.
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
        (lower, upper),
        (own, variance / (spread * (1 - spread))),
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


def _signs_at_leverage_one(visits: Sequence[Visit]) -> Signs:
    told = []
    for visit in visits:
        at_one = visit.space.leverages > LEVERAGE_ONE
        if at_one.any():
            residuals = visit.space.basis[at_one] @ visit.seen
            lowest = residuals.min(axis=1, keepdims=True)
            labels = residuals <= 0 if residuals.shape[1] == 1 else residuals == lowest
            told.append((visit.rows[at_one], labels.astype(np.float64)))
    return told


def targets_from_residuals(
    residuals: Sequence[FloatArray],
    gradients: Sequence[FloatArray],
    adversary: AdversaryView,
    own_model: FloatArray,
) -> FloatArray:
    """Read targets off residuals, one a round, shapes (S, 1), and Xᵀd/S of these; shape (N,).

    `own_model` is what the best model of the attacker's columns says of every row, shape (N, 1).
    """
    visits, _ = replay(gradients, adversary)
    targets = own_model[:, 0].copy()
    for visit, values in zip(visits, residuals, strict=True):
        # The last look counts: others' H is then nearest to what their columns say of y.
        targets[visit.rows] = (visit.predictions - values)[:, 0]
    return targets


def targets_from_gradients(
    gradients: Sequence[FloatArray], adversary: AdversaryView, own_model: FloatArray
) -> FloatArray:
    """Read targets off all gradients of a job, shape (N,); see `targets_from_residuals`."""
    visits, last = replay(gradients, adversary)
    sums: dict[int, tuple[Visit, FloatArray, float]] = {}
    for visit in visits:
        beyond = visit.predictions - last[visit.rows]
        missed = visit.space.basis.T @ beyond - visit.seen
        weight = 1 / (NEAR + float(np.mean(beyond**2)))
        _, total, weights = sums.get(id(visit.space), (visit, np.zeros_like(missed), 0.0))
        sums[id(visit.space)] = visit, total + weight * missed, weights + weight
    batches = [(visit.rows, visit.space.basis) for visit, _, _ in sums.values()]
    missed = np.concatenate([total / weights for _, total, weights in sums.values()])
    matrix = stacked(len(own_model), batches)
    # What equations miss by is what the own model leaves of y, and how far guesses of H are off.
    left = max(1 - float(np.var(own_model)), GUESSED)
    off = max(float(np.mean(missed**2)) - left, GUESSED)
    moved = lsqr(matrix, missed[:, 0], damp=np.sqrt(off / left))[0]
    return np.asarray(own_model[:, 0] + moved)
