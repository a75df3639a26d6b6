"""What `bench fdml` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError

Model = Literal["lr", "nn"]


@dataclass(frozen=True)
class FdmlBenchSettings:
    """Every model by fdml, in one place, and by each party alone.

    Raises:
        ConfigError: not as many step sizes or penalties as models.
    """

    models: Annotated[
        tuple[Model, ...],
        typer.Option("--model", help="lr, nn (a network at each party), by commas."),
    ] = ("lr", "nn")
    learning_rate: Annotated[
        tuple[float, ...],
        typer.Option(help="Step size of each model; falls with the root of rounds."),
    ] = (3.0, 3.0)
    l2: Annotated[
        tuple[float, ...], typer.Option(min=0, help="L2 regularization of each model.")
    ] = (0.0, 1e-4)
    epochs: shared.Epochs = 20
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of nn at each party.")] = 32
    batch_size: shared.Size = 100
    staleness: Annotated[
        int | Literal["unbounded"], typer.Option(min=0, help="Tau: iterations, or `unbounded`.")
    ] = 0
    batches_per_message: Annotated[
        int, typer.Option(min=1, help="Iterations that share a message; at most tau + 1.")
    ] = 1
    precision: Annotated[
        Literal["double", "single"], typer.Option(help="What predictions travel in.")
    ] = "double"
    network: shared.Network = shared.LAN
    repeats: shared.Repeats = 3
    seed: shared.Seed = 0

    def __post_init__(self) -> None:
        if not len(self.models) == len(self.learning_rate) == len(self.l2):
            raise ConfigError(
                f"--model has {len(self.models)} values, --learning-rate "
                f"{len(self.learning_rate)}, --l2 {len(self.l2)}: expected one each"
            )
