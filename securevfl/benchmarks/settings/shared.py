"""Options that several benchmarks have."""

from typing import Annotated, Literal

import typer

from securevfl.job import NetworkSettings
from securevfl.protocols import catalogue

LAN = NetworkSettings(preset="lan")

Algorithm = Annotated[str, typer.Option(help=f"One of {', '.join(catalogue.ALGORITHMS)}.")]
Epochs = Annotated[int, typer.Option(min=1, help="Over the training rows.")]
EvalEvery = Annotated[int, typer.Option(min=0, help="Rounds between scorings; 0: last only.")]
FullOrSize = Annotated[
    int | Literal["full"], typer.Option(min=1, help="S: rows a batch, or `full`.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Step size for all runs; tuned on a validation fifth if absent."),
]
LocalSteps = Annotated[
    tuple[int | Literal["exact"], ...],
    typer.Option(
        help="Values of Q, by commas; exact takes all rows, whatever S, and no step size."
    ),
]
MaxRounds = Annotated[int, typer.Option(min=1, help="Give up after so many rounds.")]
Network = Annotated[
    NetworkSettings, typer.Option(help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A first look: one seed and fewer rows.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs with seeds of their own; medians.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of batches and starts (never of keys).")]
Size = Annotated[int, typer.Option(min=1, help="S: rows a batch.")]
TargetAuc = Annotated[float, typer.Option(help="Held-out AUC to reach.")]
