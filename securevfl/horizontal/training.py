"""Training one model over clients that hold rows: FedBCGD, FedBCGD+ and their baselines.

    network = FlatModule(module)  # securevfl.models.flat_module, with torch
    trained = train_horizontal(
        module_problems(network, clients),
        network.weights(),
        Blocks.equal(network.sizes, 5, shared=["fc2", "fc3"]),
        rounds=200,
        score=lambda weights: network.accuracy(weights, test_inputs, test_labels),
    )

Server and clients run in this process, over the project's own channel and in virtual time. Who
learns what: `HorizontalResult.learns`. Whether training has helped is measured on the rows that
clients train on, which are all at hand in a simulation; no server of real clients can compute it.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from types import UnionType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import override

from securevfl.arrays import IntArray, RealArray
from securevfl.errors import ConfigError
from securevfl.horizontal.client import ClientProblem, JudgedProblem
from securevfl.horizontal.codings import Coding, Plain
from securevfl.horizontal.federation import (
    Blocks,
    Federation,
    Method,
    Settings,
    method_named,
    whole,
)
from securevfl.horizontal.secure_aggregation import Masked
from securevfl.horizontal.simulation import (
    Round,
    Score,
    ScoringRule,
    Spent,
    simulate_federation,
    spent,
)
from securevfl.runtime.line import PRESETS, Line
from securevfl.shown import Shown
from securevfl.warned import Warned

WORSE = 1.01
"""Factor by which a model that started well may get worse by chance."""
MOST_ROWS = 100
"""Rows per client, evenly spaced, on which training is judged."""
SIMPSON = ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))


@dataclass(frozen=True, eq=False, repr=False)
class HorizontalResult(Shown):
    """A federation at its end.

    Attributes:
        weights: θ, shape (p,).
        rounds: what each round cost and came to.
        federation: method, settings and blocks.
        learns: who learns what, by role.
        warnings: whether the model is useless, or worse than at the start, on the rows that
            clients train on. Only a simulation has these rows; the guarantee of noisy uploads does
            not cover these warnings. Also whether a score was NaN.
    """

    weights: RealArray
    rounds: tuple[Round, ...]
    federation: Federation
    learns: Mapping[str, str]
    warnings: tuple[Warned, ...] = ()

    @property
    def spent(self) -> Spent:
        """The costs of all rounds."""
        return spent(self.rounds)

    def spent_to(self, target: float) -> Spent | None:
        """The costs up to the first score of at least `target`; None if no score reached it."""
        for done, each in enumerate(self.rounds, 1):
            if each.score is not None and each.score >= target:
                return spent(self.rounds[:done])
        return None

    @override
    def shown(self) -> dict[str, object]:
        all_spent, parameters = self.spent, len(self.weights)
        scores = [each.score for each in self.rounds if each.score is not None]
        return {
            "method": self.federation.method.name,
            "rounds": all_spent.rounds,
            **({"score": f"{scores[-1]:.4g}"} if scores else {}),
            **{each.kind: "yes" for each in self.warnings},
            "parameters": f"{parameters:,}",
            "uploads as papers count": f"{all_spent.paper_floats / parameters:.4g} models a client",
            "up": f"{all_spent.up_floats / parameters:.4g} models, {all_spent.up_bytes:,} bytes",
            "down": f"{all_spent.down_floats / parameters:.4g} models, "
            f"{all_spent.down_bytes:,} bytes",
            "gradients": f"{all_spent.gradients:,}",
        }


def train_horizontal(
    problems: Sequence[ClientProblem],
    weights: ArrayLike,
    blocks: Blocks | None = None,
    method: str | Method = "fedbcgd",
    *,
    rounds: int,
    taking_part: int = 10,
    learning_rate: float = 0.1,
    decay: float = 0.998,
    weight_decay: float = 1e-3,
    clip: float | None = None,
    epochs: int = 5,
    batch_size: int = 50,
    seed: int = 0,
    score: Score | None = None,
    score_every: int = 1,
    target: float | None = None,
    uploads: Coding | Masked | None = None,
    network: Line = PRESETS["lan"],
) -> HorizontalResult:
    """Train with a method of the family, in simulated time.

    Warns where the model is of no use, see `HorizontalResult.warnings`.

    Args:
        problems: of each of the M clients; where each is a `JudgedProblem`, their losses say
            whether the model is of use, else their gradients whether it got worse.
        weights: θ before the first round, shape (p,), float32 or float64, which is kept.
        blocks: that clients upload under FedBCGD; methods without blocks upload all of θ.
        method: its name, or a description, as `dataclasses.replace(method_named("fedbcgd"),
            momentum=0.0)` gives it.
        rounds: R.
        taking_part: m, clients a round.
        learning_rate: η0 of clients.
        decay: η of round i is η0·decay^i.
        weight_decay: times θ, added to gradients after clipping.
        clip: bound on the norm of a step's gradient with its correction; None bounds the steps of
            methods with control variates by 10 and leaves others as they are.
        epochs: E.
        batch_size: rows of a client's step.
        seed: of who takes part when, and of the order of rows.
        score: of weights, at the server, one number; the higher the better.
        score_every: rounds between scorings.
        target: training ends after the first score of at least this.
        uploads: their coding, `Plain` by default, or `Masked` sums.
        network: the line of every party.

    Raises:
        ConfigError: problems, weights or settings that cannot be, a blockwise method without
            blocks, a target without a score, a score that is no number.
        PeerError: a client is gone or sent what does not fit.
        TrainingDiverged: weights are no longer finite.
    """
    start = _vector(weights)
    method = method_named(method) if isinstance(method, str) else method
    _require("method", method, Method, "a name, or a Method")
    _require("blocks", blocks, Blocks | None, "Blocks.equal(…) or Blocks.by_layers(…)")
    _require("uploads", uploads, Coding | Masked | None, "Compressed(…), Noisy(…) or Masked()")
    _require("network", network, Line, 'a Line, as PRESETS["wan"]')
    if blocks is None and method.blockwise:
        raise ConfigError(f"method {method.name!r} needs blocks")
    problems = _each_with_rows(problems)
    settings = Settings(
        clients=len(problems),
        taking_part=taking_part,
        rounds=rounds,
        learning_rate=learning_rate,
        decay=decay,
        weight_decay=weight_decay,
        clip=clip,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
    )
    federation = Federation(method, settings, blocks or Blocks.whole(len(start)))
    uploads = uploads or Plain()
    scoring = ScoringRule(score, score_every, target)
    ended = simulate_federation(
        problems, federation, start, uploads=uploads, scoring=scoring, network=network
    )
    end = ended.state.weights
    warned = (*_warned(problems, start, end), *_unscored(ended.rounds))
    for each in warned:
        warnings.warn(each.text, UserWarning, stacklevel=2)
    return HorizontalResult(end, ended.rounds, federation, uploads.learns(method), warned)


def _require(name: str, value: object, kind: UnionType | type, expected: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} = {value!r}: expected {expected}")


def _each_with_rows(problems: Sequence[ClientProblem]) -> list[ClientProblem]:
    if not isinstance(problems, Iterable):
        raise ConfigError(f"problems: expected one of each client, not one {_kind(problems)}")
    every = list(problems)
    for client, each in enumerate(every):
        if not isinstance(each, ClientProblem):
            raise ConfigError(
                f"client {client}: expected a problem as module_problems makes it, not "
                f"a {_kind(each)}"
            )
        if whole(f"client {client}: rows", each.rows) < 1:
            raise ConfigError(f"client {client}: expected at least one row")
    return every


def _kind(value: object) -> str:
    return type(value).__name__


def _vector(weights: ArrayLike) -> RealArray:
    try:
        start = np.asarray(weights)
    except (RuntimeError, TypeError, ValueError) as error:  # ragged, or a tensor that cannot go
        raise ConfigError(f"weights: expected a vector of float32 or float64: {error}") from error
    if start.ndim != 1 or start.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"weights of {start.dtype} {start.shape}: expected a vector of float32 or float64"
        )
    return start


def _warned(
    problems: Sequence[ClientProblem], start: RealArray, end: RealArray
) -> Iterator[Warned]:
    remedy = "Try a smaller learning_rate; fewer epochs; where uploads are noisy, more clients"
    found = losses(problems, start, end)
    if found is None:
        if not loss_change(problems, start, end) <= 0:
            yield Warned(
                "went wrong",
                "training went wrong: by the clients' gradients their mean loss is higher at the "
                f"end than at the start. {remedy}",
            )
    elif found.constant is not None and not found.end < found.constant:
        yield Warned(
            "learned nothing",
            f"the model has learned nothing: the clients' mean training loss is {found.end:.3g} at "
            f"the end, no lower than the {found.constant:.3g} of a constant prediction. {remedy}; "
            "where the loss still falls, more rounds",
        )
    elif not found.end <= WORSE * found.start:
        yield Warned(
            "went wrong",
            f"training went wrong: the clients' mean training loss is {found.end:.3g} at the end "
            f"and was {found.start:.3g} at the start. {remedy}",
        )


def _unscored(rounds: Sequence[Round]) -> Iterator[Warned]:
    scored = [(done, each.score) for done, each in enumerate(rounds, 1) if each.score is not None]
    missing = [done for done, score in scored if isnan(score)]
    if missing:
        yield Warned(
            "went wrong",
            f"{len(missing)} of {len(scored)} scores are NaN, the first after round {missing[0]}: "
            "they never end training and say nothing about the model. Look at what score does with "
            "these weights; where predictions overflow, try a smaller learning_rate",
        )


class Losses(NamedTuple):
    """Mean losses, averaged over clients, without weight decay.

    Before the first round, after the last one, and of the best constant prediction; None where the
    loss is no cross entropy of classes.
    """

    start: float
    end: float
    constant: float | None


def losses(problems: Sequence[ClientProblem], start: RealArray, end: RealArray) -> Losses | None:
    """The mean losses at two θ; None if some client's problem has no loss."""
    judged = [each for each in problems if isinstance(each, JudgedProblem)]
    if len(judged) < len(problems):
        return None

    def at(weights: RealArray) -> float:
        return float(np.mean([each.loss(weights, _rows(each)) for each in judged]))

    return Losses(at(start), at(end), _constant([each.labels(_rows(each)) for each in judged]))


def loss_change(problems: Sequence[ClientProblem], start: RealArray, end: RealArray) -> float:
    """The change of the mean loss from start to end, from gradients alone.

    Simpson's rule for the integral of the mean gradient from θ⁰ to θ: exact for losses up to the
    fourth degree in θ, as squares of a linear model are. Not finite where gradients are not.
    """
    change = np.subtract(end, start, dtype=np.float64)
    found = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for place, share in SIMPSON:
            weights = (start + place * change).astype(start.dtype)
            slopes = [each.gradient(weights, _rows(each)) @ change for each in problems]
            found += share * float(np.mean(slopes))
    return found


def _rows(problem: ClientProblem) -> IntArray:
    most = min(problem.rows, MOST_ROWS)
    return np.linspace(0, problem.rows - 1, most).astype(np.int64)


def _constant(labels: Sequence[IntArray | None]) -> float | None:
    """The entropy of the classes, with equal weight per client."""
    known = [each for each in labels if each is not None]
    if len(known) < len(labels):
        return None
    classes = 1 + max(int(each.max()) for each in known)
    shares = np.mean([np.bincount(each, minlength=classes) / len(each) for each in known], 0)
    return float(-np.sum(shares * np.log(np.maximum(shares, np.finfo(float).tiny))))
