"""What `bench horizontal` is told."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from securevfl.benchmarks.settings import shared

METHODS = (
    *("fedavg", "fedavgm", "fedadam", "scaffold", "feddc", "top-k", "fedpaq"),
    *("fedbcgd", "fedbcgd+", "fedbcgd:qsgd", "fedbcgd+:qsgd"),
)
TARGETS = {"cifar10": (0.4, 0.35), "mnist": (0.9, 0.8), "digits": (0.8, 0.7)}
"""Accuracies to reach, by set: with many classes a client, and with few."""
FEW_CLASSES = 0.3
QUICK_METHODS = ("fedavg", "fedbcgd")


@dataclass(frozen=True)
class HorizontalSettings:
    """Every method on every set of images at every split with every seed."""

    methods: Annotated[
        tuple[str, ...],
        typer.Option(
            "--method",
            help="By commas; a blockwise one also with :qsgd, :freezing, :unshared, :no-momentum.",
        ),
    ] = METHODS
    images: Annotated[
        tuple[str, ...], typer.Option(help="Sets by commas: cifar10, mnist, digits.")
    ] = ("cifar10", "mnist")
    rows: Annotated[int, typer.Option(min=10, help="Training images at most, of each set.")] = 15000
    dirichlet: Annotated[
        tuple[float, ...], typer.Option(help="D, by commas: small is few classes a client.")
    ] = (0.6, 0.1)
    clients: Annotated[int, typer.Option(min=1, help="M.")] = 100
    taking_part: Annotated[int, typer.Option(min=1, help="m: clients of a round.")] = 10
    blocks: Annotated[
        tuple[int, ...], typer.Option(min=1, help="b of blockwise methods, by commas; divides m.")
    ] = (5,)
    cut: Annotated[
        Literal["equal", "layers"],
        typer.Option(help="Blocks of as many weights each, or of whole tensors."),
    ] = "equal"
    shared_layers: Annotated[
        tuple[str, ...], typer.Option("--shared", help="Layers of the shared block, by commas.")
    ] = ("fc3",)
    epochs: Annotated[int, typer.Option(min=1, help="Of a client in a round.")] = 1
    batch_size: shared.Size = 50
    learning_rate: Annotated[
        tuple[float, ...],
        typer.Option(help="Of clients, by commas; chosen on validation images from several."),
    ] = (0.01, 0.03, 0.1, 0.3)
    decay: Annotated[float, typer.Option(help="Of the learning rate, a round.")] = 0.998
    weight_decay: Annotated[float, typer.Option(min=0, help="L2 of clients' steps.")] = 1e-3
    momentum: Annotated[float, typer.Option(min=0, help="Of the server.")] = 0.8
    bits: Annotated[int, typer.Option(min=2, help="Of a number under fedpaq and qsgd.")] = 8
    kept: Annotated[float, typer.Option(help="Share of numbers that top-k uploads.")] = 0.1
    budget: Annotated[
        float, typer.Option(help="Uploads, counted as the paper does, in models a client.")
    ] = 200.0
    max_rounds: shared.MaxRounds = 200
    tuning_rounds: Annotated[int, typer.Option(min=1, help="Of one rate's trial.")] = 80
    eval_every: Annotated[int, typer.Option(min=1, help="Rounds between scorings.")] = 5
    target_accuracy: Annotated[
        float | None, typer.Option(help="To reach; by set and split if absent.")
    ] = None
    repeats: shared.Repeats = 3
    seed: shared.Seed = 0
    quick: shared.Quick = False
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; one per core by default.")
    ] = None

    def quickly(self, typed_in: Collection[str]) -> "HorizontalSettings":
        """The same for a first look: digits, two methods, one split, 40 rounds of 20 clients.

        Raises:
            ConfigError: it should be more.
        """
        first: dict[str, Any] = {
            "methods": QUICK_METHODS,
            "images": ("digits",),
            "dirichlet": self.dirichlet[:1],
            "clients": 20,
            "max_rounds": 40,
            "learning_rate": (0.1,),
            "repeats": 1,
        }
        return replace(self, **{name: each for name, each in first.items() if name not in typed_in})

    def target(self, images: str, dirichlet: float) -> float:
        """The accuracy to reach on a set of images at a split."""
        if self.target_accuracy is not None:
            return self.target_accuracy
        return TARGETS[images][dirichlet < FEW_CLASSES]
