"""X up to a rotation, from predictions: what Theorem 1 leaves to the label party.

The label party has H of each round and computes d itself.

*Full batches.* Local steps of a linear model move its predictions by a function of XXᵀ alone:
H' = H − g(XXᵀ)·d for residuals d, with g(κ) = η Σ_{j<Q} (1 − η(cκ/S + μ))^j κ/S. One step is
ηXXᵀ/S; the sum contains the part of the residuals that the curvature rule refreshes. All H lie in
the range of X. Within it rank X rounds determine the symmetric g(XXᵀ), and its eigenvalues give
those of XXᵀ because g is monotone.

*Minibatches of any kind at Q = 1.* Between two visits a row's prediction moves by its row of −XXᵀ
times the steps of all rows in between. This is linear in that row of N unknowns, so more visits
than rows determine it.

*Exact steps on full batches.* A step from predictions h with residuals d moves them by m within the
range of X. Along an eigenvector of E = XXᵀ with eigenvalue e, m = (e·d/N + λh)/(γ(c·e/N + λ) + μ).
This is linear in E:

    E·(γc·m − d)/N = λh − (γλ + μ)m,

one equation per round and output for any γ. The label party knows h, d, γ and m; as Nesterov's
numbers are public, extrapolated points give the iterates. Without penalties both sides are 0: m is
d projected, and only the range of X shows, without lengths. Fewer equations than the rank of X
leave E undetermined. The result is then Nyström's approximation, the smallest positive semidefinite
matrix that fits, with the equations' number as its rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.optimize import brentq

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.adversary_view import SeenRound
from securevfl.attacks.least_squares import ridge_solution, shrinkage
from securevfl.errors import ConfigError
from securevfl.protocols.local_steps import LocalRule, Pace
from securevfl.protocols.session.early_stopping import Decision

MOST_ROWS = 600


@dataclass(frozen=True)
class GramKnowledge:
    """Side knowledge: how the party under attack steps."""

    dimension: int  # the rank of its X
    rule: LocalRule  # l2 only with Q = 1
    step_sizes: Sequence[float]  # η of each round


def factor_from_full_batches(rounds: Sequence[SeenRound], knowledge: GramKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank): X up to a rotation, from at least two full batches."""
    if len(rounds) < 2:  # noqa: PLR2004
        raise ConfigError(f"rounds: {len(rounds)}, expected at least 2")
    if knowledge.rule.l2 and knowledge.rule.local_steps > 1:
        raise ConfigError("l2 with several local steps: this attack does not support both")
    rows, size = len(rounds[0].rows), knowledge.dimension
    etas = np.asarray(knowledge.step_sizes[: len(rounds) - 1])
    if knowledge.rule.local_steps > 1 and np.ptp(etas) > 0:
        raise ConfigError("a schedule of step sizes with several local steps is not supported")
    # With Q = 1 every round is scaled to η = 1, so that g(XXᵀ) = XXᵀ/S.
    scales = etas if knowledge.rule.local_steps == 1 else np.ones_like(etas)
    before = [each.predictions for each in rounds[:-1]]
    moved = np.hstack(
        [
            ((1 - eta * knowledge.rule.l2) * one - two.predictions) / scale
            for one, two, eta, scale in zip(before, rounds[1:], etas, scales, strict=True)
        ]
    )
    residuals = np.hstack([each.residuals for each in rounds[:-1]])
    predictions = np.hstack([each.predictions for each in rounds])
    basis = span_of(predictions, size)
    inner = symmetric_solution(basis.T @ residuals, basis.T @ moved)
    values, vectors = np.linalg.eigh(inner)
    eta = 1.0 if knowledge.rule.local_steps == 1 else float(etas[0])
    kappas = [_inverse(value, eta, rows, knowledge) for value in values]
    return np.asarray(basis @ vectors * np.sqrt(np.maximum(kappas, 0.0)))


def symmetric_solution(given: FloatArray, result: FloatArray) -> FloatArray:
    """The symmetric matrix that maps `given` to `result`, shapes (rank, moves), by least squares.

    In the singular basis of `given` each entry is measured twice, with errors inverse to the
    columns' singular values. Entries without any measurement stay 0, noisy ones are shrunk.
    """
    # Directions that no move has get scale 0.
    missing = max(given.shape[0] - given.shape[1], 0)
    left, scales, right = np.linalg.svd(given, full_matrices=missing > 0)
    scales, right = np.pad(scales, (0, missing)), np.pad(right, ((0, missing), (0, 0)))
    projected = right @ result.T
    outside = float(np.sum(result**2) - np.sum(projected**2))
    penalty = shrinkage(
        scales[scales > 0], projected[scales > 0], max(outside, 0.0), result.shape[1]
    )
    turned = left.T @ projected.T * scales
    weights = scales[:, None] ** 2 + scales[None, :] ** 2 + 2 * penalty
    inner = np.divide(turned + turned.T, weights, out=np.zeros_like(turned), where=weights > 0)
    return np.asarray(left @ inner @ left.T)


