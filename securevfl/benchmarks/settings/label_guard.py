"""What `bench label-guard` is told."""

from dataclasses import dataclass
from typing import Annotated

import typer

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError

SAMPLINGS = ("partition", "shuffle")
KINDS = ("gaussian", "one-hot", "heavy")


@dataclass(frozen=True)
class Planted:
    """What to make.

    Attributes:
        positives: share of class 1.
        rows: N, training rows.
        columns: P of the feature party.
        signal: deviation of the log-odds that its columns explain; 0: they say nothing.
        kind: its columns: normal, one-hot categories, or Student's t of three degrees.
    """

    positives: float
    rows: int = 20_000
    columns: int = 20
    signal: float = 0.7
    kind: str = "gaussian"


@dataclass(frozen=True)
class LabelGuardSettings:
    """The full batch, and every ratio with the smallest batches that keep within it."""

    ratios: Annotated[
        tuple[float, ...],
        typer.Option(
            "--ratio", help="Sums of P/(S v) over a person's batches, v = p(1 - p) of the rarest."
        ),
    ] = (1 / 200, 1 / 100, 1 / 50, 1 / 20, 1 / 10, 1 / 4, 1 / 2)
    epochs: shared.Epochs = 3
    sampling: Annotated[
        str, typer.Option(help="partition, or shuffle: another partition every epoch.")
    ] = "partition"
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of batches and starts; means.")] = 3
    seed: shared.Seed = 0
    positives: Annotated[
        float | None, typer.Option(help="Made data with this share of class 1, no data set.")
    ] = None
    rows: Annotated[int, typer.Option(min=100, help="Made data: N.")] = Planted.rows
    columns: Annotated[int, typer.Option(min=1, help="Made data: P.")] = Planted.columns
    signal: Annotated[
        float, typer.Option(min=0, help="Made data: deviation of log-odds by these columns.")
    ] = Planted.signal
    kind: Annotated[str, typer.Option(help=f"Made data: {', '.join(KINDS)}.")] = Planted.kind

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise ConfigError(f"--sampling {self.sampling!r}: expected {' or '.join(SAMPLINGS)}")
        if self.kind not in KINDS:
            raise ConfigError(f"--kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        if self.positives is not None and not 0 < self.positives < 1:
            raise ConfigError(f"--positives {self.positives:g}: expected more than 0, less than 1")

    @property
    def seeds(self) -> range:
        """Of batches drawn and of starts."""
        return range(self.seed, self.seed + self.repeats)

    @property
    def planted(self) -> Planted | None:
        """The data to make; None where a data set is named."""
        if self.positives is None:
            return None
        return Planted(self.positives, self.rows, self.columns, self.signal, self.kind)
