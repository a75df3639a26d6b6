"""What `bench theorem1` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class Theorem1Settings:
    """Every case, once."""

    rounds: Annotated[int, typer.Option(min=1, help="Rounds of both runs.")] = 1000
    batch_size: shared.Size = 64
    seed: Annotated[int, typer.Option(min=0, help="Of batches, starts and rotations.")] = 0
