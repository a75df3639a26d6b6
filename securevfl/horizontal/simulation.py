"""A federation in one process: server and clients as programs over the simulated network.

In virtual time clients compute in parallel on any number of cores. Only the participating clients
of a round receive messages, and all are notified of the end, so the cost of a hundred clients is
that of a round's participants. Costs are counted as transferred, and as papers count them: a
client's mean upload per round, in multiples of the model's p numbers: 1, or 2 with control
variates, divided by b with blocks. Downloads and the shared block are not part of this figure.

Learns:
    server: see the coding of uploads, or `Masked`, which reveals only sums.
    client: θ, with κ, in the rounds that it takes part in, and its place in the groups.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import isnan
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from typing_extensions import override

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, UnexpectedMessage
from securevfl.horizontal.client import Broadcast, ClientProblem, ClientState, local_training
from securevfl.horizontal.codings import Coding, Plain, require_array
from securevfl.horizontal.federation import SERVER, Federation, client_name, number, whole
from securevfl.horizontal.secure_aggregation import Masked
from securevfl.horizontal.server import ServerState, aggregate
from securevfl.runtime.channel import Channel, ChannelAround, collect
from securevfl.runtime.costs import SCORING, Costs, Stopwatch
from securevfl.runtime.line import PRESETS, Line
from securevfl.runtime.simulation import Program, Tamper, simulate
from securevfl.wire.codec import Message, StepMessage, message_kind

FLOAT_BYTES = 4
Score = Callable[[RealArray], SupportsFloat]
"""From weights to a number; higher is better."""


@message_kind(80, stage="round", carries="values", shows="weights")
class ModelSent(StepMessage):
    """From the server to a participating client: its block, θ⁰ and κ; empty at the end."""

    block: int
    weights: RealArray
    control: RealArray
    ended: bool


@dataclass(frozen=True)
class ScoringRule:
    """When the server scores θ.

    Attributes:
        score: how; None never does.
        every: rounds between scorings; the last round is always scored.
        target: training ends after the first score of at least this.

    Raises:
        ConfigError: a score that is no function, a target or an interval that cannot be.
    """

    score: Score | None = None
    every: int = 1
    target: float | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not callable(self.score):
            raise ConfigError(f"score = {self.score!r}: expected a function of weights")
        if whole("score_every", self.every) < 1:
            raise ConfigError(f"score_every = {self.every}: expected at least 1")
        if self.target is not None and isnan(number("target", self.target)):
            raise ConfigError("target = nan: no score is at least that")
        if self.target is not None and self.score is None:
            raise ConfigError(f"target = {self.target}: nothing is scored")

    def of(self, weights: RealArray, done: int, rounds: int) -> float | None:
        """The score after `done` rounds; None between scorings; ConfigError if no number."""
        if self.score is None or (done % self.every and done < rounds):
            return None
        return number("what score gave", self.score(weights))

    def ends(self, score: float | None) -> bool:
        """Whether a score ends training."""
        return self.target is not None and score is not None and score >= self.target


@dataclass(frozen=True)
class Round:
    """The costs of one round over its m clients, and its score.

    Attributes:
        clients: who took part.
        paper_floats: as papers count, see `floats_of_round`, times what a coding saves.
        up_floats: numbers that clients sent.
        down_floats: numbers that the server sent.
        up_bytes: bytes that clients sent.
        down_bytes: bytes that the server sent.
        gradients: single rows' gradients that clients took.
        ends_s: seconds on the virtual clock when the server was done.
        score: of θ after it, where it was scored.
    """

    clients: tuple[int, ...]
    paper_floats: float
    up_floats: float
    down_floats: float
    up_bytes: int
    down_bytes: int
    gradients: int
    ends_s: float
    score: float | None


@dataclass(frozen=True)
class Spent:
    """Costs summed over rounds, see `Round`."""

    rounds: int
    paper_floats: float
    up_floats: float
    down_floats: float
    up_bytes: int
    down_bytes: int
    gradients: int
    virtual_s: float


def spent(rounds: Sequence[Round]) -> Spent:
    """The costs of these rounds, summed."""
    summed: dict[str, Any] = {
        each.name: sum(getattr(one, each.name) for one in rounds)
        for each in fields(Spent)
        if each.name not in ("rounds", "virtual_s")
    }
    return Spent(rounds=len(rounds), virtual_s=rounds[-1].ends_s if rounds else 0.0, **summed)


def floats_of_round(federation: Federation) -> tuple[float, int]:
    """Numbers that clients upload per round without a coding.

    The mean client's as papers count it, p/b, or 2p/b with control variates; and what all m send.
    """
    blocks, vectors = federation.blocks, 1 + federation.method.corrects
    own = federation.group_size * (blocks.parameters - len(blocks.shared))
    up = vectors * (own + federation.settings.taking_part * len(blocks.shared))
    return vectors * blocks.parameters / len(blocks), up


def floats_in(message: Message) -> float:
    """The numbers in a message: array entries, and bytes counted as 32-bit numbers."""
    floats = 0.0
    for each in fields(message):
        value = getattr(message, each.name)
        if isinstance(value, np.ndarray):
            floats += value.size
        elif isinstance(value, bytes):
            floats += len(value) / FLOAT_BYTES
        elif isinstance(value, tuple):
            floats += sum(map(len, value)) / FLOAT_BYTES
    return floats


class Sent(NamedTuple):
    """What a party sent and computed in one round, and its clock at the end."""

    floats: float
    bytes_sent: int
    gradients: int
    ends_s: float


class Counted(ChannelAround):
    """A channel that counts what is sent; `rounds` has its party's rounds by index."""

    def __init__(self, channel: Channel, costs: Costs) -> None:
        super().__init__(channel)
        self.rounds: dict[int, Sent] = {}
        self._costs = costs
        self._floats, self._bytes = 0.0, 0

    @override
    async def send(self, to: str, message: Message) -> None:
        self._floats += floats_in(message)
        await super().send(to, message)

    def end_round(self, index: int, gradients: int = 0) -> None:
        """Record a finished round."""
        self._costs.end_round()
        sent = sum(self._costs.bytes_sent.values())
        now = self._costs.now
        self.rounds[index] = Sent(self._floats, sent - self._bytes, gradients, now)
        self._floats, self._bytes = 0.0, sent


