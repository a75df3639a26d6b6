"""What `bench rounds` is told."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from securevfl.benchmarks.settings import shared
from securevfl.protocols import names


@dataclass(frozen=True)
class RoundsSettings:
    """Every combination of algorithm, Q, K and μ; what takes one step whatever Q only once."""

    algorithms: Annotated[
        tuple[str, ...],
        typer.Option("--algorithm", help=f"By commas, of {', '.join(names.ALGORITHMS)}."),
    ] = ("fedsgd", "fedbcd-p", "fedbcd-s")
    local_steps: shared.LocalSteps = (1, 5, 10)
    parties: Annotated[tuple[int, ...], typer.Option(help="Values of K, by commas.")] = (2,)
    proximal: Annotated[tuple[float, ...], typer.Option(help="Values of μ, by commas.")] = (0.0,)
    batch_size: shared.FullOrSize = 64
    target_auc: shared.TargetAuc = 0.99
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
