"""Labels from aggregated gradients G = Xᵀd/S, which feature parties see even under encryption.

Write d = s(H) − y, where s is σ(H) for logistic loss and softmax for more classes. A visit of a
batch shows basisᵀd of the batch's row space (see `row_spaces`). Given a guess of s, these are rank
many linear equations in the labels of the batch. The attack solves all equations together, within
0 ≤ y ≤ 1 and close to the predictions of the attacker's own model, which it is granted:

- *one round*: `labels_from_one_round`. With θ⁰ = 0 everywhere, s = ½ is known.
- *over rounds*: `labels_from_gradients`. The guess of s is the own model's, moved by how far the
  attacker's part of the joint model was from its end. Visits of the same batch are averaged, visits
  of different batches stacked.
- A wrong guess of s is mostly wrong by a function of the attacker's own columns, most of all early
  in training. This error falls on the directions in which the batch's columns are largest.
  Equations are trusted less the more they disagree with the own model in those directions.
- Rows of leverage 1 in a batch show their own d, whose sign is the label, whatever s.

One batch's gradient is the sufficient statistic of a logistic regression on that batch. It leaks,
beyond the attacker's own model, how far P parameters overfit S rows. Full batches therefore reveal
little, however often they are visited: all their gradients lie in the one row space of X, where the
labels' part Xᵀy is what the own model is fitted to anyway. The differences Xᵀ(s − s′) between
rounds reveal only what the attacker's own columns say about the others' predictions.

*Several jobs.* Another job on the same people with other columns, rows or batches gives other
equations in the same labels. What single jobs reveal adds up, so all equations are solved together.
Parties that pool their views add entries in the same way.

*Final parameters.* At the minimum of the loss λθ_k = −X_kᵀd/N (with 0 for the intercept): the end
of a job is the gradient of its last round, P equations in all residuals, whatever hides the rounds.
The equations are off as far as training was from its end, which `solve_labels` estimates.

*Real targets* of squared loss: d = H − y, and a party knows its own H_k of each round. Residuals in
clear give y = H − d, of which the attacker lacks only the others' H. Gradients give rank many
equations in the targets of a batch, with H guessed by the own model. The answer is the targets
nearest to that model that fit the equations as far as these are trusted.
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

# Variances of the error in s: where it is guessed (0.1²), and where it is known.
GUESSED, KNOWN = 1e-2, 1e-3
# Added to a guess's mean squared distance from the own model, to weight visits of a batch.
NEAR = 1e-4
# Bounds on the own model's probabilities: for its variance, and for logarithms.
MIN_PROBABILITY, LEAST = 0.02, 1e-6
# Range of the logarithm of τ, see `_trust`.
DEVIATIONS = (-12.0, 2.0)
# Equations that miss by more deviations than this are trusted less.
MOST_DEVIATIONS = 3
# Candidate variances of errors that are the same in all directions.
EVERYWHERE = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
# Losses for which d < 0 where y = 1 and d > 0 where y = 0, whatever H.
SIGN_LOSSES = {"logistic", "multinomial"}


Signs = list[tuple[IntArray, FloatArray]]
"""Rows whose own d shows, and the labels that its sign reveals: shapes (n,) and (n, C)."""


@dataclass(frozen=True, eq=False)
class SeenJob:
    """One party's view of one job."""

    gradients: Sequence[FloatArray]  # Xᵀd/S as the attacker learned it, one per round, (P, C)
    adversary: AdversaryView
    people: IntArray  # the number of each of its rows among all N people


@dataclass(frozen=True, eq=False)
class JobEnd:
    """What a party holds when a job is over."""

    inputs: FloatArray  # its X, scaled as in training, with an intercept's column if any, (N, P)
    parameters: FloatArray  # its θ_k, shape (P, C)
    penalty: FloatArray  # λ of each parameter, shape (P,)
    people: IntArray  # the number of each row among all people, shape (N,)


def labels_from_one_round(
    gradient: FloatArray, matrix: FloatArray, predicted: FloatArray
) -> LabelEstimate:
    """Read a batch's labels off one gradient, without an own model.

    `predicted` is s, shape (S, C), which is ½ if training starts at zero. The estimate numbers the
    rows of the batch from 0 to S − 1.
    """
    space = RowSpace.of(matrix)
    rows = np.arange(len(matrix))
    seen = space.coordinates(gradient * len(rows))
    visit = Visit(rows, space, seen, np.zeros_like(predicted))
    flat = np.full_like(predicted, 1 / max(predicted.shape[1], 2))
    return solve_labels([visit], [predicted], flat, KNOWN)


def fit_from_one_round(
    gradient: FloatArray, matrix: FloatArray, predicted: FloatArray
) -> FloatArray:
    """The least-squares fit of a batch's labels to its columns, shape (S, C), off one gradient.

    This is all that Xᵀy tells of y by itself; arguments as in `labels_from_one_round`.
    """
    space = RowSpace.of(matrix)
    fit = space.basis.T @ predicted - space.coordinates(gradient * len(matrix))
    return np.asarray(space.basis @ fit)


