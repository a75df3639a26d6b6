"""How much the aggregated gradients of a job can tell about the labels.

Every distinct batch whose gradient a peer learns is P·C linear equations in the N·C residuals.
The *leakage ratio* is their number over the number of unknowns, all peers together, since peers
may collude. Above `LIMIT` a job is refused unless it says `allow_label_leak`
(docs/decisions/0010-label-guard.md: stacked row spaces of freshly shuffled batches read 98 % of
the labels after one epoch). It is a count, not a proof: rows of leverage 1 leak at any ratio.

A network's Jacobian changes with θ, so that for its party every *visit* of a batch brings new
equations. Whatever the ratio, a batch of no more rows than a peer has equations for each output
tells that peer every residual in it at once; such jobs are refused as well.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt, TypeAdapter, ValidationError

from securevfl.errors import DataError, LabelLeakRefused
from securevfl.files import replace_file

LIMIT = 1 / 8

Revealed = dict[str, dict[str, int]]
_REVEALED = TypeAdapter(dict[str, dict[str, PositiveInt]])


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
        revealed: by peer and batch: how many values the peer learned. A peer that comes back
            with another number of columns learns new equations from the same batch.
        nonlinear: the peers for which every visit of a batch counts.
        solved: by peer, the smallest batch with no more rows than the peer has columns.
    """

    rows: int
    outputs: int
    columns: Mapping[str, int]
    revealed: Revealed = field(default_factory=dict)
    nonlinear: frozenset[str] = frozenset()
    solved: dict[str, int] = field(default_factory=dict)

    def add(self, peer: str, rows: NDArray[np.int64]) -> None:
        """Count the batch of these rows for a peer.

        Once for each number of columns of a linear model; every visit of a network.
        """
        columns = self.columns[peer]
        seen = self.revealed.setdefault(peer, {})
        batch = f"{batch_digest(rows)} x {columns}"
        if peer in self.nonlinear:
            batch += " a visit"
            seen[batch] = seen.get(batch, 0) + columns * self.outputs
        else:
            seen[batch] = columns * self.outputs
        if columns >= len(rows):
            self.solved[peer] = min(len(rows), self.solved.get(peer, len(rows)))

    def include(self, revealed: Revealed) -> None:
        """Count at least as much of every batch."""
        for peer, batches in revealed.items():
            seen = self.revealed.setdefault(peer, {})
            for batch, values in batches.items():
                seen[batch] = max(values, seen.get(batch, 0))

    @property
    def ratio(self) -> float:
        """Values revealed to all peers together over the unknowns they could tell.

        Class probabilities sum to one, so C > 1 outputs hold N·(C − 1) unknowns.
        """
        values = sum(sum(batches.values()) for batches in self.revealed.values())
        return values / (self.rows * max(self.outputs - 1, 1))

    def require_below_limit(self) -> None:
        """Check the ratio, and that no batch is solved for its residuals.

        Raises:
            LabelLeakRefused: it is above `LIMIT`, or a peer has as many columns as a batch rows.
        """
        if self.ratio > LIMIT:
            batches = max((len(seen) for seen in self.revealed.values()), default=0)
            columns = sum(self.columns.values())
            visits = "batches" if not self.nonlinear else "batches, each visit of a network's,"
            fewest = columns * self.outputs > LIMIT * self.rows * max(self.outputs - 1, 1)
            remedy = "take fewer columns or more rows" if fewest else "use larger batches"
            raise LabelLeakRefused(
                f"label guard: {batches} distinct {visits} x {columns} peer columns over "
                f"{self.rows} rows give a ratio of {self.ratio:.3f}, above {LIMIT}: the "
                f"gradients would carry too much about the labels; {remedy}, or set "
                "allow_label_leak = true"
            )
        for peer, rows in self.solved.items():
            raise LabelLeakRefused(
                f"label guard: the gradient of {peer} has {self.columns[peer]} columns, enough to "
                f"solve for every residual of a batch of {rows} rows; use larger batches, or set "
                "allow_label_leak = true"
            )


def planned(
    count: LeakageCount, peers: Iterable[str], batches: Iterable[NDArray[np.int64]]
) -> LeakageCount:
    """The count as it would stand after these batches."""
    after = LeakageCount(
        count.rows,
        count.outputs,
        count.columns,
        {peer: dict(seen) for peer, seen in count.revealed.items()},
        count.nonlinear,
        dict(count.solved),
    )
    names = list(peers)
    for rows in batches:
        for peer in names:
            after.add(peer, rows)
    return after


class GuardRecord:
    """What earlier jobs on the same training rows revealed, kept across restarts.

    A job is written down as planned before it starts: a killed job cannot be forgotten.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._path = directory / f"{fingerprint[:32]}.json"

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self._path

    def load(self) -> Revealed:
        """What was revealed so far.

        Raises:
            DataError: the record is there and cannot be read; it is never taken as empty.
        """
        try:
            return _REVEALED.validate_json(self._path.read_bytes(), strict=True)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(
                f"label guard record {self._path} cannot be read: {error.strerror}"
            ) from error
        except ValidationError as error:
            raise DataError(
                f"label guard record {self._path} is damaged: {error.errors()[0]['msg']}"
            ) from error

    def save(self, revealed: Revealed) -> None:
        """Replace the record, in one step.

        Raises:
            DataError: it cannot be written; then the job must not run.
        """
        replace_file(self._path, json.dumps(revealed).encode(), "label guard record")
