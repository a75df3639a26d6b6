"""Options that several benchmarks have."""

from typing import Annotated

import typer

from securevfl.job import NetworkSettings

LAN = NetworkSettings(preset="lan")

Epochs = Annotated[int, typer.Option(min=1, help="Over the training rows.")]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Step size for all runs; tuned on a validation fifth if absent."),
]
MaxRounds = Annotated[int, typer.Option(min=1, help="Give up after so many rounds.")]
Network = Annotated[
    NetworkSettings, typer.Option(help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A first look: one seed and fewer rows.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs with seeds of their own; medians.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of batches and starts (never of keys).")]
Size = Annotated[int, typer.Option(min=1, help="S: rows a batch.")]
