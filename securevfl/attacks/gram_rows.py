"""XXᵀ row by row, from minibatches of any kind at Q = 1.

What moves a row's prediction between two of its visits is its row of −XXᵀ times the steps that all
rows took in between: linear in that row, with N unknowns, so that more visits than rows solve for
it. Batches of a fixed partition need far fewer, see `gram`; here
they may be reshuffled.
"""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.ridge import ridge_solution
from securevfl.attacks.rounds import Round
from securevfl.errors import ConfigError

MOST_ROWS = 600


def factor_from_minibatches(
    rounds: Sequence[Round], rows: int, eta: float, dimension: int
) -> FloatArray:
    """F with FFᵀ nearest to XXᵀ, shape (N, rank).

    Args:
        rounds: in order, of one local step each, without penalties.
        rows: N.
        eta: η, the same in all rounds.
        dimension: the rank of X.

    Raises:
        ConfigError: more than `MOST_ROWS` rows.
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
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = slice(-dimension, None)
    factor: FloatArray = vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0.0))
    return factor
