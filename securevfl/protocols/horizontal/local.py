"""A client's part of a round: steps from θ⁰ on all weights, then the change of its blocks.

A client's state between rounds, its control variate κ_j among it, never leaves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from securevfl.arrays import IntArray, RealArray
from securevfl.errors import TrainingDiverged
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.problem import ClientProblem


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends a client that takes part.

    Attributes:
        round_index: counted from 0.
        client: whom it is for.
        block: that the client's group uploads.
        weights: θ⁰, shape (p,).
        control: κ, shape (p,); empty without control variates.
    """

    round_index: int
    client: int
    block: int
    weights: RealArray
    control: RealArray


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client keeps between its rounds; None stands for zeros.

    Attributes:
        control: κ_j, shape (p,).
        drift: FedDC's sum of own changes, shape (p,).
        memory: what the coding of uploads keeps (see `uploads`), by its own names.
    """

    control: RealArray | None = None
    drift: RealArray | None = None
    memory: Mapping[str, RealArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client gives after its local training.

    Attributes:
        client: whose.
        block: of its group.
        own: θ − θ⁰ in the entries of the block.
        shared: θ − θ⁰ in the shared entries.
        own_control: change of κ_j in the entries of the block; empty without control variates.
        shared_control: change of κ_j in the shared entries; empty without control variates.
    """

    client: int
    block: int
    own: RealArray
    shared: RealArray
    own_control: RealArray
    shared_control: RealArray

    @property
    def parts(self) -> tuple[RealArray, RealArray, RealArray, RealArray]:
        """What is summed, in the order of the attributes."""
        return self.own, self.shared, self.own_control, self.shared_control


@dataclass(frozen=True, eq=False)
class LocalResult:
    """A client at the end of its round.

    Attributes:
        upload: for the server.
        state: to keep; for the client alone.
        gradients: single rows' gradients that it took.
    """

    upload: Upload
    state: ClientState
    gradients: int


def local_training(
    problem: ClientProblem, federation: Federation, broadcast: Broadcast, state: ClientState
) -> LocalResult:
    """Take E epochs of steps θ ← θ − η·(G(θ) + correction) on all weights.

    G is the mean gradient of a step's rows, with weight decay. The correction:

    - "none": 0 (FedAvg; FedBCGD, algorithm 1);
    - "scaffold": κ − κ_j (Karimireddy et al. 2020, equation (3));
    - "drift": κ − κ_j + pull·(drift_j + θ − θ⁰) (Gao et al. 2022, FedDC, equation (4), where the
      pull is α and the drift h);
    - "variance-reduced": −G(θ⁰) + ∇L_j(θ⁰) + κ − κ_j, L_j over all rows of client j (FedBCGD+,
      algorithm 2). Departure: the paper's equation (4) prints the drift term as κ_j − κ, which
      leads away from the optimum.

    Then κ_j becomes ∇L_j(θ⁰) under variance reduction, else the mean of G over the steps, which is
    κ_j − κ + (θ⁰ − θ) over η and their number (SCAFFOLD's option II, and FedDC's public code with
    the pull in it), in the uploaded entries alone. Departure: FedBCGD+ as printed replaces all
    blocks of κ_j, of which the server is told one: its κ is then no longer the mean of the κ_j.

    Args:
        problem: the client's.
        federation: that it is in.
        broadcast: what the server sent.
        state: what the client kept.

    Raises:
        TrainingDiverged: weights or control variates are no longer finite.
    """
    start, blocks = broadcast.weights, federation.blocks
    uploaded = blocks.uploaded(broadcast.block)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = _Steps(problem, federation, broadcast, state)
        change = steps.take(uploaded if federation.method.freezes else slice(None)) - start
        kept = steps.kept(change, uploaded)
        moved = start[:0]
        if federation.method.corrects:
            moved = _or_zeros(kept.control, start) - _or_zeros(state.control, start)
    if not (np.isfinite(change).all() and np.isfinite(moved).all()):
        raise TrainingDiverged(
            f"client {broadcast.client} diverged in round {broadcast.round_index} at step size "
            f"{steps.size:g}: use a smaller learning rate"
        )
    own, shared = blocks.own[broadcast.block], blocks.shared
    if not moved.size:
        own_control = shared_control = moved
    else:
        own_control, shared_control = moved[own], moved[shared]
    upload = Upload(
        broadcast.client,
        broadcast.block,
        change[own],
        change[shared],
        own_control,
        shared_control,
    )
    return LocalResult(upload, kept, steps.gradients)


class _Steps:
    """The corrected steps of a client in one round.

    Attributes:
        size: η.
        gradients: single rows' gradients that were taken.
    """

    def __init__(
        self,
        problem: ClientProblem,
        federation: Federation,
        broadcast: Broadcast,
        state: ClientState,
    ) -> None:
        settings, method = federation.settings, federation.method
        start = broadcast.weights
        one = start.dtype.type
        self.size = one(settings.step_size(broadcast.round_index))
        self.gradients = 0
        self._problem, self._method, self._state, self._start = problem, method, state, start
        self._batches = settings.batches(broadcast.client, problem.rows, broadcast.round_index)
        self._decay, self._pull = one(settings.weight_decay), one(method.pull)
        self._correction: RealArray | None = None
        self._full: RealArray | None = None
        self._first: list[RealArray] = []
        if method.corrects:
            self._correction = broadcast.control - _or_zeros(state.control, start)
        if method.correction == "variance-reduced":
            # One epoch's batches are all rows: their gradients at θ⁰ are those of its steps too.
            epoch = self._batches[: len(self._batches) // settings.epochs]
            self._first = [self._gradient(start, rows).copy() for rows in epoch]
            shares = [one(len(rows) / problem.rows) for rows in epoch]
            self._full = np.zeros_like(start)
            for share, gradient in zip(shares, self._first, strict=True):
                self._full += share * gradient

    def take(self, trained: IntArray | slice) -> RealArray:
        """θ after all of them, in these entries; others stay as they are."""
        weights = self._start.copy()
        for index, rows in enumerate(self._batches):
            step = self._at(weights, index, rows)
            step *= self.size
            weights[trained] -= step[trained]
        return weights

    def kept(self, change: RealArray, uploaded: IntArray) -> ClientState:
        """The client's state after them."""
        if self._correction is None:
            return self._state
        found = self._full
        if found is None:
            found = change / -(self.size * len(self._batches)) - self._correction
        control = _or_zeros(self._state.control, change).copy()
        control[uploaded] = found[uploaded]
        drift = self._state.drift
        if self._method.correction == "drift":
            drift = _or_zeros(drift, change) + change
        return replace(self._state, control=control, drift=drift)

    def _at(self, weights: RealArray, index: int, rows: IntArray) -> RealArray:
        step = self._gradient(weights, rows) + self._decay * weights
        if self._correction is not None:
            step += self._correction
        if self._method.correction == "drift":
            step += self._pull * (_or_zeros(self._state.drift, weights) + weights - self._start)
        if self._full is not None:
            step += self._full
            at_start = index < len(self._first)
            step -= self._first[index] if at_start else self._gradient(self._start, rows)
        return step

    def _gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        self.gradients += len(rows)
        return self._problem.gradient(weights, rows)


def _or_zeros(values: RealArray | None, like: RealArray) -> RealArray:
    return np.zeros_like(like) if values is None else values
