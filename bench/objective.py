"""The loss that linear logistic FedBCD minimizes, over all training rows, and its constants.

An experiment may put the columns of all parties side by side; no program of a party does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.data.partition import fixed_partition
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Logistic
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.sparse import dense
from securevfl.training import Environment, plan_for, train

LOSS = Logistic()
CHUNK = 256


@dataclass(frozen=True)
class Smoothness:
    """Lipschitz constants of ∇L and of its blocks ∇_kL, all with respect to the whole Θ.

    Attributes:
        whole: ℓ.
        blocks: ℓ_k, by party.
    """

    whole: float
    blocks: tuple[float, ...]

    @property
    def drift(self) -> float:
        """√(Σ_j ℓ_j² + 3·max_k ℓ_k²)."""
        return sqrt(sum(each**2 for each in self.blocks) + 3 * max(self.blocks) ** 2)

    def largest_step(self, local_steps: int) -> float:
        """The η of Theorem 2: min over k of √2/(2Q·√(Σ_j ℓ_j² + 3ℓ_k²)), and 1/ℓ.

        1/ℓ never decides: Σ_k ℓ_k² ≥ ℓ², as the blocks make up ∇L.
        """
        return min(sqrt(2) / (2 * local_steps * self.drift), 1 / self.whole)

    def proof_term(self, eta: float, local_steps: int) -> float:
        """Min over k of 1 − ℓη − 2η²Q²(Σ_j ℓ_j² + 3ℓ_k²), which Theorem 2's proof has at least 0.

        At the theorem's own largest step it is −ℓη: the last summand is 1 there.
        """
        return 1 - self.whole * eta - 2 * (eta * local_steps * self.drift) ** 2


class Trail(LinearModel):
    """A linear model that keeps every θ_k it had, each local step's and the first."""

    def __init__(self, model: LocalModel) -> None:
        self.past: list[FloatArray] = []
        super().__init__(model.weights, model.intercept)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        if name == "weights" and isinstance(value, np.ndarray):
            self.past.append(value)
        super().__setattr__(name, value)


class Trails(dict[str, Trail]):
    """Those of all parties by name, in a training whose environment wraps models by `keep`."""

    def keep(self, name: str, model: LocalModel) -> Trail:
        """The party's model as one that keeps its trail."""
        self[name] = Trail(model)
        return self[name]

    def joint(self, dataset: VerticalDataset) -> FloatArray:
        """Every Θ of the parties together, shape (T, P)."""
        return np.hstack([np.hstack(self[table.name].past).T for table in dataset.parties])


