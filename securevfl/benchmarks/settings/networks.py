"""What `bench networks` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class NetworksSettings:
    """Every algorithm at its values of Q, over networks with a head at the label party."""

    steps: Annotated[
        tuple[str, ...],
        typer.Option(help="Algorithms with their Q, by commas: fedsgd, or fedbcd-p:5."),
    ] = ("fedsgd", "fedbcd-p:3", "fedbcd-p:5", "fedbcd-s:1", "fedbcd-s:3", "fedbcd-s:5")
    model: Annotated[
        Literal["linear", "mlp", "cnn"], typer.Option(help="What gives representations.")
    ] = "cnn"
    representation: Annotated[int, typer.Option(min=1, help="Numbers in each.")] = 256
    channels: Annotated[
        tuple[int, ...], typer.Option(min=1, help="Of a cnn's convolutions, by commas.")
    ] = (64, 64)
    image_width: Annotated[int, typer.Option(min=1, help="Pixels in a line of a cnn's image.")] = 28
    precision: Annotated[
        Literal["double", "single"], typer.Option(help="That networks compute in.")
    ] = "single"
    batch_size: shared.Size = 256
    target_aucs: Annotated[
        tuple[float, ...],
        typer.Option("--target-auc", help="Held-out AUCs, by commas; runs end at the largest."),
    ] = (0.99, 0.997)
    max_rounds: shared.MaxRounds = 60
    learning_rate: Annotated[
        tuple[float, ...],
        typer.Option(
            help="η0 of steps η0/√(i+1); of several, by commas, the best on a validation fifth."
        ),
    ] = (0.1, 0.2, 0.3)
    scored_rows: Annotated[
        int, typer.Option(min=2, help="Held-out rows that are scored, of both classes evenly.")
    ] = 600
    repeats: shared.Repeats = 3
    seed: shared.Seed = 0
