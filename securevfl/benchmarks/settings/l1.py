"""What `bench l1` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError

Method = Literal["dbcd", "dbcd-alone", "dbcd-greedy", "fedbcd-p", "fedbcd-s"]


@dataclass(frozen=True)
class L1Settings:
    """Every method at every K and λ₁, cold, and dbcd's whole path, warm.

    Raises:
        ConfigError: λ₁ that do not fall.
    """

    l1: Annotated[tuple[float, ...], typer.Option(help="Values of lambda, falling, by commas.")] = (
        0.03,
        0.01,
        0.001,
        0.0001,
    )
    methods: Annotated[
        tuple[Method, ...],
        typer.Option(
            "--method",
            help="By commas: dbcd, dbcd-alone (searches along the new direction alone, as the "
            "paper does), dbcd-greedy, fedbcd-p, fedbcd-s.",
        ),
    ] = ("dbcd", "dbcd-alone", "dbcd-greedy", "fedbcd-p")
    parties: Annotated[tuple[int, ...], typer.Option(help="Values of K, by commas.")] = (2, 3)
    loss: Annotated[Literal["logistic", "squared", "squared-hinge"], typer.Option(help="Loss.")] = (
        "logistic"
    )
    size: Annotated[int, typer.Option(min=1, help="Columns a party of a greedy working set.")] = 20
    local_steps: Annotated[int, typer.Option(min=1, help="Q of fedbcd.")] = 5
    gap: Annotated[float, typer.Option(help="Objective to come to, relative to the least.")] = 1e-6
    max_rounds: Annotated[int, typer.Option(min=1, help="Of dbcd at each lambda.")] = 100
    fedbcd_rounds: Annotated[int, typer.Option(min=1, help="Of fedbcd at each lambda.")] = 100
    seed: shared.Seed = 0

    def __post_init__(self) -> None:
        if min(self.l1) <= 0 or self.gap <= 0:
            raise ConfigError("--l1 and --gap: expected values above 0")
        if any(after >= before for before, after in zip(self.l1, self.l1[1:], strict=False)):
            raise ConfigError("--l1: expected falling values")
