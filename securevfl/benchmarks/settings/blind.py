"""What `bench blind` and `bench offline` are told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.protocols import catalogue

Loss = Literal["logistic", "taylor-logistic", "squared"]
Schedule = Annotated[
    Literal["constant", "inverse-sqrt"], typer.Option(help="Step sizes over rounds, of counted Q.")
]


@dataclass(frozen=True)
class BlindSettings:
    """Exchanges beside `plain`, over the same steps and batches, to AUCs or for so many rounds."""

    exchanges: Annotated[
        tuple[str, ...],
        typer.Option(
            "--exchange", help=f"Beside plain, by commas: {', '.join(catalogue.EXCHANGES)}."
        ),
    ] = ("bfv", "blind")
    steps: Annotated[
        tuple[str, ...],
        typer.Option(help="Q:S, by commas: local steps, or exact, on so many rows, or full."),
    ] = ("exact:full", "5:256")
    losses: Annotated[tuple[Loss, ...], typer.Option("--loss", help="By commas.")] = ("logistic",)
    target_aucs: Annotated[
        tuple[float, ...],
        typer.Option("--target-auc", help="Held-out AUCs, by commas; if absent all rounds."),
    ] = ()
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the most, where there is an AUC.")] = (
        20
    )
    learning_rate: shared.LearningRate = None
    schedule: Schedule = "constant"
    repeats: shared.Repeats = 3
    network: shared.Network = shared.LAN
    seed: shared.Seed = 0


@dataclass(frozen=True)
class OfflineSettings:
    """One job under `blind`."""

    steps: Annotated[
        str, typer.Option(help="Q:S: local steps, or exact, on so many rows, or full.")
    ] = "exact:full"
    loss: Annotated[Loss, typer.Option(help="Of the job.")] = "logistic"
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to be ready for.")] = 20
    learning_rate: Annotated[float, typer.Option(help="Step size of a counted Q.")] = 0.3
    places: Annotated[
        int, typer.Option(min=1, help="To show, those that take longest; the others together.")
    ] = 15
    seed: shared.Seed = 0
