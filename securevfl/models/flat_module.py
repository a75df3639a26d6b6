"""A `torch.nn.Module` as one vector of parameters, and gradients on clients' rows.

The module's parameters become views into one tensor, and so do their gradients: loading weights is
one copy, and a gradient needs no walk over the module. Clients share one module.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from securevfl.arrays import IntArray, RealArray
from securevfl.errors import ConfigError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Mean loss of predictions (S, C) and targets (S,)."""
Rows = ArrayLike | torch.Tensor
SCORED_ROWS, FEW = 1024, 8
_NO_FIT = AttributeError, IndexError, RuntimeError, TypeError, ValueError, UserWarning


class FlatModule:
    """Takes over a module: its parameters become a view of one vector θ.

    Args:
        module: a function of rows and parameters only, all of float32 or all of float64.
            Parameters that require no gradient stay unchanged.
        loss: what its clients minimize; by default the cross entropy of class scores.
        device: where it computes.

    Attributes:
        sizes: sizes of the parameters by name, in the order of θ, as `Blocks` expects them.

    Raises:
        ConfigError: no parameters, parameters of several dtypes, or a module with other state
            (such as batch normalization's running means).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = nn.functional.cross_entropy,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(module, nn.Module) or not callable(loss):
            raise ConfigError("expected a torch.nn.Module, and a loss of predictions and targets")
        self.module, self.loss, self.device = module.to(device), loss, torch.device(device)
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        dtypes = {each.dtype for each in trained.values()}
        if dtypes not in ({torch.float32}, {torch.float64}):
            raise ConfigError("the module's parameters: expected some, all float32 or all float64")
        if any(each.is_floating_point() for each in module.buffers()):
            raise ConfigError(
                "the module keeps numbers that are no parameters, as batch normalization does: "
                "clients would share them unseen; use group normalization"
            )
        self.sizes = {name: each.numel() for name, each in trained.items()}
        (self.dtype,) = dtypes
        self._flat = torch.cat([each.detach().reshape(-1) for each in trained.values()])
        self._gradient = torch.zeros_like(self._flat)
        self._given = self._flat.cpu()
        self._views: list[tuple[nn.Parameter, int, torch.Tensor]] = []
        start = 0
        for each in trained.values():
            span = slice(start, start + each.numel())
            each.data = self._flat[span].view(each.shape)
            own = self._gradient[span].view(each.shape)
            self._views.append((each, each.data_ptr(), own))
            start = span.stop

    def weights(self) -> RealArray:
        """The current weights, shape (p,)."""
        return self._flat.cpu().numpy().copy()

    def load(self, weights: RealArray) -> None:
        """Set the weights, shape (p,).

        A ConfigError for another shape or dtype, or if the parameters are no longer this module's.
        """
        if any(each.data_ptr() != place for each, place, _ in self._views):
            raise ConfigError(
                "the module's parameters are no longer here: it was moved or converted, or given "
                "to another FlatModule; make a new one, and clients of it"
            )
        given = self._given.numpy()
        if (weights.shape, weights.dtype) != (given.shape, given.dtype):
            raise ConfigError(
                f"weights of {weights.dtype} {weights.shape}: the module has {given.dtype} "
                f"{given.shape}"
            )
        np.copyto(given, weights)
        if self._given is not self._flat:
            self._flat.copy_(self._given)

    def chance(self) -> torch.Tensor:
        """The state of the random generator that the module would draw from."""
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.get_rng_state()

    def gradient(
        self, weights: RealArray, inputs: torch.Tensor, targets: torch.Tensor
    ) -> RealArray:
        """The loss's gradient, shape (p,); the next call overwrites it."""
        self.load(weights)
        self._gradient.zero_()
        for each, _, own in self._views:  # others' optimizers let go of them
            each.grad = own
        self.loss(self.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        found: RealArray = self._gradient.cpu().numpy()
        return found

    def rows(self, inputs: Rows) -> torch.Tensor:
        """A copy of inputs, shape (N, ...), on the CPU.

        A ConfigError for values that are not finite or have another precision than the module.
        """
        found = _finite("inputs", inputs)
        if found.is_floating_point() and found.dtype != self.dtype:
            given, own = (str(each).removeprefix("torch.") for each in (found.dtype, self.dtype))
            raise ConfigError(f"inputs of {given}: the module is of {own}")
        return found

    def predict(self, weights: RealArray, inputs: Rows) -> RealArray:
        """Predictions of rows, shape (N, C)."""
        self.load(weights)
        with torch.no_grad():
            pieces = torch.split(self.rows(inputs), SCORED_ROWS)
            scores = [self.module(piece.to(self.device)).cpu().numpy() for piece in pieces]
        return np.concatenate(scores)

    def accuracy(self, weights: RealArray, inputs: Rows, labels: Rows) -> float:
        """Fraction of rows whose largest score is the label's.

        A ConfigError for predictions that are not one score per class, or labels of another shape.
        """
        scores, expected = self.predict(weights, inputs), _array(labels)
        if scores.ndim < 2 or scores.shape[1] < 2:  # noqa: PLR2004
            raise ConfigError(f"accuracy of predictions {scores.shape}: expected a score a class")
        found = scores.argmax(axis=1)
        if found.shape != expected.shape:  # NumPy would broadcast
            raise ConfigError(
                f"labels have shape {expected.shape}, predicted classes {found.shape}"
            )
        return float(np.mean(found == expected))


class ModuleProblem:
    """A client's rows under a module; implements `horizontal.client.JudgedProblem`.

    Args:
        module: shared by all clients.
        inputs: shape (N, ...), of the module's dtype, or integers, for an embedding.
        targets: shape (N,).

    Raises:
        ConfigError: no rows, mismatched lengths or dtypes, inputs that are not finite, inputs or
            targets that module and loss do not support, a loss that is not a mean, or a module
            that is random, like dropout, or mixes rows, like batch normalization.
    """

    def __init__(self, module: FlatModule, inputs: Rows, targets: Rows) -> None:
        self._module = module
        self._inputs = module.rows(inputs).to(module.device)
        self._targets = _finite("targets", targets).to(module.device)
        if not len(self._inputs) == len(self._targets) > 0:
            raise ConfigError(
                f"{len(self._inputs)} rows, {len(self._targets)} targets: expected as many of "
                "each, and at least one"
            )
        devices = [module.device] if module.device.type == "cuda" else []
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            # A loss that stretches targets over predictions only warns.
            warnings.filterwarnings("error", message="Using a target size")
            before = module.chance()
            try:
                self._require_fitting()
            except _NO_FIT as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"module and loss do not take these rows: {reason}") from error
            if not torch.equal(before, module.chance()):
                raise ConfigError("the module's predictions depend on chance: leave out dropout")
            self._require_apart()

    def _require_fitting(self) -> None:
        module, targets = self._module, self._targets
        with torch.no_grad():
            one = module.module(self._inputs[:1])
            module.loss(one.expand(len(targets), *one.shape[1:]), targets)
            single, double = (
                module.loss(
                    one.expand(rows, *one.shape[1:]), targets[:1].expand(rows, *targets.shape[1:])
                )
                for rows in (1, 2)
            )
        module.gradient(module.weights(), self._inputs[:1], targets[:1])
        if double.numel() > 1 or not torch.allclose(single, double, rtol=1e-3, equal_nan=True):
            raise ValueError("the loss of two equal rows is not that of one, as a mean's is")
        self._require_pairs(one)

    def _require_pairs(self, one: torch.Tensor) -> None:
        """Refuse a loss that compares every prediction with every target, as (N,) beside (N, 1)."""
        loss, rows = self._module.loss, min(self.rows, FEW)
        targets = self._targets[torch.linspace(0, self.rows - 1, rows).long()]
        scores = one.expand(rows, *one.shape[1:]).clone().requires_grad_()
        each = [loss(scores[row : row + 1], targets[row : row + 1]) for row in range(rows)]
        crossed = loss(scores.repeat_interleave(rows, 0), torch.cat([targets] * rows))
        # At equal predictions a mean over pairs has the value of that over rows, but no prediction
        # has a gradient of its own target's.
        together, alone, paired = (
            torch.autograd.grad(value, scores)[0]
            for value in (loss(scores, targets), torch.stack(each).mean(), crossed)
        )
        rounding = torch.finfo(scores.dtype).eps ** 0.5 * float(together.abs().max())
        close = partial(torch.allclose, together, rtol=0.0, atol=rounding)
        if close(paired) and not close(alone):
            raise ValueError(
                f"the loss of predictions {tuple(scores.shape)} and targets "
                f"{tuple(targets.shape)} is over all pairs of both: give them one shape"
            )

    def _require_apart(self) -> None:
        """Refuse predictions of a row that depend on other rows."""
        with torch.no_grad():
            first, last = self._inputs[:1], self._inputs[-1:]
            apart = torch.cat([self._module.module(each) for each in (first, last)])
            beside = self._module.module(torch.cat([first, last]))
        if not torch.allclose(apart, beside, rtol=1e-3, atol=1e-3 * float(apart.abs().max())):
            raise ConfigError(
                "the module's predictions of a row depend on the rows beside it, as with batch "
                "normalization: use group normalization"
            )

    @property
    def rows(self) -> int:
        """Number of the client's rows."""
        return len(self._targets)

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        """The mean loss's gradient over these rows, shape (p,); the next call overwrites it."""
        return self._module.gradient(weights, *self._chosen(rows))

    def loss(self, weights: RealArray, rows: IntArray) -> float:
        """The mean loss of these rows at θ, see `JudgedProblem`."""
        inputs, targets = self._chosen(rows)
        self._module.load(weights)
        with torch.no_grad():
            return float(self._module.loss(self._module.module(inputs), targets))

    def labels(self, rows: IntArray) -> IntArray | None:
        """Classes of these rows, shape (S,), if the loss is their cross entropy; else None."""
        chosen = self._targets.cpu().numpy()[rows]
        classes = self._module.loss is nn.functional.cross_entropy and chosen.ndim == 1
        return chosen if classes and chosen.min() >= 0 else None  # below 0: not to be learned from

    def _chosen(self, rows: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(rows).to(self._module.device)
        return self._inputs[chosen], self._targets[chosen]


def module_problems(
    module: FlatModule, clients: Sequence[tuple[Rows, Rows]]
) -> list[ModuleProblem]:
    """The problems of clients with (inputs, targets) each; errors name the client."""
    problems = []
    for client, each in enumerate(clients):
        try:
            inputs, targets = each
        except (TypeError, ValueError) as error:
            raise ConfigError(f"client {client}: expected its inputs and its targets") from error
        try:
            problems.append(ModuleProblem(module, inputs, targets))
        except ConfigError as error:
            raise ConfigError(f"client {client}: {error}") from error
    return problems


def _finite(what: str, values: Rows) -> torch.Tensor:
    try:
        rows = torch.tensor(_array(values))
    except (RuntimeError, TypeError, ValueError) as error:  # text, objects, ragged rows
        raise ConfigError(f"{what}: expected an array of numbers: {error}") from error
    if not rows.ndim:
        raise ConfigError(f"{what}: expected rows, not one number")
    if not torch.isfinite(rows).all():
        raise ConfigError(f"{what} that are not finite: fill gaps, or leave those rows out")
    return rows


def _array(values: Rows) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
