"""X up to a rotation, from predictions that exact steps on full batches move.

A step from predictions h with residuals d moves them by m, within the range of X, where along an
eigenvector of E = XXᵀ (eigenvalue e) m = (e·d/N + λh)/(γ(c·e/N + λ) + μ). That is linear in E:

    E·(γc·m − d)/N = λh − (γλ + μ)m,

one equation a round and output, whatever γ, and h, d, γ and m are the label party's own figures:
Nesterov's numbers are public, so that points ahead give the iterates they are ahead of. Without
penalties both sides are 0: m is d projected, and only the range of X shows, no lengths.

Fewer equations than X has rank leave E open: what comes back is then Nyström's approximation, the
least positive semidefinite matrix that fits, of as much rank as there are equations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.gram import span_of, symmetric_solution
from securevfl.attacks.rounds import Round
from securevfl.errors import ConfigError
from securevfl.protocols.local_steps import Course, Pace


@dataclass(frozen=True, eq=False)
class ExactKnowledge:
    """Side knowledge: how the party under attack steps.

    Attributes:
        dimension: the rank of its X.
        pace: γ of the first round, and the most that it grows to.
        courses: what was said at every round.
        curvature: c.
        l2: λ.
        proximal: μ.
        accelerated: whether it exchanges ahead of its iterates.
    """

    dimension: int
    pace: Pace
    courses: Sequence[Course]
    curvature: float = 0.25
    l2: float = 0.0
    proximal: float = 0.0
    accelerated: bool = True


@dataclass(frozen=True, eq=False)
class Move:
    """One exact step as predictions show it.

    Attributes:
        scale: γ.
        start: h, shape (N, C), where the exchange took place.
        residuals: d there, shape (N, C).
        moved: m, shape (N, C): start less where the step led.
    """

    scale: float
    start: FloatArray
    residuals: FloatArray
    moved: FloatArray


def factor_from_exact_steps(rounds: Sequence[Round], knowledge: ExactKnowledge) -> FloatArray:
    """F with FFᵀ = XXᵀ, shape (N, rank): X up to a rotation.

    With fewer moves than X has rank F has a column a move and output, and FFᵀ is a part of XXᵀ.
    Without penalties F spans the range of X as orthogonal columns of mean square 1 would.

    Args:
        rounds: all of all rows, from the first on, in the same order.
        knowledge: see there.

    Raises:
        ConfigError: no step that shows.
    """
    moves = list(moves_of(rounds, knowledge))
    if not moves:
        raise ConfigError(f"rounds: {len(rounds)}, and no step between them")
    rows, l2, proximal = len(rounds[0].rows), knowledge.l2, knowledge.proximal
    if not (l2 or proximal):
        moved = np.hstack([each.moved for each in moves])
        return span_of(moved, knowledge.dimension) * sqrt(rows)
    pulled = np.hstack(
        [l2 * each.start - (each.scale * l2 + proximal) * each.moved for each in moves]
    )
    left = np.hstack(
        [(each.scale * knowledge.curvature * each.moved - each.residuals) / rows for each in moves]
    )
    # E⁻¹ from what E gives, as all noise is in `left`: a small difference of large vectors. Less
    # than there is stands for E = N, that of standardized columns.
    basis = span_of(pulled, knowledge.dimension)
    beyond = symmetric_solution(basis.T @ pulled, basis.T @ (left - pulled / rows))
    values, vectors = np.linalg.eigh(beyond + np.eye(len(beyond)) / rows)
    lengths = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > 0)
    factor: FloatArray = basis @ vectors * lengths
    return factor


def moves_of(rounds: Sequence[Round], knowledge: ExactKnowledge) -> Iterator[Move]:
    """Every step that shows between two rounds, with extrapolation and ways back undone."""
    scale, momentum, ahead = knowledge.pace.scale, 1.0, 0.0
    iterate = rounds[0].predictions
    kept: Round | None = None
    for this, course, following in zip(rounds, knowledge.courses, rounds[1:], strict=False):
        if course.back:
            scale = min(2 * scale, knowledge.pace.most)
            momentum, ahead = 1.0, 0.0
            origin = kept
        else:
            kept = this if course.keep else kept
            if knowledge.accelerated:
                grown = (1 + sqrt(1 + 4 * momentum**2)) / 2
                momentum, ahead = grown, (momentum - 1) / grown
            origin = this
        before = iterate
        iterate = (following.predictions + ahead * before) / (1 + ahead)
        if origin is not None:
            moved = origin.predictions - iterate
            yield Move(scale, origin.predictions, origin.residuals, moved)
