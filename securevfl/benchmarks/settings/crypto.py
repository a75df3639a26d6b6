"""What `bench crypto` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError
from securevfl.job import NetworkSettings

# Fast, and long enough to hide what is made offline.
FAST_LINE = NetworkSettings(latency_ms=20, bandwidth_mbit=1000)


@dataclass(frozen=True)
class CryptoSettings:
    """Every shape by every scheme.

    Raises:
        ConfigError: not as many S as P, or an unknown scheme.
    """

    samples: Annotated[tuple[int, ...], typer.Option(min=1, help="Batch sizes S, by commas.")] = (
        *(64, 256, 4096),
    )
    features: Annotated[tuple[int, ...], typer.Option(min=1, help="Columns P, one for each S.")] = (
        15,
        64,
        128,
    )
    schemes: Annotated[
        tuple[str, ...], typer.Option("--scheme", help="Homomorphic schemes, by commas.")
    ] = ("paillier", "ckks", "bfv")
    zero_one: Annotated[
        bool, typer.Option("--zero-one", help="X of 0 and 1, which is exact without fraction bits.")
    ] = False
    paillier_bits: Annotated[
        tuple[int, ...], typer.Option("--key-bits", help="Paillier moduli, by commas.")
    ] = (2048, 3072)
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the job that noise flooding has to cover.")
    ] = 1000
    network: shared.Network = FAST_LINE
    workers: Annotated[
        int, typer.Option(min=1, help="Measure paillier fast in so many processes as well.")
    ] = 1
    repeats: shared.Repeats = 5
    seed: shared.Seed = 0

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.features):
            raise ConfigError(
                f"--samples has {len(self.samples)} values, --features {len(self.features)}: "
                "expected one each"
            )
        from securevfl.crypto.schemes import SCHEMES  # noqa: PLC0415  # help needs none of it

        for name in self.schemes:
            if name not in SCHEMES:
                raise ConfigError(f"--scheme has {name!r}, some of {', '.join(SCHEMES)} expected")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Pairs (S, P)."""
        return list(zip(self.samples, self.features, strict=True))