class ServerEnd(NamedTuple):
    """The server's final state, the score of each round, and what it sent."""

    state: ServerState
    scores: list[float | None]
    sent: Mapping[int, Sent]


async def serve(
    channel: Channel,
    costs: Costs,
    *,
    federation: Federation,
    start: RealArray,
    uploads: Coding | Masked,
    scoring: ScoringRule,
) -> ServerEnd:
    """The server's program, from θ at the start."""
    state, rounds = ServerState.start(start, federation.method), federation.settings.rounds
    scores = list[float | None]()
    counted = Counted(channel, costs)
    while state.round_index < rounds:
        index, assignments = state.round_index, federation.assignments(state.round_index)
        for client, block in assignments.items():
            sent = ModelSent(index, block, state.weights, state.control, ended=False)
            await counted.send(client_name(client), sent)
        names = {client_name(client): client for client in assignments}
        if isinstance(uploads, Masked):
            totals = await uploads.take(federation, counted, state, names)
        else:
            messages = await collect(counted, names, uploads.kind, index)
            async with costs.compute("local"):
                came = {names[name]: message for name, message in messages.items()}
                totals = uploads.open(federation, state, came)
        async with costs.compute("local"):
            state = aggregate(state, federation, totals)
        counted.end_round(index)
        async with costs.compute(SCORING):
            scores.append(scoring.of(state.weights, state.round_index, rounds))
        if scoring.ends(scores[-1]):
            break
    nothing = np.zeros(0, start.dtype)
    for client in range(federation.settings.clients):
        ended = ModelSent(state.round_index, 0, nothing, nothing, ended=True)
        await channel.send(client_name(client), ended)
    return ServerEnd(state, scores, counted.rounds)


