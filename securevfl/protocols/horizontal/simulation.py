"""A federation in one process: server and clients as programs over the simulated network.

In virtual time clients compute side by side however many cores there are. A client that does not
take part in a round does nothing in it, so a hundred clients cost what those of a round cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError
from securevfl.protocols.horizontal.accounting import Round, floats_of_round
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.handing import SERVER, Handing, Sealed
from securevfl.protocols.horizontal.problem import ClientProblem
from securevfl.protocols.horizontal.programs import (
    Ledger,
    Scoring,
    Served,
    client_name,
    serve,
    take_part,
)
from securevfl.protocols.horizontal.server import ServerState
from securevfl.runtime.costs import Stopwatch
from securevfl.runtime.line import PRESETS, Line
from securevfl.runtime.simulation import Program, Tamper, simulate


@dataclass(frozen=True)
class World:
    """What a simulated federation runs in; tests change it.

    Attributes:
        network: the line of every party.
        handing: of uploads.
        scoring: when and how θ is scored.
        stopwatch: how computation is timed.
        tamper: fault injection into the network.
    """

    network: Line = PRESETS["lan"]
    handing: Handing = field(default_factory=Sealed)
    scoring: Scoring = field(default_factory=Scoring)
    stopwatch: Stopwatch | None = None
    tamper: Tamper | None = None


@dataclass(frozen=True, eq=False)
class Federated:
    """A federation at its end.

    Attributes:
        state: the server's.
        rounds: what each cost and came to.
    """

    state: ServerState
    rounds: tuple[Round, ...]


def simulate_federation(
    problems: Sequence[ClientProblem],
    federation: Federation,
    start: RealArray,
    world: World | None = None,
) -> Federated:
    """Run a federation to its last round, or to its target.

    Args:
        problems: of each client.
        federation: method, settings and blocks.
        start: θ before the first round, shape (p,), float32 or float64.
        world: what it runs in.

    Raises:
        ConfigError: another number of problems than clients, or of weights than blocks hold, or
            uploads that cannot go as the world says.
        PeerError: a party is gone or sent what does not fit.
        TrainingDiverged: weights are no longer finite.
    """
    settings, world = federation.settings, world or World()
    if len(problems) != settings.clients:
        raise ConfigError(f"{len(problems)} problems: expected one of each {settings.clients}")
    if start.shape != (federation.blocks.parameters,):
        raise ConfigError(
            f"weights of {start.shape}: blocks hold {federation.blocks.parameters} parameters"
        )
    world.handing.check(federation)
    client = partial(take_part, federation=federation, handing=world.handing, dtype=start.dtype)
    server = partial(serve, federation=federation, handing=world.handing, start=start)
    programs: dict[str, Program[Any]] = {
        client_name(number): partial(client, client=number, problem=problem)
        for number, problem in enumerate(problems)
    }
    programs[SERVER] = partial(server, scoring=world.scoring)
    ended = simulate(
        programs,
        world.network,
        job_hash=federation.digest,
        stopwatch=world.stopwatch,
        tamper=world.tamper,
    )
    served: Served = ended.results[SERVER]
    ledgers = [ended.results[client_name(number)] for number in range(settings.clients)]
    return Federated(served.state, _rounds(federation, served, ledgers))


def _rounds(federation: Federation, served: Served, ledgers: Sequence[Ledger]) -> tuple[Round, ...]:
    places = [dict(zip(each.rounds, range(len(each.rounds)), strict=True)) for each in ledgers]
    whole = floats_of_round(federation)
    rounds = []
    for index, score in enumerate(served.scores):
        clients = tuple(each.client for each in federation.assignments(index))
        sent = [(ledgers[client], places[client][index]) for client in clients]
        up = sum(ledger.floats[at] for ledger, at in sent)
        rounds.append(
            Round(
                clients=clients,
                paper_floats=whole.paper * up / whole.up,
                up_floats=up,
                down_floats=served.ledger.floats[index],
                up_bytes=sum(ledger.bytes_sent[at] for ledger, at in sent),
                down_bytes=served.ledger.bytes_sent[index],
                gradients=sum(ledger.gradients[at] for ledger, at in sent),
                ends_s=served.ledger.ends_s[index],
                score=score,
            )
        )
    return tuple(rounds)
