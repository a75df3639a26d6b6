"""What a noise sweep trains: a job file's job, or a default one, with keys that are typed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import MODEL_KEYS, ExchangeSettings, FdmlSettings, Job, OwnPrediction
from securevfl.job.keys import with_keys
from securevfl.protocols import catalogue
from securevfl.training import plan_for

FDML, MODEL, OWN_PREDICTION = "fdml", "job.model", "fdml.own_prediction"
LR, NN = "lr", "nn"
MODELS = {LR: "linear", NN: "mlp"}
SGD: dict[str, Any] = {
    "name": "noise",
    "algorithm": FDML,
    "batch_size": 100,
    "local_steps": 5,
    "schedule": "inverse-sqrt",
    "sampling": "shuffle",
}
"""`[job]` where there is no job file."""
OF_MODEL: dict[str, dict[str, Any]] = {
    "linear": {"start": "zero"},
    "mlp": {"hidden": [16], "activation": "tanh"},
}
EPOCHS = 10
OURS = {
    *("job.seed", "job.eval_every", "job.target_auc"),
    *("privacy.noise_multiplier", "privacy.noise_seed", "privacy.budget", "privacy.release_budget"),
}
"""Keys that a sweep sets itself."""


@dataclass(frozen=True)
class NoiseSettings:
    """Every model at every noise multiplier with every seed.

    Attributes:
        jobs: by the models' names in rows, `lr` and `nn`.
        noise: the multipliers z.
        own_predictions: the curves of each model; None where there is no choice.
        epochs: over the training rows, in place of the jobs' rounds.
        from_file: whether the jobs are a job file's: their own training in clear is then what
            noise is compared with.
        tuned: whether step sizes are tuned.
        repeats: the number of seeds.
        seed: the first one.
        workers: processes; one per core by default.
    """

    jobs: Mapping[str, Job]
    noise: tuple[float, ...]
    own_predictions: tuple[OwnPrediction | None, ...] = (None,)
    epochs: int | None = None
    from_file: bool = False
    tuned: bool = False
    repeats: int = 5
    seed: int = 0
    workers: int | None = None

    @classmethod
    def of(
        cls,
        file: Job | None,
        keys: Mapping[str, Sequence[Any]],
        noise: Sequence[float],
        epochs: int | None = None,
        seed: int | None = None,
        **more: Any,  # noqa: ANN401
    ) -> "NoiseSettings":
        """The settings for a job file, or for none.

        Args:
            file: the job of the file.
            keys: values of keys, each named with its section: several of `job.model`, where `lr`
                and `nn` are names, too, and of `fdml.own_prediction`; one of all others.
            noise: the multipliers.
            epochs: in place of rounds; 10 where neither a job file nor a key says how many rounds.
            seed: the first one, in place of the job's.
            more: other fields.

        Raises:
            ConfigError: a key or value that a sweep does not take.
        """
        one = {key: _one(key, values) for key, values in keys.items() if key != MODEL}
        if epochs is not None and "job.rounds" in keys:
            raise ConfigError("--epochs and --rounds both say how long to train: give only one")
        if file is None and "job.rounds" not in keys:
            epochs = epochs or EPOCHS
        jobs = {}
        models = keys.get(MODEL, () if file else (LR,))
        for each in models or (None,):
            model = MODELS.get(str(each), each)
            base = file or Job.of(job={**SGD, **OF_MODEL.get(str(model), {})})
            # Beside others a linear model leaves what only networks have to them.
            own = {key: v for key, v in one.items() if len(models) == 1 or _has(model, key)}
            job = with_keys(base, {**own, **({} if each is None else {MODEL: model})})
            catalogue.check_names(job)
            jobs[LR if job.is_linear else NN] = job
        if len(jobs) < len(models):
            raise ConfigError(f"--model {','.join(map(str, models))}: expected one lr and one nn")
        return cls(
            jobs=jobs,
            noise=tuple(noise),
            own_predictions=_curves(next(iter(jobs.values())), keys, given=file is not None),
            epochs=epochs,
            from_file=file is not None,
            tuned=file is None and "job.learning_rate" not in keys,
            seed=next(iter(jobs.values())).job.seed if seed is None else seed,
            **more,
        )

    def job(
        self,
        dataset: VerticalDataset,
        model: str,
        seed: int,
        noise: float | None = None,
        own_prediction: OwnPrediction | None = None,
        *,
        learning_rate: float | None = None,
    ) -> Job:
        """The job of one run; in clear where there is no noise multiplier.

        Raises:
            ConfigError: a value out of range.
        """
        job = self.in_epochs(self.jobs[model], dataset)
        # Held-out rows are scored once, at the end, however often the job does.
        changes: dict[str, Any] = {"job.seed": seed, "job.eval_every": 0, "job.target_auc": None}
        if self.tuned:
            changes["job.learning_rate"] = learning_rate or 1.0
        if noise is None:
            return with_keys(job.without_protection, changes)
        if own_prediction is not None:
            changes[OWN_PREDICTION] = own_prediction
        level = {
            "privacy.noise_multiplier": noise,
            "privacy.noise_seed": seed,
            "privacy.budget": None,
            "privacy.release_budget": None,
        }
        noisy = job.model_copy(update={"exchange": ExchangeSettings(scheme="dp")})
        return with_keys(noisy, {**changes, **level})

    def in_epochs(self, job: Job, dataset: VerticalDataset) -> Job:
        """A job with the rounds and batches of so many epochs, where they decide."""
        if self.epochs is None:
            return job
        rows = len(dataset.train_labels)
        size = job.job.batch_size or plan_for(job.without_protection, dataset).batch_size
        if size == "full":
            return job.with_settings(rounds=self.epochs, batch_size=size)
        taken = min(size, rows)
        return job.with_settings(rounds=self.epochs * (rows // taken), batch_size=taken)

    def trains_in_one_place(self, model: str) -> bool:
        """Whether one place trains by minibatch SGD, and not as the job does."""
        job = self.jobs[model].job
        sums = job.head == "sum" and job.model in MODELS.values()
        sgd = self.tuned or job.learning_rate != "auto"
        return not self.from_file and sgd and sums and not job.l1

    def described(self, dataset: VerticalDataset) -> dict[str, Any]:
        """What a result file says of it; paths and all."""
        jobs = {name: self.in_epochs(job, dataset) for name, job in self.jobs.items()}
        return {
            "algorithm": ", ".join(dict.fromkeys(job.job.algorithm for job in jobs.values())),
            "noise": self.noise,
            "own_prediction": self.own_predictions,
            "jobs": {name: job.model_dump(mode="json") for name, job in jobs.items()},
            "tuned": self.tuned,
            "repeats": self.repeats,
        }


def _one(key: str, values: Sequence[Any]) -> Any:  # noqa: ANN401
    """The value of a key, which is the first of several where there are curves for all."""
    if key.startswith("exchange.") or key in OURS:
        raise ConfigError(
            f"{key}: a noise sweep trains under dp at the levels of --noise, with seeds from "
            "--seed on, and scores once"
        )
    if len(values) > 1 and key != OWN_PREDICTION:
        raise ConfigError(
            f"{key} has {len(values)} values: only --noise, --model and --own-prediction have "
            "several"
        )
    return [values[0]] if key == "job.hidden" and isinstance(values[0], int) else values[0]


def _has(model: object, key: str) -> bool:
    homes = MODEL_KEYS.get(key.removeprefix("job."))
    return homes is None or model in homes


def _curves(
    job: Job, keys: Mapping[str, Sequence[Any]], *, given: bool
) -> tuple[OwnPrediction | None, ...]:
    if job.job.algorithm != FDML:
        return (None,)
    own = job.section(FdmlSettings, FDML).own_prediction
    return tuple(keys.get(OWN_PREDICTION, (own,) if given else get_args(OwnPrediction)))
