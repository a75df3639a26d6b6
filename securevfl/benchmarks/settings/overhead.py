"""What `bench overhead` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class OverheadSettings:
    """One job of two parties in clear."""

    samples: shared.Size = 256
    features: Annotated[int, typer.Option(min=1, help="P: columns of each party.")] = 64
    rounds: Annotated[int, typer.Option(min=1, help="Rounds a run.")] = 500
    repeats: Annotated[int, typer.Option(min=1, help="Runs; medians.")] = 5
    seed: Annotated[int, typer.Option(min=0, help="Of the data, batches and starts.")] = 0
