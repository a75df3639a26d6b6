"""What `bench fdml-scale` is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError

Model = Literal["lr", "nn"]


@dataclass(frozen=True)
class ScaleSettings:
    """FDML beside one place on shards, by set and by batch size.

    Raises:
        ConfigError: not as many numbers of batches a message as batch sizes.
    """

    shards: Annotated[
        tuple[Path, ...],
        typer.Option(help="What `securevfl data make planted-sparse` wrote, by commas."),
    ] = (Path("planted-sparse"),)
    model: Annotated[Model, typer.Option(help="lr, or nn: a network at each party.")] = "lr"
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of nn at each party.")] = 16
    batch_size: Annotated[
        tuple[int, ...], typer.Option(min=1, help="S: rows a batch, by commas.")
    ] = (1000, 10000)
    batches_per_message: Annotated[
        tuple[int, ...],
        typer.Option(min=1, help="Iterations that share a message at each S; tau is one less."),
    ] = (4, 1)
    precision: Annotated[
        Literal["double", "single"], typer.Option(help="What predictions travel in.")
    ] = "double"
    learning_rate: Annotated[float, typer.Option(help="Falls with the root of rounds.")] = 10.0
    standardize: Annotated[bool, typer.Option(help="Columns to deviation 1.")] = False
    epochs: shared.Epochs = 1
    alone: Annotated[bool, typer.Option(help="Each party by itself, too.")] = True
    processes: Annotated[
        bool, typer.Option(help="FDML with every party a process, too: the wall's seconds.")
    ] = False
    profile: Annotated[
        bool, typer.Option(help="Where an iteration goes, by phase, in a run of its own.")
    ] = False
    network: shared.Network = shared.LAN
    seed: shared.Seed = 0

    def __post_init__(self) -> None:
        if len(self.batch_size) != len(self.batches_per_message):
            raise ConfigError(
                f"--batch-size has {len(self.batch_size)} values, --batches-per-message "
                f"{len(self.batches_per_message)}: expected one each"
            )
