"""What `bench tradeoff` is told."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import typer
from typing_extensions import override

from securevfl.benchmarks.settings import shared
from securevfl.job import Hide, Job
from securevfl.protocols import catalogue


@dataclass(frozen=True)
class TradeoffSettings(shared.SaidByJob):
    """Every exchange at every Q.

    Of a job file: its exchange and `plain`, its own Q (where `local_steps` has none) and its target
    (where `target_aucs` has none, one that follows from its run in clear).
    """

    said_by_job = frozenset(
        {
            *("algorithm", "model", "hidden", "batch_size", "max_rounds", "eval_every"),
            *("learning_rate", "tuning", "schedule", "loss", "network", "hide", "key_bits"),
            *("engine", "round_trips", "value_fraction_bits", "feature_fraction_bits"),
        }
    )

    exchanges: Annotated[
        tuple[str, ...],
        typer.Option("--exchange", help=f"By commas: {', '.join(catalogue.EXCHANGES)}."),
    ] = ("plain", "paillier", "ckks", "bfv")
    algorithm: shared.Algorithm = "fedbcd-p"
    local_steps: shared.LocalSteps = (1, 5, 10, "exact")
    model: Annotated[
        Literal["linear", "mlp"],
        typer.Option(
            help="Local models; encrypted rounds of an mlp step on its linearization, unless "
            "each step has its own product."
        ),
    ] = "linear"
    hidden: Annotated[
        tuple[int, ...],
        typer.Option(min=1, help="Units of each hidden layer of an mlp, by commas; 64 if absent."),
    ] = ()
    batch_size: shared.FullOrSize = 64
    target_aucs: Annotated[
        tuple[float, ...],
        typer.Option("--target-auc", help="Held-out AUCs to reach, by commas; a row each."),
    ] = (0.99,)
    max_rounds: shared.MaxRounds = 200
    phe_rounds: Annotated[
        int | None, typer.Option(min=1, help="Give up on phe after so many rounds.")
    ] = None
    eval_every: shared.EvalEvery = 1
    learning_rate: shared.LearningRate = None
    tuning: Annotated[
        Literal["shared", "per-q"],
        typer.Option(help="Tune one step size at the largest Q for all, or one for each Q."),
    ] = "shared"
    schedule: Annotated[
        Literal["constant", "inverse-sqrt"], typer.Option(help="Step sizes over rounds.")
    ] = "constant"
    loss: Annotated[
        Literal["logistic", "squared", "taylor-logistic"],
        typer.Option(help="Loss; hiding both sides takes squared or taylor-logistic."),
    ] = "logistic"
    repeats: shared.Repeats = 1
    network: shared.Network = shared.LAN
    hide: Annotated[Hide, typer.Option(help="What homomorphic exchanges hide.")] = "residuals"
    he_per_step: Annotated[
        bool,
        typer.Option(
            "--he-per-step",
            help="Also rows that repeat homomorphic work in every local step, as the paper's "
            "system does.",
        ),
    ] = False
    key_bits: Annotated[int | None, typer.Option(help="Paillier modulus: 3072 or 2048.")] = None
    engine: Annotated[
        str | None, typer.Option(help="Implementation, of the schemes that have it: phe, fast.")
    ] = None
    round_trips: Annotated[
        Literal["auto", 1, 2], typer.Option(help="A round, where the scheme can do with one.")
    ] = "auto"
    value_fraction_bits: Annotated[
        int | None, typer.Option(help="Fixed point of residuals; the scheme's if absent.")
    ] = None
    feature_fraction_bits: Annotated[
        int | None, typer.Option(help="Fixed point of features; the scheme's if absent.")
    ] = None
    seed: shared.Seed = 0
    quick: shared.Quick = False

    @override
    def quickly(self, typed_in: Collection[str]) -> Self:
        return replace(super().quickly(typed_in), repeats=1)

    @override
    def of_job(self, job: Job, typed_in: Collection[str]) -> Self:
        target, rate = job.job.target_auc, job.job.learning_rate
        said: dict[str, Any] = {
            "exchanges": tuple(dict.fromkeys(("plain", job.exchange.scheme))),
            "algorithm": job.job.algorithm,
            "local_steps": (),
            "learning_rate": None if rate == "auto" else rate,
            "model": job.job.model,
            "target_aucs": () if target is None else (target,),
            "network": job.network,
            "he_per_step": job.exchange.he_per_step,
            "seed": job.job.seed,
        }
        return replace(
            self, base=job, **{name: each for name, each in said.items() if name not in typed_in}
        )
