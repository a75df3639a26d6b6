"""What `bench transfer` and `bench overlap` are told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.protocols import catalogue

Alignment = Annotated[float, typer.Option(min=0, help="Weight of the alignment of u.")]
Units = Annotated[int, typer.Option(min=1, help="Of each party's hidden layer.")]
Schedule = Annotated[
    Literal["constant", "inverse-sqrt"], typer.Option(help="Step sizes over rounds.")
]
L2 = Annotated[float, typer.Option(min=0, help="L2 regularization.")]


@dataclass(frozen=True)
class TransferSettings:
    """Every exchange at every Q and μ."""

    exchanges: Annotated[
        tuple[str, ...],
        typer.Option("--exchange", help=f"By commas: {', '.join(catalogue.EXCHANGES)}."),
    ] = ("plain", "paillier", "bfv")
    local_steps: Annotated[tuple[int, ...], typer.Option(help="Values of Q, by commas.")] = (
        1,
        5,
        10,
    )
    proximal: Annotated[tuple[float, ...], typer.Option(help="Values of μ, by commas.")] = (0.0,)
    alternating: Annotated[
        bool, typer.Option("--alternating", help="The label party steps first (FedBCD-s).")
    ] = False
    overlap: Annotated[
        int | None, typer.Option(min=2, help="Rows that both parties hold; all if absent.")
    ] = None
    units: Units = 64
    alignment: Alignment = 1 / 128
    batch_size: shared.FullOrSize = 256
    target_aucs: Annotated[
        tuple[float, ...],
        typer.Option("--target-auc", help="Held-out AUCs to reach, by commas; a row each."),
    ] = (0.70,)
    max_rounds: shared.MaxRounds = 50
    eval_every: shared.EvalEvery = 1
    learning_rate: shared.LearningRate = None
    tuning: Annotated[
        Literal["shared", "per-q"],
        typer.Option(help="Tune one step size at the largest Q for all, or one for each Q."),
    ] = "shared"
    schedule: Schedule = "inverse-sqrt"
    local_rule: Annotated[
        Literal["curvature", "gauss-newton"],
        typer.Option(help="In clear; gauss-newton is what encryption has."),
    ] = "curvature"
    l2: L2 = 0.0
    key_bits: Annotated[int | None, typer.Option(help="Paillier modulus: 3072 or 2048.")] = None
    repeats: shared.Repeats = 3
    network: shared.Network = shared.LAN
    seed: shared.Seed = 0


@dataclass(frozen=True)
class OverlapSettings:
    """Every size of the overlap."""

    overlaps: Annotated[
        tuple[float, ...], typer.Option("--overlap", help="Parts of the training rows, by commas.")
    ] = (0.01, 0.1, 1.0)
    local_steps: Annotated[int, typer.Option(min=1, help="Q.")] = 5
    units: Units = 64
    alignment: Alignment = 1 / 128
    rounds: Annotated[int, typer.Option(min=1, help="Of a run.")] = 50
    learning_rate: shared.LearningRate = None
    schedule: Schedule = "inverse-sqrt"
    l2: L2 = 0.0
    repeats: shared.Repeats = 3
    seed: shared.Seed = 0
