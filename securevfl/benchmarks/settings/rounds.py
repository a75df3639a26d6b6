"""What `bench rounds` is told."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import typer
from typing_extensions import override

from securevfl.benchmarks.settings import shared
from securevfl.job import Job
from securevfl.protocols import catalogue


@dataclass(frozen=True)
class RoundsSettings(shared.SaidByJob):
    """Every combination of algorithm, Q, K and μ; what takes one step whatever Q only once.

    Of a job file: its algorithm and its own Q (where `local_steps` has none), μ and target (where
    `target_auc` is None, one that follows from its run in clear).
    """

    said_by_job = frozenset(
        {
            *("parties", "batch_size", "max_rounds", "eval_every", "learning_rate", "schedule"),
            *("divide_by_sqrt_parties", "local_rule", "l2", "start"),
        }
    )

    algorithms: Annotated[
        tuple[str, ...],
        typer.Option("--algorithm", help=f"By commas, of {', '.join(catalogue.ALGORITHMS)}."),
    ] = ("fedsgd", "fedbcd-p", "fedbcd-s")
    local_steps: shared.LocalSteps = (1, 5, 10)
    parties: Annotated[tuple[int, ...], typer.Option(help="Values of K, by commas.")] = (2,)
    proximal: Annotated[tuple[float, ...], typer.Option(help="Values of μ, by commas.")] = (0.0,)
    batch_size: shared.FullOrSize = 64
    target_auc: Annotated[float | None, typer.Option(help="Held-out AUC to reach.")] = 0.99
    max_rounds: shared.MaxRounds = 1000
    eval_every: shared.EvalEvery = 1
    learning_rate: shared.LearningRate = None
    schedule: Annotated[
        Literal["constant", "inverse-sqrt"], typer.Option(help="Step sizes over rounds.")
    ] = "constant"
    divide_by_sqrt_parties: Annotated[
        bool, typer.Option("--divide-by-sqrt-parties", help="Step size over the root of K.")
    ] = False
    local_rule: Annotated[
        Literal["curvature", "frozen", "exact"],
        typer.Option(help="What feature parties' local steps follow."),
    ] = "curvature"
    l2: Annotated[
        float | None,
        typer.Option(min=0, help="L2 regularization; 0 if absent, and 1/N with exact steps."),
    ] = None
    start: Annotated[
        Literal["random", "zero"],
        # No gradients are revealed here.
        typer.Option(help="Where training starts; papers: zero."),
    ] = "zero"
    repeats: shared.Repeats = 3
    seed: shared.Seed = 0

    @override
    def of_job(self, job: Job, typed_in: Collection[str]) -> Self:
        rate = job.job.learning_rate
        said: dict[str, Any] = {
            "algorithms": (job.job.algorithm,),
            "local_steps": (),
            "learning_rate": None if rate == "auto" else rate,
            "proximal": (job.job.proximal,),
            "target_auc": job.job.target_auc,
            "seed": job.job.seed,
        }
        return replace(
            self, base=job, **{name: each for name, each in said.items() if name not in typed_in}
        )
