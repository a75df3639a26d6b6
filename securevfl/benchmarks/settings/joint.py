"""What `bench joint` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared
from securevfl.protocols import catalogue


@dataclass(frozen=True)
class JointSettings:
    """Every K under every exchange; training itself has nothing set but the most rounds."""

    exchanges: Annotated[
        tuple[str, ...],
        typer.Option("--exchange", help=f"By commas: {', '.join(catalogue.EXCHANGES)}."),
    ] = ("plain",)
    within: Annotated[
        float, typer.Option(min=0, help="How near: AUC of two classes, accuracy of more.")
    ] = 0.001
    max_rounds: shared.MaxRounds = 100
    repeats: shared.Repeats = 3
    network: shared.Network = shared.LAN
    seed: shared.Seed = 0
