"""X up to a rotation, from predictions: what Theorem 1 leaves to the label party.

*Full batches.* Local steps of a linear model move its predictions by functions of XXᵀ alone:
H' = H − g(XXᵀ)·d for the residuals d, with g(κ) = η Σ_{j<Q} (1 − η(cκ/S + μ))^j κ/S: one step is
ηXXᵀ/S, and the curvature rule's refreshed own part is in the sum. All H lie in the range of X;
within it rank X rounds fix the symmetric g(XXᵀ), and its eigenvalues those of XXᵀ, g being
monotone.

*Minibatches of any kind at Q = 1.* What moves a row's prediction between two of its visits is its
row of −XXᵀ times the steps that all rows took in between: linear in that row, with N unknowns, so
that more visits than rows solve for it.

*Exact steps on full batches.* A step from predictions h with residuals d moves them by m, within
the range of X, where along an eigenvector of E = XXᵀ (eigenvalue e)
m = (e·d/N + λh)/(γ(c·e/N + λ) + μ). That is linear in E:

    E·(γc·m − d)/N = λh − (γλ + μ)m,

one equation a round and output, whatever γ, and h, d, γ and m are the label party's own figures:
Nesterov's numbers are public, so that points ahead give the iterates they are ahead of. Without
penalties both sides are 0: m is d projected, and only the range of X shows, no lengths. Fewer
equations than X has rank leave E open: what comes back is then Nyström's approximation, the least
positive semidefinite matrix that fits, of as much rank as there are equations.

The figures are the label party's own: it has H of every round and computes d itself.
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
    rule: LocalRule  # of which λ is known with Q = 1 only
    step_sizes: Sequence[float]  # η of every round


def factor_from_full_batches(rounds: Sequence[SeenRound], knowledge: GramKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank): X up to a rotation; from two rounds of all rows."""
    if len(rounds) < 2:  # noqa: PLR2004
        raise ConfigError(f"rounds: {len(rounds)}, expected at least 2")
    if knowledge.rule.l2 and knowledge.rule.local_steps > 1:
        raise ConfigError("l2 with several local steps: this attack does not separate the two")
    rows, size = len(rounds[0].rows), knowledge.dimension
    etas = np.asarray(knowledge.step_sizes[: len(rounds) - 1])
    if knowledge.rule.local_steps > 1 and np.ptp(etas) > 0:
        raise ConfigError("step sizes that change with several local steps: not separated")
    # With Q = 1 every round is brought to η = 1, so that g(XXᵀ) = XXᵀ/S.
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
    """The symmetric matrix that takes `given` to `result`, shapes (rank, moves), by least squares.

    In the singular basis of `given` both of two mirrored entries are measured, with errors like the
    inverses of their columns' singular values; what no column tells stays 0, and what noise drowns
    is shrunk.
    """
    # Directions that no move has come with scale 0.
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
    """F with FFᵀ = XXᵀ, shape (N, rank), from two visits or more of each fixed batch.

    A batch's predictions span the range of X_b, with an orthonormal basis_b: X_b = basis_b·square_b
    for an unknown matrix square_b. Between two visits of b its coordinates basis_bᵀH_b move by −Σ
    square_b·square_b'ᵀ·steps_b'·basis_b'ᵀd_b' over the batches in between, with steps_b' what local
    steps make of one: linear in rank X numbers for each batch, for each coordinate. So about rank X
    visits of every batch for each batch there is solve for all of it; the batch's own block is g,
    which gives square_b·square_bᵀ and with it steps_b. It takes one step size, and no L2.
    """
    etas = np.asarray(knowledge.step_sizes[: len(rounds)])
    if knowledge.rule.l2 or np.ptp(etas) > 0:
        raise ConfigError("l2 or changing step sizes: this attack does not separate them")
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
            raise ConfigError("a batch was visited once: two visits are needed to see it move")
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
    visits: list[int]  # the rounds that took it
    basis: FloatArray  # of its predictions' span, shape (S, rank at most)
    span: slice  # where its coordinates stand among those of all batches


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
    """Each square_b below the last, shape (all, rank), from blocks square_b·square_b'ᵀ·steps_b'."""
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
    """An orthonormal basis of what the predictions span, with at most so many columns."""
    basis, scales, _ = np.linalg.svd(predictions, full_matrices=False)
    kept = scales[:size] > np.finfo(np.float64).eps * scales[0]
    return basis[:, :size][:, kept]


def _steps(kappas: FloatArray, eta: float, rows: int, knowledge: GramKnowledge) -> FloatArray:
    """steps(κ) = η Σ_{j<Q} (1 − η(cκ/S + μ))^j, what Q local steps make of one."""
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

    # Beyond this the first step overshoots and g need not grow: no stable job is there, noise is.
    most = rows * (1 / eta - knowledge.rule.proximal) / max(knowledge.rule.curvature, 1e-12)
    most = min(most, 1e12)
    if moved(most) < value:
        return 0.0
    return float(brentq(lambda kappa: moved(kappa) - value, 0.0, most, xtol=1e-14 * most))


def factor_from_minibatches(
    rounds: Sequence[SeenRound], rows: int, eta: float, dimension: int
) -> FloatArray:
    """F with FFᵀ nearest to XXᵀ, shape (N, rank), from rounds of one step, without penalties.

    η is the same in all rounds, `dimension` the rank of X.
    """
    if rows > MOST_ROWS:
        raise ConfigError(f"rows: {rows}, this attack takes up to {MOST_ROWS}")
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
    pace: Pace  # γ of the first round, and the most that it grows to
    decisions: Sequence[Decision]  # of early stopping, by round


Move = tuple[float, FloatArray, FloatArray, FloatArray]
"""One exact step: γ, then h, d there and m (start less where the step led), shapes (N, C)."""


def factor_from_exact_steps(rounds: Sequence[SeenRound], knowledge: ExactKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank): X up to a rotation, from the first rounds, of all rows.

    With fewer moves than X has rank F has a column a move and output, and FFᵀ is a part of XXᵀ.
    Without penalties F spans the range of X as orthogonal columns of mean square 1 would.
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
    # E⁻¹ from what E gives, as all noise is in `left`: a small difference of large vectors. Less
    # than there is stands for E = N, that of standardized columns.
    basis = span_of(pulled, knowledge.dimension)
    beyond = symmetric_solution(basis.T @ pulled, basis.T @ (left - pulled / rows))
    values, vectors = np.linalg.eigh(beyond + np.eye(len(beyond)) / rows)
    lengths = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > 0)
    return np.asarray(basis @ vectors * lengths)


def _moves(rounds: Sequence[SeenRound], knowledge: ExactKnowledge) -> Iterator[Move]:
    """Every step that shows between two rounds, with extrapolation and ways back undone."""
    scale, momentum, ahead = knowledge.pace.scale, 1.0, 0.0
    iterate = rounds[0].predictions
    kept: SeenRound | None = None
    for this, decision, following in zip(rounds, knowledge.decisions, rounds[1:], strict=False):
        if decision.backtrack:
            scale = min(2 * scale, knowledge.pace.most)
            momentum, ahead = 1.0, 0.0
            origin = kept
        else:
            kept = this if decision.best else kept
            if knowledge.rule.accelerated:
                grown = (1 + sqrt(1 + 4 * momentum**2)) / 2
                momentum, ahead = grown, (momentum - 1) / grown
            origin = this
        before = iterate
        iterate = (following.predictions + ahead * before) / (1 + ahead)
        if origin is not None:
            moved = origin.predictions - iterate
            yield scale, origin.predictions, origin.residuals, moved