async def take_part(
    channel: Channel,
    costs: Costs,
    *,
    client: int,
    problem: ClientProblem,
    federation: Federation,
    uploads: Coding | Masked,
    dtype: np.dtype[np.floating],
) -> Mapping[int, Sent]:
    """A client's program: train whenever the server asks, until it ends the federation.

    Returns:
        What it sent in the rounds that it was in.
    """
    state, counted = ClientState(), Counted(channel, costs)
    while True:
        _, sent = await channel.receive([SERVER], ModelSent)
        if sent.ended:
            return counted.rounds
        _require_fitting(federation, sent, max(counted.rounds, default=-1) + 1, dtype)
        broadcast = Broadcast(sent.step, client, sent.block, sent.weights, sent.control)
        async with costs.compute("local"):
            result = local_training(problem, federation, broadcast, state)
        if isinstance(uploads, Masked):
            kept = await uploads.give(federation, counted, costs, sent.step, result)
            state = kept or state
        else:
            async with costs.compute("local"):
                message, state = uploads.seal(federation, result.upload, broadcast, result.state)
            await counted.send(SERVER, message)
        counted.end_round(sent.step, result.gradients)


def _require_fitting(
    federation: Federation, sent: ModelSent, begins: int, dtype: np.dtype[np.floating]
) -> None:
    """Refuse a wrong round, an unknown block, or arrays of the wrong shape."""
    if not begins <= sent.step < federation.settings.rounds:
        raise UnexpectedMessage(
            f"{SERVER} sent round {sent.step} where one from {begins} to "
            f"{federation.settings.rounds - 1} was expected"
        )
    if sent.block >= len(federation.blocks):
        raise UnexpectedMessage(
            f"{SERVER} asked for block {sent.block} of {len(federation.blocks)}"
        )
    size = federation.blocks.parameters
    require_array(SERVER, sent.weights, size, dtype)
    require_array(SERVER, sent.control, size if federation.method.corrects else 0, dtype)


@dataclass(frozen=True, eq=False)
class Federated:
    """A finished federation: the server's state and the rounds."""

    state: ServerState
    rounds: tuple[Round, ...]


def simulate_federation(
    problems: Sequence[ClientProblem],
    federation: Federation,
    start: RealArray,
    *,
    uploads: Coding | Masked | None = None,
    scoring: ScoringRule | None = None,
    network: Line = PRESETS["lan"],
    stopwatch: Stopwatch | None = None,
    tamper: Tamper | None = None,
) -> Federated:
    """Run a federation to its last round, or to its target.

    Args:
        problems: of each client.
        federation: method, settings and blocks.
        start: θ before the first round, shape (p,), float32 or float64.
        uploads: how they travel; by default `Plain`.
        scoring: when and how θ is scored; by default never.
        network: the line of every party.
        stopwatch: how computation is timed.
        tamper: fault injection into the network.

    Raises:
        ConfigError: another number of problems than clients, or of weights than blocks hold, or
            uploads that cannot be masked.
        PeerError: a party is gone or sent what does not fit.
        TrainingDiverged: weights are no longer finite.
    """
    settings, uploads = federation.settings, uploads or Plain()
    if len(problems) != settings.clients:
        raise ConfigError(f"{len(problems)} problems: expected one of each {settings.clients}")
    if start.shape != (federation.blocks.parameters,):
        raise ConfigError(
            f"weights of {start.shape}: blocks hold {federation.blocks.parameters} parameters"
        )
    if isinstance(uploads, Masked):
        uploads.check(federation)
    programs: dict[str, Program[Any]] = {
        client_name(client): partial(
            take_part,
            client=client,
            problem=problem,
            federation=federation,
            uploads=uploads,
            dtype=start.dtype,
        )
        for client, problem in enumerate(problems)
    }
    programs[SERVER] = partial(
        serve,
        federation=federation,
        start=start,
        uploads=uploads,
        scoring=scoring or ScoringRule(),
    )
    ended = simulate(
        programs, network, job_hash=federation.digest, stopwatch=stopwatch, tamper=tamper
    )
    served: ServerEnd = ended.results[SERVER]
    (paper, full), rounds = floats_of_round(federation), []
    for index, score in enumerate(served.scores):
        clients = tuple(federation.assignments(index))
        sent: list[Sent] = [ended.results[client_name(client)][index] for client in clients]
        up, down = sum(each.floats for each in sent), served.sent[index]
        rounds.append(
            Round(
                clients=clients,
                paper_floats=paper * up / full,
                up_floats=up,
                down_floats=down.floats,
                up_bytes=sum(each.bytes_sent for each in sent),
                down_bytes=down.bytes_sent,
                gradients=sum(each.gradients for each in sent),
                ends_s=down.ends_s,
                score=score,
            )
        )
    return Federated(served.state, tuple(rounds))
