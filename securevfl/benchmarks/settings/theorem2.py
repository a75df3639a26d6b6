"""What `bench theorem2` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError


@dataclass(frozen=True)
class Theorem2Settings:
    """The bound at every rule, Q, S and η; the rate at every rule and T."""

    local_rules: Annotated[
        tuple[Literal["exact", "curvature", "frozen"], ...],
        typer.Option("--local-rule", help="By commas; the theorem's is exact."),
    ] = ("exact", "curvature")

    local_steps: Annotated[
        tuple[int, ...], typer.Option(min=1, help="Bound: values of Q, which divide --steps.")
    ] = (1, 5, 20)
    batch_sizes: Annotated[
        tuple[int, ...],
        typer.Option("--batch-size", min=1, help="Bound: values of S, which divide N."),
    ] = (57, 228, 456)
    over_limit: Annotated[
        tuple[float, ...],
        typer.Option(help="Bound: step sizes over the largest that the theorem allows."),
    ] = (0.25, 0.75, 1.0, 4.0, 16.0)
    steps: Annotated[int, typer.Option(min=1, help="Bound: T, local steps in all.")] = 400
    roots: Annotated[
        tuple[int, ...], typer.Option(min=1, help="Rate: values of √T, which divide the rows.")
    ] = (4, 8, 16, 32, 64)
    rate_dataset: Annotated[str, typer.Option(help="Rate: data set by name.")] = "a9a"
    rate_rows: Annotated[int, typer.Option(min=1, help="Rate: training rows to take.")] = 4096
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of the batches; means.")] = 3
    seed: shared.Seed = 0

    def __post_init__(self) -> None:
        for count in self.local_steps:
            if self.steps % count:
                raise ConfigError(f"--local-steps {count} does not divide --steps {self.steps}")

    @property
    def seeds(self) -> range:
        """Of the batches drawn; training starts at zero."""
        return range(self.seed, self.seed + self.repeats)
