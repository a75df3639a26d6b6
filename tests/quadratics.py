"""Clients that disagree: quadratics with minima and curvatures of their own, in several rows."""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.protocols.horizontal.blocks import Blocks
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.local import ClientState, LocalResult, local_training
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.server import ServerState, aggregate, total
from securevfl.protocols.horizontal.settings import Settings

PARAMETERS = 12


@dataclass(frozen=True, eq=False)
class Quadratic:
    """½(θ − m_s)ᵀA(θ − m_s) for each row s, A the client's and m_s the row's."""

    curvature: FloatArray
    minima: FloatArray

    @property
    def rows(self) -> int:
        """Rows of the client."""
        return len(self.minima)

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        """Mean of A(θ − m_s)."""
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
    """Where the mean over clients is least."""
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
        "epochs": 3,
        **settings,
    }
    return Federation(method, Settings(**given), blocks)  # type: ignore[arg-type]


def run(
    problems: list[Quadratic], by: Federation, start: RealArray | None = None
) -> tuple[ServerState, dict[int, ClientState]]:
    """All rounds, functions alone."""
    state = ServerState.start(np.zeros(PARAMETERS) if start is None else start, by.method)
    kept: dict[int, ClientState] = {}
    for index in range(by.settings.rounds):
        results: dict[int, LocalResult] = {}
        for each in by.assignments(index):
            before = kept.get(each.client, ClientState())
            sent = state.broadcast(each)
            results[each.client] = local_training(problems[each.client], by, sent, before)
        kept |= {client: each.state for client, each in results.items()}
        state = aggregate(state, by, total(by.blocks, [r.upload for r in results.values()]))
    return state, kept