def factor_from_fixed_batches(rounds: Sequence[SeenRound], knowledge: GramKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank), from at least two visits of each fixed batch.

    A batch's predictions span the range of X_b: X_b = basis_b·square_b with an orthonormal basis_b
    and an unknown matrix square_b. Between two visits of b the coordinates basis_bᵀH_b move by
    −Σ square_b·square_b'ᵀ·steps_b'·basis_b'ᵀd_b' over the batches in between, where steps_b' is the
    effect of the local steps. Each coordinate is linear in rank X unknowns per batch, so about
    rank X visits of each batch, times the number of batches, determine all of them. The batch's own
    block is g, which gives square_b·square_bᵀ and thereby steps_b. The step size must be constant,
    without L2.
    """
    etas = np.asarray(knowledge.step_sizes[: len(rounds)])
    if knowledge.rule.l2 or np.ptp(etas) > 0:
        raise ConfigError("this attack supports neither l2 nor a schedule of step sizes")
    places = _fixed_batches(rounds, knowledge.dimension)
    width = places[-1].span.stop
    pushed = np.zeros((len(rounds), width, rounds[0].residuals.shape[1]))
    for place in places:
        for index in place.visits:
            pushed[index, place.span] = place.basis.T @ rounds[index].residuals
    total = np.concatenate([np.zeros_like(pushed[:1]), np.cumsum(pushed, axis=0)])
    moves = []
    for place in places:
        if len(place.visits) < 2:  # noqa: PLR2004
            raise ConfigError("a batch was visited once: this attack needs two visits of each")
        between = np.diff(total[place.visits], axis=0).transpose(0, 2, 1).reshape(-1, width)
        seen = [place.basis.T @ rounds[index].predictions for index in place.visits]
        moved = -np.diff(seen, axis=0).transpose(0, 2, 1).reshape(-1, place.basis.shape[1])
        moves.append(ridge_solution(between, moved).T)
    coordinates = _coordinates(np.vstack(moves), places, knowledge, float(etas[0]))
    factor = np.zeros((1 + max(int(place.rows.max()) for place in places), coordinates.shape[1]))
    for place in places:
        factor[place.rows] = place.basis @ coordinates[place.span]
    return factor


@dataclass(frozen=True, eq=False)
class FixedBatch:
    """A batch of a fixed partition."""

    rows: IntArray
    visits: list[int]  # its rounds
    basis: FloatArray  # of its predictions' span, shape (S, rank at most)
    span: slice  # the place of its coordinates among those of all batches


def _fixed_batches(rounds: Sequence[SeenRound], size: int) -> list[FixedBatch]:
    visits: dict[bytes, list[int]] = {}
    for index, each in enumerate(rounds):
        visits.setdefault(each.rows.tobytes(), []).append(index)
    places, start = [], 0
    for indices in visits.values():
        basis = span_of(np.hstack([rounds[index].predictions for index in indices]), size)
        span = slice(start, start + basis.shape[1])
        places.append(FixedBatch(rounds[indices[0]].rows, indices, basis, span))
        start = span.stop
    return places


def _coordinates(
    moves: FloatArray, places: Sequence[FixedBatch], knowledge: GramKnowledge, eta: float
) -> FloatArray:
    """All square_b, stacked, shape (all, rank), from blocks square_b·square_b'ᵀ·steps_b'."""
    inner = np.empty_like(moves)
    for place in places:
        block = moves[place.span, place.span]
        values, vectors = np.linalg.eigh((block + block.T) / 2)
        kappas = np.array([_inverse(value, eta, len(place.rows), knowledge) for value in values])
        steps = _steps(kappas, eta, len(place.rows), knowledge) / len(place.rows)
        inner[:, place.span] = moves[:, place.span] @ (vectors / steps) @ vectors.T
    return _factor_of(inner, knowledge.dimension)


def _factor_of(gram: FloatArray, dimension: int) -> FloatArray:
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = slice(-dimension, None)
    return np.asarray(vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0.0)))


def span_of(predictions: FloatArray, size: int) -> FloatArray:
    """An orthonormal basis of the predictions' span, with at most `size` columns."""
    basis, scales, _ = np.linalg.svd(predictions, full_matrices=False)
    kept = scales[:size] > np.finfo(np.float64).eps * scales[0]
    return basis[:, :size][:, kept]


def _steps(kappas: FloatArray, eta: float, rows: int, knowledge: GramKnowledge) -> FloatArray:
    """steps(κ) = η Σ_{j<Q} (1 − η(cκ/S + μ))^j, the effect of Q local steps."""
    shrink = 1 - eta * (knowledge.rule.curvature * kappas / rows + knowledge.rule.proximal)
    steps: FloatArray = eta * np.sum(
        [shrink**step for step in range(knowledge.rule.local_steps)], axis=0
    )
    return steps


