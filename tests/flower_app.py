"""Quadratics on Flower's simulation engine: `python -m tests.flower_app FILE M ROUNDS METHOD…`.

Every method is a federation of its own, one after the other in one run. FILE gets θ after every
round by method, and whose problem each client number has.
"""

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from securevfl.arrays import RealArray
from securevfl.flower import FederationStrategy, client_app, sizes_of, vector_of
from securevfl.horizontal.federation import METHODS, Blocks, Federation
from tests.quadratics import Quadratic, federation, quadratics

SHAPES = {"first.weight": (3, 2), "first.bias": (2,), "last.weight": (2, 2)}


def start() -> ArrayRecord:
    draws = np.random.default_rng(11)
    return ArrayRecord(
        {
            name: Array(draws.standard_normal(shape).astype(np.float32))
            for name, shape in SHAPES.items()
        }
    )


def of(method: str, clients: int, rounds: int) -> Federation:
    """Two blocks and a shared one; two thirds of the clients, or both of two, take part."""
    return federation(
        METHODS[method],
        Blocks.equal(sizes_of(start()), 2, shared=["first.bias"]),
        clients=clients,
        taking_part=max(2, clients * 2 // 3),
        rounds=rounds,
        learning_rate=0.05,
        epochs=2,
        batch_size=4,
    )


def problems(clients: int) -> list[Quadratic]:
    return quadratics(clients, 5, rows=10)


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def client(methods: Sequence[str], clients: int, rounds: int) -> ClientApp:
    every = problems(clients)
    apps = {
        method: client_app(of(method, clients, rounds), lambda context: every[partition(context)])
        for method in methods
    }
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return apps[str(message.content.config_records["config"]["method"])](message, context)

    @app.query()
    def who(message: Message, context: Context) -> Message:
        found = MetricRecord({"who": partition(context)})
        return Message(RecordDict({"who": found}), reply_to=message)

    return app


def trained(grid: Grid, method: str, clients: int, rounds: int) -> RealArray:
    """θ at the start and after every round, shape (rounds + 1, p)."""
    after = []

    def note(_: int, arrays: ArrayRecord) -> None:
        after.append(vector_of(arrays))

    FederationStrategy(of(method, clients, rounds)).start(
        grid,
        start(),
        num_rounds=rounds,
        timeout=300,
        train_config=ConfigRecord({"method": method}),
        evaluate_fn=note,
    )
    return np.array(after)


def whose(grid: Grid) -> list[int]:
    nodes = sorted(grid.get_node_ids())
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    said: Mapping[int, Message] = {
        reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked, timeout=300)
    }
    return [int(str(said[node].content.metric_records["who"]["who"])) for node in nodes]


def server(methods: Sequence[str], clients: int, rounds: int, file: str) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        found = {method: trained(grid, method, clients, rounds) for method in methods}
        np.savez(file, whose=whose(grid), **found)  # type: ignore[arg-type]  # not its allow_pickle

    return app


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    clients, rounds, methods = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    run_simulation(
        server(methods, clients, rounds, sys.argv[1]),
        client(methods, clients, rounds),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