def labels_from_gradients(jobs: Sequence[SeenJob], own_model: FloatArray) -> LabelEstimate:
    """Read the labels of all N people off all gradients of some jobs, for losses with d = s(H) − y.

    There is one entry for each job and each of the parties that pool their views. `own_model` is
    the probabilities by the best model of all columns that the attackers used, shape (N, 1) for
    class 1 or (N, C).
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
            raise ConfigError(f"{loss.name} loss: its residuals are not s(H) - y")
        seen, last = replay(job.gradients, job.adversary)
        beyond = _predictions(loss, own_model[job.people]) - last
        guesses += [label_part(loss, visit.predictions + beyond[visit.rows]) for visit in seen]
        if loss.name in SIGN_LOSSES:
            signs += [(job.people[rows], labels) for rows, labels in _signs_at_leverage_one(seen)]
        for visit in seen:
            people = job.people[visit.rows]
            # The same columns of the same people give the same equations in every job.
            key = (people.tobytes(), visit.space.basis.tobytes())
            visits.append(replace(visit, rows=people, space=spaces.setdefault(key, visit.space)))
    return solve_labels(visits, guesses, own_model, GUESSED, signs)


def labels_from_ends(jobs: Sequence[JobEnd], own_model: FloatArray) -> LabelEstimate:
    """Read labels off the final parameters of some jobs; see `labels_from_gradients`."""
    if not jobs:
        raise ConfigError("parameters of 0 jobs, expected at least 1")
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
    signs: Signs | tuple[()] = (),
) -> LabelEstimate:
    """The labels of all rows that fit all visits, near the own model's, shape (N, C).

    Guesses are s of each visit, shapes (S, C), with one variance for all; `signs` fixes the labels
    of some rows.
    """
    spread = np.clip(own, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    lower, upper = np.zeros_like(own), np.ones_like(own)
    for rows, values in signs:
        lower[rows] = upper[rows] = values
    # basisᵀy = basisᵀs − basisᵀd, averaged over visits of a batch: the nearer the joint model was
    # to its end, the better the guess.
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
    for rows, values in signs:
        labels[rows] = np.where(values > 0, labels.max(), labels.min())
    binary = own.shape[1] == 1
    return LabelEstimate(np.arange(len(own)), labels - 0.5 if binary else labels)


def _trust(
    batches: Sequence[Visit], targets: Sequence[FloatArray], own: FloatArray
) -> list[FloatArray]:
    """The weights of the equations, shapes (rank,).

    If a guess is off by X·β in a batch, with β of standard deviation τ, it is off by τ·scale in
    each direction of the row space. The distance between targets and the own model has this
    variance, the labels' own, and one that is the same in all directions. τ is fitted by maximum
    likelihood.
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
    """s(H) of d = s(H) − y, shape (S, C), with one column for two classes and C for more."""
    zeros = np.zeros(len(predictions), dtype=np.int64)
    parts = loss.residuals(predictions, zeros)
    if loss.outputs > 1:
        parts[:, 0] += 1.0
    return parts


def _predictions(loss: Loss, probabilities: FloatArray) -> FloatArray:
    """H for which s(H) is these probabilities, shape (N, C)."""
    inside = np.clip(probabilities, LEAST, 1 - LEAST)
    if loss.outputs > 1:
        return np.log(inside)
    if loss.name in SIGN_LOSSES:
        return np.log(inside / (1 - inside))
    return (probabilities - label_part(loss, np.zeros_like(inside))) / loss.curvature


def _signs_at_leverage_one(visits: Sequence[Visit]) -> Signs:
    signs = []
    for visit in visits:
        at_one = visit.space.leverages > LEVERAGE_ONE
        if at_one.any():
            residuals = visit.space.basis[at_one] @ visit.seen
            lowest = residuals.min(axis=1, keepdims=True)
            labels = residuals <= 0 if residuals.shape[1] == 1 else residuals == lowest
            signs.append((visit.rows[at_one], labels.astype(np.float64)))
    return signs


def targets_from_residuals(
    residuals: Sequence[FloatArray],
    gradients: Sequence[FloatArray],
    adversary: AdversaryView,
    own_model: FloatArray,
) -> FloatArray:
    """Read targets, shape (N,), off residuals, one array per round of shape (S, 1), and Xᵀd/S.

    `own_model` is the prediction by the best model of the attacker's columns, shape (N, 1).
    """
    visits, _ = replay(gradients, adversary)
    targets = own_model[:, 0].copy()
    for visit, values in zip(visits, residuals, strict=True):
        # The last visit counts: the others' H is then closest to what their columns say about y.
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
    # Equations miss by the part of y that the own model does not explain, and by errors in H.
    left = max(1 - float(np.var(own_model)), GUESSED)
    off = max(float(np.mean(missed**2)) - left, GUESSED)
    moved = lsqr(matrix, missed[:, 0], damp=np.sqrt(off / left))[0]
    return np.asarray(own_model[:, 0] + moved)
