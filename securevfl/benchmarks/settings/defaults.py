"""What `bench defaults` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class DefaultsSettings:
    """Every data set among its usual parties; training itself has nothing set but a seed."""

    datasets: Annotated[
        tuple[str, ...], typer.Option("--dataset", help="Data sets by name, by commas.")
    ] = ("breast_cancer", "digits")
    repeats: shared.Repeats = 5
    seed: shared.Seed = 0
