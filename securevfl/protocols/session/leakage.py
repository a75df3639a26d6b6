"""How many equations about the labels the gradients of a job are.

Every distinct batch whose gradient a peer learns is P·C linear equations in the N·C residuals.
The *leakage ratio* is their number over the number of unknowns, all peers together, since peers
may collude. A network's Jacobian changes with θ, so that for its party every *visit* of a batch
brings new equations; and where local steps repeat products (`he_per_step`), every product counts,
of whatever model. What the guard allows is not this ratio, see `person_record`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Revealed = dict[str, dict[str, int]]


def batch_digest(rows: NDArray[np.int64]) -> str:
    """Names a batch by its rows, whatever their order."""
    return hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()[:24]


@dataclass
class LeakageCount:
    """Distinct batches whose products were decrypted for each peer.

    Attributes:
        rows: N, training rows.
        outputs: C.
        columns: P of every peer.
        revealed: by peer and batch: how many values the peer learned.
        nonlinear: the peers for which every product of a batch counts.
    """

    rows: int
    outputs: int
    columns: Mapping[str, int]
    revealed: Revealed = field(default_factory=dict)
    nonlinear: frozenset[str] = frozenset()

    def add(self, peer: str, rows: NDArray[np.int64]) -> None:
        """Count a product of the batch of these rows for a peer: once, or every one."""
        seen, batch = self.revealed.setdefault(peer, {}), batch_digest(rows)
        before = seen.get(batch, 0) if peer in self.nonlinear else 0
        seen[batch] = before + self.columns[peer] * self.outputs

    @property
    def ratio(self) -> float:
        """Values revealed to all peers together over the unknowns they could tell.

        Class probabilities sum to one, so C > 1 outputs hold N·(C − 1) unknowns.
        """
        values = sum(sum(batches.values()) for batches in self.revealed.values())
        return values / (self.rows * max(self.outputs - 1, 1))
