"""What `bench staleness` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class StalenessSettings:
    """Every τ under every kind of straggler."""

    staleness: Annotated[
        tuple[int | Literal["unbounded"], ...],
        typer.Option(min=0, help="Values of tau, by commas: iterations, or `unbounded`."),
    ] = (0, 4, 64, 1024, "unbounded")
    stragglers: Annotated[
        tuple[str, ...],
        typer.Option(
            "--straggler", help="Slow parties by name, `turns`, `none`, by commas; all if absent."
        ),
    ] = ()
    factor: Annotated[float, typer.Option(help="How many times slower.")] = 4.0
    turn_s: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1
    compute_ms: Annotated[
        float,
        # A fixed time lets runs repeat to the bit; the server takes a fiftieth.
        typer.Option(min=0, help="What an iteration takes; 0: what it measures."),
    ] = 2.0
    batch_size: shared.Size = 100
    rounds: Annotated[int, typer.Option(min=1, help="Iterations of each party.")] = 3000
    learning_rate: Annotated[float, typer.Option(help="Falls with the root of rounds.")] = 3.0
    target_auc: shared.TargetAuc = 0.9
    network: shared.Network = shared.LAN
    repeats: shared.Repeats = 1
    seed: shared.Seed = 0
