"""Clients that disagree: quadratics with minima and curvatures of their own, in several rows."""

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.horizontal.client import Broadcast, ClientState, local_training
from securevfl.horizontal.codings import Coding, Plain
from securevfl.horizontal.federation import Blocks, Federation, Method, Settings
from securevfl.horizontal.server import ServerState, aggregate
from securevfl.wire.codec import StepMessage, decode, encode

PARAMETERS = 12


@dataclass(frozen=True, eq=False)
class Quadratic:
    """½(θ − m_s)ᵀA(θ − m_s) for each row s, A the client's and m_s the row's."""

    curvature: FloatArray
    minima: FloatArray

    @property
    def rows(self) -> int:
        return len(self.minima)

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        found: RealArray = self.curvature @ (weights - self.minima[rows].mean(0))
        return found.astype(weights.dtype)


def quadratics(clients: int, seed: int, rows: int = 1) -> list[Quadratic]:
    """One problem a client, curvatures between 0.5 and 2."""
    rng = np.random.default_rng(seed)
    problems = []
    for _ in range(clients):
        basis, _ = np.linalg.qr(rng.standard_normal((PARAMETERS, PARAMETERS)))
        curvature = basis * rng.uniform(0.5, 2, PARAMETERS) @ basis.T
        middle = 2 * rng.standard_normal(PARAMETERS)
        problems.append(Quadratic(curvature, middle + rng.standard_normal((rows, PARAMETERS))))
    return problems


def optimum(problems: list[Quadratic]) -> FloatArray:
    curvature = np.mean([each.curvature for each in problems], 0)
    pulled = np.mean([each.curvature @ each.minima.mean(0) for each in problems], 0)
    return np.linalg.solve(curvature, pulled)


def federation(method: Method, blocks: Blocks, **settings: float) -> Federation:
    """Of 8 clients, 4 a round, 3 steps each, unless settings say otherwise."""
    given = {
        "clients": 8,
        "taking_part": 4,
        "rounds": 400,
        "learning_rate": 0.1,
        "decay": 1.0,
        "weight_decay": 0.0,
        "epochs": 3,
        **settings,
    }
    return Federation(method, Settings(**given), blocks)  # type: ignore[arg-type]


def broadcast(by: Federation, state: ServerState, client: int) -> Broadcast:
    block = by.assignments(state.round_index)[client]
    return Broadcast(state.round_index, client, block, state.weights, state.control)


def first(by: Federation, round_index: int = 0) -> int:
    return next(iter(by.assignments(round_index)))


def run(
    problems: list[Quadratic],
    by: Federation,
    start: RealArray | None = None,
    coding: Coding | None = None,
    *,
    lost: Container[tuple[int, int]] = (),
    sent: list[bytes] | None = None,
) -> tuple[ServerState, dict[int, ClientState]]:
    """All rounds, functions alone, over bytes; without the uploads of lost (client, round)."""
    state = ServerState.start(np.zeros(PARAMETERS) if start is None else start, by.method)
    kept: dict[int, ClientState] = {}
    coding, sent = coding or Plain(), [] if sent is None else sent
    for index in range(by.settings.rounds):
        messages: dict[int, StepMessage] = {}
        for client in by.assignments(index):
            if (client, index) in lost:
                continue
            given, before = broadcast(by, state, client), kept.get(client, ClientState())
            found = local_training(problems[client], by, given, before)
            message, kept[client] = coding.seal(by, found.upload, given, found.state)
            sent.append(encode(message))
            received = decode(sent[-1])
            assert isinstance(received, coding.kind)
            messages[client] = received
        state = aggregate(state, by, coding.open(by, state, messages))
    return state, kept
