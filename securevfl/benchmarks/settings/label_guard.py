"""What `bench label-guard` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class LabelGuardSettings:
    """Every ratio, with the smallest batches that keep within it."""

    ratios: Annotated[
        tuple[float, ...], typer.Option("--ratio", help="Limits of the guard, by commas.")
    ] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    epochs: shared.Epochs = 10
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of batches and starts; means.")] = 3
    seed: shared.Seed = 0

    @property
    def seeds(self) -> range:
        """Of batches drawn and of starts."""
        return range(self.seed, self.seed + self.repeats)