def _inverse(value: float, eta: float, rows: int, knowledge: GramKnowledge) -> float:
    if value <= 0:
        return 0.0
    if knowledge.rule.local_steps == 1:
        return value * rows / eta

    def moved(kappa: float) -> float:
        return float(_steps(np.array([kappa]), eta, rows, knowledge)[0]) * kappa / rows

    # Beyond this the first step overshoots and g may not grow: no stable job has such eigenvalues.
    most = rows * (1 / eta - knowledge.rule.proximal) / max(knowledge.rule.curvature, 1e-12)
    most = min(most, 1e12)
    if moved(most) < value:
        return 0.0
    return float(brentq(lambda kappa: moved(kappa) - value, 0.0, most, xtol=1e-14 * most))


def factor_from_minibatches(
    rounds: Sequence[SeenRound], rows: int, eta: float, dimension: int
) -> FloatArray:
    """F with FFᵀ nearest to XXᵀ, shape (N, rank), from rounds of one step, without penalties.

    η is the same in all rounds; `dimension` is the rank of X.
    """
    if rows > MOST_ROWS:
        raise ConfigError(f"rows: {rows}, this attack supports up to {MOST_ROWS}")
    outputs = rounds[0].residuals.shape[1]
    pushed = np.zeros((len(rounds) + 1, rows, outputs))
    visits: list[list[int]] = [[] for _ in range(rows)]
    places: list[list[FloatArray]] = [[] for _ in range(rows)]
    for index, each in enumerate(rounds):
        pushed[index + 1, each.rows] = eta / len(each.rows) * each.residuals
        for row, predicted in zip(each.rows, each.predictions, strict=True):
            visits[row].append(index)
            places[row].append(predicted)
    total = np.cumsum(pushed, axis=0)
    gram = np.zeros((rows, rows))
    for row in range(rows):
        if len(visits[row]) > 1:
            between = np.diff(total[visits[row]], axis=0).transpose(0, 2, 1).reshape(-1, rows)
            moved = -np.diff(np.array(places[row]), axis=0).reshape(-1, 1)
            gram[row] = ridge_solution(between, moved)[:, 0]
    return _factor_of(gram, dimension)


@dataclass(frozen=True, eq=False)
class ExactKnowledge:
    """Side knowledge: how the party under attack steps."""

    dimension: int  # the rank of its X
    rule: LocalRule
    pace: Pace  # γ of the first round, and its maximum
    decisions: Sequence[Decision]  # of early stopping, by round


Move = tuple[float, FloatArray, FloatArray, FloatArray]
"""One exact step: γ, then h, d at h, and m = h − the predictions after it, shapes (N, C)."""


def factor_from_exact_steps(rounds: Sequence[SeenRound], knowledge: ExactKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank): X up to a rotation, from the first full batches.

    With fewer moves than the rank of X, F has a column per move and output, and FFᵀ is a part of
    XXᵀ. Without penalties F is orthogonal columns of mean square 1 that span the range of X.
    """
    moves = list(_moves(rounds, knowledge))
    if not moves:
        raise ConfigError(f"rounds: {len(rounds)}, and no step between them")
    rows, l2, proximal = len(rounds[0].rows), knowledge.rule.l2, knowledge.rule.proximal
    if not (l2 or proximal):
        moved = np.hstack([moved for *_, moved in moves])
        return span_of(moved, knowledge.dimension) * sqrt(rows)
    pulled = np.hstack(
        [l2 * start - (scale * l2 + proximal) * moved for scale, start, _, moved in moves]
    )
    left = np.hstack(
        [(scale * knowledge.rule.loss.curvature * moved - d) / rows for scale, _, d, moved in moves]
    )
    # Solve for E⁻¹, as all noise is in `left`, a small difference of large vectors. The solution is
    # relative to E = N, that of standardized columns, which missing equations then stand for.
    basis = span_of(pulled, knowledge.dimension)
    beyond = symmetric_solution(basis.T @ pulled, basis.T @ (left - pulled / rows))
    values, vectors = np.linalg.eigh(beyond + np.eye(len(beyond)) / rows)
    lengths = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > 0)
    return np.asarray(basis @ vectors * lengths)


def _moves(rounds: Sequence[SeenRound], knowledge: ExactKnowledge) -> Iterator[Move]:
    """All steps between two rounds, with extrapolation and restored checkpoints undone."""
    scale, momentum, extrapolation = knowledge.pace.scale, 1.0, 0.0
    iterate = rounds[0].predictions
    kept: SeenRound | None = None
    for this, decision, following in zip(rounds, knowledge.decisions, rounds[1:], strict=False):
        if decision.backtrack:
            scale = min(2 * scale, knowledge.pace.most)
            momentum, extrapolation = 1.0, 0.0
            origin = kept
        else:
            kept = this if decision.best else kept
            if knowledge.rule.accelerated:
                grown = (1 + sqrt(1 + 4 * momentum**2)) / 2
                momentum, extrapolation = grown, (momentum - 1) / grown
            origin = this
        before = iterate
        iterate = (following.predictions + extrapolation * before) / (1 + extrapolation)
        if origin is not None:
            moved = origin.predictions - iterate
            yield scale, origin.predictions, origin.residuals, moved