@dataclass(frozen=True, eq=False)
class Objective:
    """L(Θ) = (1/N) Σ_i f(Σ_k x_ik θ_k, y_i) for the logistic f.

    Attributes:
        dataset: the data.
        blocks: X_k as party k trains on it, scaled, with the label party's constant column if
            there is an intercept; shape (N, P_k).
        held_out: the same of the held-out rows, by party.
    """

    dataset: VerticalDataset
    blocks: tuple[FloatArray, ...]
    held_out: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: VerticalDataset, *, intercept: bool = True) -> "Objective":
        """The loss on a data set, two classes and linear models, with the defaults of a job."""
        job = {"start": "zero", "batch_size": "full", "intercept": intercept}
        plan = plan_for(Job.of(job=job), dataset)
        generator = np.random.default_rng()
        parts = [LocalPart(plan, table, generator) for table in dataset.parties]
        names = [table.name for table in dataset.parties]
        held_out = {name: dense(part.held_out) for name, part in zip(names, parts, strict=True)}
        return cls(dataset, tuple(dense(part.inputs) for part in parts), held_out)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.dataset.train_labels)

    @cached_property
    def joint(self) -> FloatArray:
        """X = (X_1 … X_K), shape (N, P)."""
        return np.hstack(self.blocks)

    @cached_property
    def smoothness(self) -> Smoothness:
        """ℓ = ‖X‖²/(4N) and ℓ_k = ‖X_k‖·‖X‖/(4N) in spectral norms.

        ∇_kL(Θ) − ∇_kL(Θ') = X_kᵀDX(Θ − Θ')/N for a diagonal 0 ≤ D ≤ ¼ (mean value theorem, as
        0 ≤ f″ ≤ ¼), and ‖X_kᵀDX‖ ≤ ‖D^½X_k‖·‖D^½X‖. ℓ is attained at Θ = 0, where D = ¼.
        """
        whole = float(np.linalg.norm(self.joint, 2))
        norms = [float(np.linalg.norm(block, 2)) for block in self.blocks]
        scale = LOSS.curvature / self.rows
        return Smoothness(scale * whole**2, tuple(scale * norm * whole for norm in norms))

    def loss(self, weights: FloatArray) -> float:
        """L(Θ) for Θ of shape (P,)."""
        return LOSS.value(self.joint @ weights[:, None], self.dataset.train_labels)

    def squared_gradients(self, path: FloatArray) -> FloatArray:
        """‖∇L(Θ)‖² for every Θ of a path of shape (T, P), each over all rows; shape (T,)."""
        return np.concatenate(
            [
                np.sum((self.joint.T @ residuals / self.rows) ** 2, axis=0)
                for residuals in self._residuals(path)
            ]
        )

    @cached_property
    def lowest_loss(self) -> float:
        """L*; of separable classes, whose infimum 0 is at infinity, nearly."""
        return self.loss(self.optimum)

    @cached_property
    def optimum(self) -> FloatArray:
        """Θ*, shape (P,), by L-BFGS from zero."""
        from scipy.optimize import minimize  # noqa: PLC0415  # slow to import

        def value_and_gradient(weights: FloatArray) -> tuple[float, FloatArray]:
            residuals = next(self._residuals(weights[None]))
            return self.loss(weights), (self.joint.T @ residuals / self.rows)[:, 0]

        found = minimize(
            value_and_gradient,
            np.zeros(self.joint.shape[1]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-14, "gtol": 1e-8},
        )
        weights: FloatArray = found.x
        return weights

    def noise(self, batch_size: int) -> float:
        """V for minibatches of size S: E‖∇_kL_S(Θ) − ∇_kL(Θ)‖² ≤ V/S for every k and Θ.

        The gradient of a row is x_ik·d_i with |d_i| < 1, so rows vary by less than
        max_k (1/N) Σ_i ‖x_ik‖²; the mean of S of N rows drawn without replacement, as a batch of
        a random partition is, by (N − S)/(N − 1)/S of that. None is left at S = N.
        """
        spread = max(float(np.mean(np.sum(block**2, axis=1))) for block in self.blocks)
        return spread * (self.rows - batch_size) / max(self.rows - 1, 1)

    def noise_at(self, path: FloatArray, batch_size: int) -> FloatArray:
        """max_k E S·‖∇_kL_S(Θ) − ∇_kL(Θ)‖² over the data set's own batches, for every Θ.

        Args:
            path: shape (T, P).
            batch_size: S on average; every batch counts with its own.
        """
        batches = fixed_partition(self.dataset.row_digests, batch_size)
        ends = np.cumsum([block.shape[1] for block in self.blocks])[:-1]
        found = []
        for residuals in self._residuals(path):
            mean = self.joint.T @ residuals / self.rows
            spread = np.zeros_like(mean)
            for batch in batches:
                gradient = self.joint[batch].T @ residuals[batch] / len(batch)
                spread += len(batch) * (gradient - mean) ** 2 / len(batches)
            found.append(np.max([part.sum(axis=0) for part in np.split(spread, ends)], axis=0))
        return np.concatenate(found)

    def follow(self, job: Job) -> FloatArray:
        """Train the job's parties and give every Θ on the way, Θ⁰ first; shape (1 + RQ, P).

        Row r·Q is what stood after round r; between are the parties' local steps, side by side.

        Raises:
            TrainingDiverged: weights overflow.
        """
        trails = Trails()
        train(job, self.dataset, Environment(wrap_model=trails.keep))
        return trails.joint(self.dataset)

    def _residuals(self, path: FloatArray) -> Iterator[FloatArray]:
        """Residuals d of all rows, shape (N, ≤ CHUNK), chunk by chunk of a path."""
        for start in range(0, len(path), CHUNK):
            predictions = self.joint @ path[start : start + CHUNK].T
            yield LOSS.residuals(predictions, self.dataset.train_labels)
