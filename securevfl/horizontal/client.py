"""A client's part of a round: steps from θ⁰ on all weights, then the change of its blocks.

Pure functions of arrays, which every engine calls. A client's state between rounds, such as its
control variate κ_j, never leaves the client.
Source: FedBCGD (ACM MM 2024), algorithms 1 and 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from securevfl.arrays import IntArray, RealArray
from securevfl.errors import TrainingDiverged
from securevfl.horizontal.federation import Federation


@runtime_checkable
class ClientProblem(Protocol):
    """A client's rows and the model's loss on them; θ is a vector of shape (p,).

    Methods take row numbers from 0 on, shape (S,), and losses are means over these rows. The result
    of `gradient` has the dtype of θ and may be overwritten by the next call.
    """

    @property
    def rows(self) -> int:
        """How many rows the client holds, at least 1."""

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        """The loss's gradient over these rows at θ, shape (p,), without weight decay."""


@runtime_checkable
class JudgedProblem(ClientProblem, Protocol):
    """A problem that also computes its loss, from which training is judged."""

    def loss(self, weights: RealArray, rows: IntArray) -> float:
        """The loss of these rows at θ, without weight decay."""

    def labels(self, rows: IntArray) -> IntArray | None:
        """Classes from 0 on, shape (S,), if the loss is their cross entropy; else None."""


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends a participating client.

    Attributes:
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
    """A client's state between rounds; None stands for zeros.

    Attributes:
        control: κ_j, shape (p,).
        drift: FedDC's sum of own changes, shape (p,).
        memory: what the coding of uploads keeps, by its own names.
    """

    control: RealArray | None = None
    drift: RealArray | None = None
    memory: Mapping[str, RealArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Upload:
    """A client's upload after local training, in the order of `Blocks.uploaded`.

    Attributes:
        changes: θ − θ⁰ in the entries of the block, then in the shared ones.
        controls: change of κ_j in the same; empty without control variates.
    """

    client: int
    block: int
    changes: RealArray
    controls: RealArray


class LocalResult(NamedTuple):
    """A client's upload, its next state, and the number of gradients that it computed."""

    upload: Upload
    state: ClientState
    gradients: int


def local_training(
    problem: ClientProblem, federation: Federation, broadcast: Broadcast, state: ClientState
) -> LocalResult:
    """Take E epochs of steps θ ← θ − η·(clip(G(θ) + correction) + decay·θ) on all weights.

    G is the mean gradient of a step's rows; `Federation.clip` bounds the norm of the sum, as in
    FedDC's public code (that of FedBCGD+ bounds G alone). The correction:

    - "none": 0 (FedAvg; FedBCGD, algorithm 1);
    - "scaffold": κ − κ_j (Karimireddy et al. 2020, equation (3); FedBCGD+ in its public code);
    - "drift": κ − κ_j + pull·(drift_j + θ − θ⁰) (Gao et al. 2022, FedDC, equation (4), where the
      pull is α and the drift h);
    - "variance-reduced": −G(θ⁰) + ∇L_j(θ⁰) + κ − κ_j, L_j over all rows of client j (FedBCGD+,
      algorithm 2). Departure: the paper's equation (4) prints the drift term as κ_j − κ, which
      leads away from the optimum.

    Then κ_j becomes ∇L_j(θ⁰) under variance reduction, else κ_j − κ + (θ⁰ − θ) over η and the
    number of steps, which is the mean of G + decay·θ if nothing was clipped (SCAFFOLD's option II,
    and FedDC's public code with the pull in it), in the uploaded entries alone. Departure: FedBCGD+
    as printed and as published replaces all blocks of κ_j, but the server receives only one: its κ
    is then no longer the mean of the κ_j.

    Raises:
        TrainingDiverged: weights or control variates are no longer finite.
    """
    uploaded = federation.blocks.uploaded(broadcast.block)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = _Steps(problem, federation, broadcast, state)
        change = steps.take(uploaded if federation.method.freezes else slice(None))
        kept, controls = steps.kept(change, uploaded)
    if not (np.isfinite(change).all() and np.isfinite(controls).all()):
        raise TrainingDiverged(
            f"client {broadcast.client} diverged in round {broadcast.round_index} at step size "
            f"{steps.size:g}: use a smaller learning rate"
        )
    upload = Upload(broadcast.client, broadcast.block, change[uploaded], controls)
    return LocalResult(upload, kept, steps.gradients)


class _Steps:
    """A client's corrected steps in one round, of size η; `gradients` counts gradients per row."""

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
        self._clip = federation.clip
        self._control = np.zeros_like(start) if state.control is None else state.control
        self._drift = np.zeros_like(start) if state.drift is None else state.drift
        self._correction = broadcast.control - self._control if method.corrects else None
        self._full: RealArray | None = None
        self._first: list[RealArray] = []
        if method.correction == "variance-reduced":
            # One epoch's batches are all rows: their gradients at θ⁰ are those of its steps too.
            epoch = self._batches[: len(self._batches) // settings.epochs]
            self._first = [self._gradient(start, rows).copy() for rows in epoch]
            self._full = np.zeros_like(start)
            for rows, gradient in zip(epoch, self._first, strict=True):
                self._full += one(len(rows) / problem.rows) * gradient

    def take(self, trained: IntArray | slice) -> RealArray:
        """θ − θ⁰ after all steps in these entries; the other entries do not move."""
        weights = self._start.copy()
        for index, rows in enumerate(self._batches):
            step = self._at(weights, index, rows)
            step *= self.size
            weights[trained] -= step[trained]
        return weights - self._start

    def kept(self, change: RealArray, uploaded: IntArray) -> tuple[ClientState, RealArray]:
        """The client's state after the steps, and the change of κ_j in the uploaded entries."""
        if self._correction is None:
            return self._state, change[:0]
        found = self._full
        if found is None:
            found = change / -(self.size * len(self._batches)) - self._correction
        control = self._control.copy()
        control[uploaded] = found[uploaded]
        state = replace(self._state, control=control)
        if self._method.correction == "drift":
            state = replace(state, drift=self._drift + change)
        return state, control[uploaded] - self._control[uploaded]

    def _at(self, weights: RealArray, index: int, rows: IntArray) -> RealArray:
        step = self._gradient(weights, rows).copy()
        if self._correction is not None:
            step += self._correction
        if self._method.correction == "drift":
            step += self._pull * (self._drift + weights - self._start)
        if self._full is not None:
            step += self._full
            at_start = index < len(self._first)
            step -= self._first[index] if at_start else self._gradient(self._start, rows)
        return clipped(step, self._clip) + self._decay * weights

    def _gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        self.gradients += len(rows)
        return self._problem.gradient(weights, rows)


def clipped(step: RealArray, clip: float) -> RealArray:
    """A step, shape (p,), shortened to norm `clip` where it is longer; not finite stays so."""
    if clip == inf:
        return step
    largest = np.max(np.abs(step))
    # Squares of large entries do not fit, nor does the root of the sum of many.
    share = clip / float(np.linalg.norm(step / largest)) / float(largest) if largest else 1.0
    return step * step.dtype.type(share) if share < 1.0 else step
