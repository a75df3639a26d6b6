"""The server's part of a round: pure functions that update θ from sums of uploads.

Source: FedBCGD (ACM MM 2024), algorithms 1 and 2.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, PeerViolation, TrainingDiverged
from securevfl.horizontal.client import Upload
from securevfl.horizontal.federation import Adam, Blocks, Federation, Method


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's state between rounds: vectors of shape (p,) and one dtype.

    Attributes:
        round_index: of the round that comes next, counted from 0.
        weights: θ.
        velocity: of momentum, or Adam's first moment.
        second_moment: Adam's; empty without it.
        control: κ, the mean over all M clients of their κ_j; empty without control variates.
        drift: FedDC's mean of all clients' drifts; empty without it.
    """

    round_index: int
    weights: RealArray
    velocity: RealArray
    second_moment: RealArray
    control: RealArray
    drift: RealArray

    @classmethod
    def start(cls, weights: RealArray, method: Method) -> "ServerState":
        """The state before the first round, with a copy of θ; a ConfigError if that is invalid."""
        vector = weights.ndim == 1 and weights.dtype in (np.float32, np.float64)
        if not (vector and np.isfinite(weights).all()):
            raise ConfigError(
                f"weights of {weights.dtype} {weights.shape}: expected a finite vector of float32 "
                "or float64"
            )
        zeros, nothing = np.zeros_like(weights), weights[:0].copy()
        return cls(
            0,
            weights.copy(),
            zeros,
            nothing if method.adam is None else np.full_like(weights, method.adam.floor**2),
            zeros if method.corrects else nothing,
            zeros if method.correction == "drift" else nothing,
        )


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over a round's uploads, which is all that the server needs.

    Attributes:
        changes: of θ − θ⁰ over the clients that uploaded an entry, shape (p,).
        controls: of the changes of κ_j of the same, shape (p,); empty without control variates.
        uploads: by block, how many clients uploaded it.
    """

    changes: RealArray
    controls: RealArray
    uploads: tuple[int, ...]


def total(blocks: Blocks, uploads: Iterable[Upload]) -> Totals:
    """The sums of uploads in the order of clients; a PeerViolation if a block has none."""
    ordered = sorted(uploads, key=lambda each: each.client)
    counts = tuple(sum(each.block == block for each in ordered) for block in range(len(blocks)))
    if not all(counts):
        raise PeerViolation(f"block {counts.index(0)}: no client uploaded it")
    changes = np.zeros(blocks.parameters, ordered[0].changes.dtype)
    controls = np.zeros_like(changes) if ordered[0].controls.size else changes[:0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for upload in ordered:
            entries = blocks.uploaded(upload.block)
            changes[entries] += upload.changes
            if controls.size:
                controls[entries] += upload.controls
    return Totals(changes, controls, counts)


def aggregate(state: ServerState, federation: Federation, totals: Totals) -> ServerState:
    """θ, velocity and κ after a round.

    The mean change is by entry over the clients that uploaded it: a block's group, or all of the
    shared block. Then, block by block,

    - velocity ← χ·velocity + mean change, θ ← θ + velocity (FedBCGD, algorithm 1; FedAvg at χ = 0,
      FedAvgM with one block). Departure: line 24 as printed adds the velocity to the mean of
      uploaded weights, which holds the mean change already;
    - under Adam see `Adam`; FedDC adds the mean of all M drifts to the mean change (Gao et al.
      2022, algorithm 1, as their public code sums it);
    - κ ← κ + (sum of the changes of κ_j)/M (FedBCGD+, algorithm 2; SCAFFOLD, algorithm 1).
      Departure: equation (6) as printed divides by b once more for the shared block, which would
      leave κ there b times too small.

    Raises:
        TrainingDiverged: θ or κ is no longer finite.
    """
    method, blocks, clients = federation.method, federation.blocks, federation.settings.clients
    dtype = state.weights.dtype
    counts = np.full(blocks.parameters, sum(totals.uploads), dtype)
    for entries, count in zip(blocks.own, totals.uploads, strict=True):
        counts[entries] = count
    with np.errstate(over="ignore", invalid="ignore"):
        change = totals.changes / counts
        after = replace(state, round_index=state.round_index + 1)
        if method.correction == "drift":
            drift = state.drift + totals.changes / dtype.type(clients)
            after = replace(after, drift=drift, weights=state.weights + change + drift)
        elif method.adam is not None:
            after = _adaptive(after, method.adam, change)
        else:
            velocity = dtype.type(method.momentum) * state.velocity + change
            after = replace(after, velocity=velocity, weights=state.weights + velocity)
        if method.corrects:
            control = state.control + totals.controls / dtype.type(clients)
            after = replace(after, control=control)
    if not (np.isfinite(after.weights).all() and np.isfinite(after.control).all()):
        raise TrainingDiverged(
            f"{method.name} diverged in round {state.round_index} at learning rate "
            f"{federation.settings.learning_rate:g}: use a smaller one"
        )
    return after


def _adaptive(state: ServerState, adam: Adam, change: RealArray) -> ServerState:
    """θ ← θ + step·first/(√second + floor), without correction of the moments' start."""
    one = change.dtype.type
    first = one(adam.first) * state.velocity + one(1 - adam.first) * change
    second = one(adam.second) * state.second_moment + one(1 - adam.second) * change * change
    weights = state.weights + one(adam.step_size) * first / (np.sqrt(second) + one(adam.floor))
    return replace(state, velocity=first, second_moment=second, weights=weights)
