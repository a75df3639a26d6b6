"""What `bench cost-law` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared


@dataclass(frozen=True)
class CostLawSettings:
    """Every scheme at every Q."""

    schemes: Annotated[
        tuple[str, ...], typer.Option("--exchange", help="Homomorphic exchanges, by commas.")
    ] = ("paillier", "ckks", "bfv")
    key_bits: Annotated[int, typer.Option(help="Paillier modulus: 3072 or 2048.")] = 2048
    local_steps: Annotated[tuple[int, ...], typer.Option(help="Values of Q, by commas.")] = (1, 50)
    batch_size: shared.FullOrSize = 64
    rounds: Annotated[int, typer.Option(min=1, help="Rounds a run.")] = 3
    repeats: Annotated[int, typer.Option(min=1, help="Alternating runs of each Q; medians.")] = 5
    seed: shared.Seed = 0
