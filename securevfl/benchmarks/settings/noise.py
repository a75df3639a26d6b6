"""What `sweep noise` is told."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, get_args

import typer
from typing_extensions import override

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError
from securevfl.job import FdmlSettings, Job, OwnPrediction

Model = Literal["lr", "nn"]
FDML = "fdml"
QUICK_LEVELS = (0.0, 1.0, 4.0)


@dataclass(frozen=True)
class NoiseSettings(shared.SaidByJob):
    """Every model at every noise multiplier with every seed.

    A job file's job is swept as it is, under `dp` whatever its exchange.

    Raises:
        ConfigError: `own_prediction` of an algorithm that has none.
    """

    said_by_job = frozenset(
        {
            *("models", "algorithm", "mechanism", "clip", "delta", "gradient_clip"),
            *("gradient_noise", "epochs", "batch_size", "local_steps", "hidden"),
            "learning_rate",
        }
    )

    noise: Annotated[
        tuple[float, ...], typer.Option(help="Noise multipliers z, by commas; 0 clips only.")
    ] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 15.0, 20.0)
    models: Annotated[
        tuple[Model, ...],
        typer.Option("--model", help="lr, nn (a network at each party), by commas."),
    ] = ("lr",)
    algorithm: shared.Algorithm = "fdml"
    own_prediction: Annotated[
        tuple[OwnPrediction, ...],
        typer.Option(
            help="What a party of fdml adds to the others' noisy sum, by commas: its exact "
            "prediction, or its noisy one as in the paper; both if absent."
        ),
    ] = ()
    mechanism: Annotated[
        Literal["gaussian", "laplace"], typer.Option(help="Which noise on predictions.")
    ] = "gaussian"
    clip: Annotated[float, typer.Option(help="Predictions are clipped to +- this.")] = 2.0
    delta: Annotated[float, typer.Option(help="Of (epsilon, delta).")] = 1e-5
    gradient_clip: Annotated[
        float | None, typer.Option(help="DP-SGD at the parties: a sample's longest gradient.")
    ] = None
    gradient_noise: Annotated[
        float | None, typer.Option(help="DP-SGD at the parties: noise multiplier.")
    ] = None
    epochs: shared.Epochs = 10
    batch_size: shared.Size = 100
    local_steps: Annotated[int, typer.Option(min=1, help="Q, of fedbcd.")] = 5
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of nn at each party.")] = 16
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size; tuned without noise on a validation fifth.")
    ] = None
    repeats: Annotated[int, typer.Option(min=1, help="Seeds.")] = 5
    seed: shared.Seed = 0
    quick: shared.Quick = False
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; one per core by default.")
    ] = None

    def __post_init__(self) -> None:
        if self.own_prediction and self.algorithm != FDML:
            raise ConfigError(f"--own-prediction is fdml's, not {self.algorithm!r}'s")

    @override
    def of_job(self, job: Job, typed_in: Collection[str]) -> Self:
        privacy, algorithm = job.privacy, job.job.algorithm
        said: dict[str, Any] = {
            "models": ("lr" if job.is_linear else "nn",),
            "algorithm": algorithm,
            "mechanism": privacy.mechanism,
            "clip": privacy.clip,
            "delta": privacy.delta,
            "gradient_clip": privacy.gradient_clip,
            "gradient_noise": privacy.gradient_noise_multiplier,
            "seed": job.job.seed,
        }
        if algorithm == FDML:
            said["own_prediction"] = (job.section(FdmlSettings, FDML).own_prediction,)
        return replace(
            self, base=job, **{name: each for name, each in said.items() if name not in typed_in}
        )

    @override
    def quickly(self, typed_in: Collection[str]) -> Self:
        levels = self.noise if "noise" in typed_in else QUICK_LEVELS
        return replace(super().quickly(typed_in), repeats=1, noise=levels)

    @property
    def own_predictions(self) -> tuple[OwnPrediction | None, ...]:
        """The curves to draw; None where there is no choice."""
        if self.algorithm != FDML:
            return (None,)
        return self.own_prediction or get_args(OwnPrediction)

    def job(
        self,
        model: str,
        rows: int,
        seed: int,
        noise: float | None,
        own_prediction: OwnPrediction | None = None,
    ) -> Job:
        """The job of one run on so many training rows; without the exchange at noise None."""
        if self.base is not None:
            return self._of_file(self.base, seed, noise, own_prediction)
        settings: dict[str, Any] = {
            "name": "noise",
            "algorithm": self.algorithm,
            "rounds": self.epochs * (rows // min(self.batch_size, rows)),
            "batch_size": min(self.batch_size, rows),
            "local_steps": self.local_steps,
            "learning_rate": self.learning_rate or 1.0,
            "schedule": "inverse-sqrt",
            "sampling": "shuffle",
            "eval_every": 0,
            "seed": seed,
        }
        if model == "lr":
            settings |= {"start": "zero"}
        else:
            settings |= {"model": "mlp", "hidden": [self.hidden], "activation": "tanh"}
        if noise is None:
            return Job.of(job=settings)
        privacy = {
            "mechanism": self.mechanism,
            "noise_multiplier": noise,
            "clip": self.clip,
            "delta": self.delta,
            "noise_seed": seed,
            "gradient_clip": self.gradient_clip,
            "gradient_noise_multiplier": self.gradient_noise,
        }
        own = {} if own_prediction is None else {FDML: {"own_prediction": own_prediction}}
        return Job.of(job=settings, exchange={"scheme": "dp"}, privacy=privacy, own=own)

    def _of_file(
        self, base: Job, seed: int, noise: float | None, own_prediction: OwnPrediction | None
    ) -> Job:
        # Held-out rows are scored once, at the end, however often the job does.
        job = base.with_settings(seed=seed, eval_every=0, target_auc=None)
        if noise is None:
            return job.without_protection
        level = {
            "noise_multiplier": noise,
            "noise_seed": seed,
            "budget": None,
            "release_budget": None,
        }
        own = dict(job.own)
        if own_prediction is not None:
            said = job.section(FdmlSettings, FDML)
            own[FDML] = said.model_copy(update={"own_prediction": own_prediction})
        return Job.of(
            **{
                **dict(job),
                "exchange": {"scheme": "dp"},
                "privacy": {**dict(job.privacy), **level},
                "own": own,
            }
        )
