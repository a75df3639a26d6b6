"""Server and clients as programs over a channel.

Only clients that take part in a round hear of it; all hear of the end.

Learns:
    server: what `Handing.learns` says of uploads.
    client: θ, with κ, in the rounds that it takes part in, and its place in the groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from typing import SupportsFloat

import numpy as np
from typing_extensions import override

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, UnexpectedMessage
from securevfl.protocols.horizontal.accounting import floats_in
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.handing import SERVER, End, Handing
from securevfl.protocols.horizontal.local import Broadcast, ClientState, local_training
from securevfl.protocols.horizontal.problem import ClientProblem
from securevfl.protocols.horizontal.server import ServerState, aggregate
from securevfl.protocols.horizontal.settings import number, whole
from securevfl.protocols.horizontal.uploads import require_array
from securevfl.runtime.channel import Channel, ChannelAround
from securevfl.runtime.costs import SCORING, Costs
from securevfl.wire.codec import Message, StepMessage, message_kind

Score = Callable[[RealArray], SupportsFloat]
"""Of weights, one number; the higher the better."""


def client_name(client: int) -> str:
    """The party that a client is."""
    return f"client-{client}"


@message_kind(80, stage="round", carries="values", shows="weights")
class ModelSent(StepMessage):
    """The server to a client that takes part: its group's block, θ⁰ and κ; at the end nothing."""

    block: int
    weights: RealArray
    control: RealArray
    ended: bool


@dataclass(frozen=True)
class Scoring:
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

    def is_due(self, done: int, rounds: int) -> bool:
        """Whether θ is scored after so many rounds."""
        return self.score is not None and (done % self.every == 0 or done == rounds)

    def is_reached(self, score: float | None) -> bool:
        """Whether a score ends training."""
        return self.target is not None and score is not None and score >= self.target


@dataclass(frozen=True, eq=False)
class Ledger:
    """What one party sent, round by round of those that it was in.

    Attributes:
        rounds: which.
        floats: numbers sent.
        bytes_sent: bytes sent.
        gradients: single rows' gradients taken.
        ends_s: this party's clock at the end.
    """

    rounds: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def note(self, costs: Costs, index: int, floats: float, gradients: int = 0) -> None:
        """Add a round, given costs and numbers sent until its end."""
        self.rounds.append(index)
        self.floats.append(floats - sum(self.floats))
        self.bytes_sent.append(sum(costs.bytes_sent.values()) - sum(self.bytes_sent))
        self.gradients.append(gradients)
        self.ends_s.append(costs.clock.now())


class Counted(ChannelAround):
    """A channel that counts the numbers in what is sent.

    Attributes:
        floats: so far.
    """

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.floats = 0.0

    @override
    async def send(self, to: str, message: Message) -> None:
        """As the channel does, counted."""
        self.floats += floats_in(message)
        await super().send(to, message)


@dataclass(frozen=True, eq=False)
class Served:
    """What the server is left with.

    Attributes:
        state: after the last round.
        scores: of θ after each round, None where it was not scored.
        ledger: its own.
    """

    state: ServerState
    scores: list[float | None]
    ledger: Ledger


async def serve(
    channel: Channel,
    costs: Costs,
    *,
    federation: Federation,
    start: RealArray,
    handing: Handing,
    scoring: Scoring,
) -> Served:
    """The server's program.

    Args:
        channel: to the clients.
        costs: its ledger.
        federation: its clients and their method.
        start: θ before the first round.
        handing: of uploads.
        scoring: when and how θ is scored.

    Raises:
        ConfigError: a score that is no number.
        PeerError: a client is gone or sent what does not fit.
        TrainingDiverged: θ or κ is no longer finite.
    """
    served = Served(ServerState.start(start, federation.method), [], Ledger())
    state, rounds = served.state, federation.settings.rounds
    counted = Counted(channel)
    end = End(federation, counted, costs)
    while state.round_index < rounds:
        index, assignments = state.round_index, federation.assignments(state.round_index)
        for each in assignments:
            sent = ModelSent(index, each.block, state.weights, state.control, ended=False)
            await counted.send(client_name(each.client), sent)
        names = {client_name(each.client): each.client for each in assignments}
        totals = await handing.take(end, state, names)
        async with costs.compute("local"):
            state = aggregate(state, federation, totals)
        costs.end_round()
        served.ledger.note(costs, index, counted.floats)
        score = None
        if scoring.score is not None and scoring.is_due(state.round_index, rounds):
            async with costs.compute(SCORING):
                score = number("what score gave", scoring.score(state.weights))
        served.scores.append(score)
        if scoring.is_reached(score):
            break
    nothing = np.zeros(0, start.dtype)
    for client in range(federation.settings.clients):
        ended = ModelSent(state.round_index, 0, nothing, nothing, ended=True)
        await channel.send(client_name(client), ended)
    return Served(state, served.scores, served.ledger)


async def take_part(
    channel: Channel,
    costs: Costs,
    *,
    client: int,
    problem: ClientProblem,
    federation: Federation,
    handing: Handing,
    dtype: np.dtype[np.floating],
) -> Ledger:
    """A client's program: train when the server says so, until it says that it is over.

    Args:
        channel: to the server.
        costs: its ledger.
        client: its number.
        problem: its rows.
        federation: that it is in.
        handing: of uploads.
        dtype: of θ.

    Raises:
        PeerError: the server is gone or sent what does not fit.
        TrainingDiverged: its weights are no longer finite.
    """
    state, ledger, counted = ClientState(), Ledger(), Counted(channel)
    end = End(federation, counted, costs)
    while True:
        _, sent = await channel.receive([SERVER], ModelSent)
        if sent.ended:
            return ledger
        _require_fitting(federation, sent, ledger, dtype)
        broadcast = Broadcast(sent.step, client, sent.block, sent.weights, sent.control)
        async with costs.compute("local"):
            result = local_training(problem, federation, broadcast, state)
        state = await handing.give(end, broadcast, result) or state
        costs.end_round()
        ledger.note(costs, sent.step, counted.floats, result.gradients)


def _require_fitting(
    federation: Federation, sent: ModelSent, ledger: Ledger, dtype: np.dtype[np.floating]
) -> None:
    """Check what the server sent.

    Raises:
        UnexpectedMessage: a round that is over or never comes, no such block, or arrays of another
            size or dtype.
    """
    begins = ledger.rounds[-1] + 1 if ledger.rounds else 0
    if not begins <= sent.step < federation.settings.rounds:
        raise UnexpectedMessage(
            f"{SERVER} sent round {sent.step} where one from {begins} to "
            f"{federation.settings.rounds - 1} is due"
        )
    if sent.block >= len(federation.blocks):
        raise UnexpectedMessage(
            f"{SERVER} asked for block {sent.block} of {len(federation.blocks)}"
        )
    size = federation.blocks.parameters
    require_array(SERVER, sent.weights, size, dtype)
    require_array(SERVER, sent.control, size if federation.method.corrects else 0, dtype)
