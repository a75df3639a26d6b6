"""One run of a horizontal method on images, over the simulated network."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from bench.horizontal.images import ImageSet, dirichlet_split, load_images
from bench.horizontal.logistic import Logistic
from bench.horizontal.settings import HorizontalSettings
from securevfl.arrays import IntArray, RealArray
from securevfl.errors import ConfigError, TrainingDiverged
from securevfl.horizontal.client import ClientProblem
from securevfl.horizontal.compression import Compressed, Compressor, Quantizer, TopK
from securevfl.horizontal.federation import METHODS, Blocks, Federation, Method, Settings
from securevfl.horizontal.simulation import FLOAT_BYTES, Round, ScoringRule, simulate_federation

FLOAT_BITS = 32
DIGITS = 4
BUCKET = 512  # entries that share a norm, as in QSGD's experiments
TUNING_SEED = 1000
"""Added to the seed where a learning rate is chosen: other clients, another start."""
CODED = {"top-k": "fedavg", "fedpaq": "fedavg"}
MOMENTUM = "momentum="
BLOCKWISE = ("qsgd", "freezing", "unshared")
CHANGES = (*BLOCKWISE, "unclipped", "printed", f"{MOMENTUM}0.8")


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        images: name of the set.
        dirichlet: D.
        method: as `Variant.of` takes it.
        blocks: b.
        learning_rate: η0.
        seed: of the split, the start, who takes part and batches.
        tuning: on training images alone, for so many rounds as a trial has.
    """

    images: str
    dirichlet: float
    method: str
    blocks: int
    learning_rate: float
    seed: int
    tuning: bool = False

    @property
    def key(self) -> str:
        """Its name in a journal."""
        return "|".join(map(str, asdict(self).values()))

    @property
    def says(self) -> str:
        """Which run it is, in a few words."""
        what = "tuning " if self.tuning else ""
        return f"{what}{self.images}, D = {self.dirichlet:g}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Variant:
    """A method as a task names it, with how its uploads travel.

    Attributes:
        method: of everyone.
        compressor: of uploads; None where they travel as they are.
        bits_share: what a number of an upload takes, over a float32, as the papers count.
        shared: whether there is a shared block.
        clip: as `Settings` has it.
    """

    method: Method
    compressor: Compressor | None
    bits_share: float
    shared: bool
    clip: float | None

    @classmethod
    def of(cls, text: str, settings: HorizontalSettings) -> "Variant":
        """The variant of a name such as `fedbcgd`, `top-k`, `fedbcgd+:qsgd`, `fedbcgd:freezing`.

        Raises:
            ConfigError: there is none.
        """
        name, *changes = text.split(":")
        if "printed" in changes:
            name = f"{name}:printed"
        if name not in {*METHODS, *CODED}:
            raise ConfigError(f"method = {name!r}: expected one of {', '.join([*METHODS, *CODED])}")
        method = _changed(METHODS[CODED.get(name, name)], text, changes)
        clip = inf if "unclipped" in changes else settings.clip
        compressor: Compressor | None = None
        bits_share = 1.0
        if name == "top-k":
            compressor, bits_share = TopK(settings.kept), settings.kept
        elif name == "fedpaq" or "qsgd" in changes:
            compressor = Quantizer(2 ** (settings.bits - 1) - 1, BUCKET)
            bits_share = settings.bits / FLOAT_BITS
        return cls(method, compressor, bits_share, "unshared" not in changes, clip)

    def counted(self, blocks: int) -> float:
        """What the paper counts of an upload, in models."""
        whole = 2.0 if self.method.corrects else 1.0
        return whole * self.bits_share / (blocks if self.method.blockwise else 1)


def _changed(method: Method, text: str, changes: Sequence[str]) -> Method:
    for change in changes:
        if change.startswith(MOMENTUM):
            try:
                method = replace(method, momentum=float(change.removeprefix(MOMENTUM)))
            except ValueError:
                raise ConfigError(f"method = {text!r}: {MOMENTUM} expects a number") from None
        elif change not in CHANGES:
            raise ConfigError(f"method = {text!r}: expected {', '.join(CHANGES)} after a colon")
        elif change in BLOCKWISE and not method.blockwise:
            raise ConfigError(f"method = {text!r}: {change} is of blockwise methods")
    return replace(method, freezes="freezing" in changes)


def uncoded(text: str) -> str:
    """The name of the same method whose uploads travel as they are."""
    name, *changes = text.split(":")
    return ":".join([CODED.get(name, name), *(each for each in changes if each != "qsgd")])


def planned_rounds(settings: HorizontalSettings, task: Task) -> int:
    """Rounds of a task: what the budget allows, and no more than the settings do."""
    if task.tuning and settings.tuning_rounds:
        return settings.tuning_rounds
    counted = Variant.of(task.method, settings).counted(task.blocks)
    return max(1, min(settings.max_rounds, int(settings.budget / counted)))


@lru_cache(maxsize=2)
def _images(name: str, rows: int, data_dir: Path | None, tuning_seed: int | None) -> ImageSet:
    """A set, as it is trained on and scored."""
    images = load_images(name, data_dir=data_dir).first(rows)
    if tuning_seed is not None:
        images = images.for_tuning(np.random.default_rng(tuning_seed))
    return images


def federation_of(settings: HorizontalSettings, task: Task, sizes: Mapping[str, int]) -> Federation:
    """What server and clients of a task agree on, for tensors of such sizes.

    Raises:
        ConfigError: a method, layers, or numbers of clients and blocks that cannot be.
    """
    variant = Variant.of(task.method, settings)
    cut = Blocks.equal if settings.cut == "equal" else Blocks.by_layers
    return Federation(
        variant.method,
        Settings(
            clients=settings.clients,
            taking_part=settings.taking_part,
            rounds=planned_rounds(settings, task),
            learning_rate=task.learning_rate,
            decay=settings.decay,
            weight_decay=settings.weight_decay,
            clip=variant.clip,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=task.seed,
        ),
        cut(sizes, task.blocks, settings.shared_layers if variant.shared else ()),
    )


def run(
    settings: HorizontalSettings, task: Task, tell: Callable[[str, float, float], None]
) -> dict[str, Any]:
    """Train, and score every so many rounds.

    Raises:
        ConfigError: see `federation_of`, or a split that cannot be.
        DataError: no such images here.
    """
    # An optimum has no test images to be kept from: trials are on the same rows at other clients.
    apart = task.tuning and settings.model == "lenet5"
    tuning_seed = settings.seed + TUNING_SEED if apart else None
    images = _images(task.images, settings.rows, settings.data_dir, tuning_seed)
    generator = np.random.default_rng(task.seed)
    split = dirichlet_split(images.train_labels, settings.clients, task.dirichlet, generator)
    if settings.model == "logistic":
        model = _logistic(images, settings.weight_decay, split)
    else:
        model = _network(images, generator, split)
    federation = federation_of(settings, task, model.sizes)
    begun = perf_counter()
    accuracies: list[float] = []

    def score(weights: RealArray) -> float:
        accuracies.append(model.score(weights))
        rounds = federation.settings.rounds
        tell("training", min(len(accuracies) * settings.eval_every, rounds), rounds)
        return accuracies[-1]

    compressor = Variant.of(task.method, settings).compressor
    coding = None if compressor is None else Compressed(compressor)
    spent: Sequence[Round] = ()
    with threadpool_limits(1):
        scoring = ScoringRule(score, settings.eval_every)
        with suppress(TrainingDiverged):
            spent = simulate_federation(
                model.problems, federation, model.start, uploads=coding, scoring=scoring
            ).rounds
    seconds = perf_counter() - begun
    return _told(federation, task.seed, spent, len(images.train) / settings.clients, seconds)


class _Model(NamedTuple):
    """What is trained: tensors' sizes, θ at the start, clients' problems, and the score of θ."""

    sizes: Mapping[str, int]
    start: RealArray
    problems: Sequence[ClientProblem]
    score: Callable[[RealArray], float]


def _network(images: ImageSet, generator: np.random.Generator, split: Sequence[IntArray]) -> _Model:
    """LeNet-5; scores are accuracies on test images."""
    # torch is an extra, and takes long to import.
    from bench.horizontal.lenet import lenet5  # noqa: PLC0415
    from securevfl.models.flat_module import FlatModule, module_problems  # noqa: PLC0415

    inputs, tests = images.scaled()
    channels, side = inputs.shape[1:3]
    module = FlatModule(lenet5(channels, side, images.classes, generator))
    clients = [(inputs[rows], images.train_labels[rows]) for rows in split]
    return _Model(
        module.sizes,
        module.weights(),
        module_problems(module, clients),
        partial(module.accuracy, inputs=tests, labels=images.test_labels),
    )


def _logistic(images: ImageSet, decay: float, split: Sequence[IntArray]) -> _Model:
    """Logistic regression; scores are shares of the way to the least objective."""
    model = _on_all(images, decay)
    return _Model(model.sizes, model.weights(), [model.problem(rows) for rows in split], model.way)


@lru_cache(maxsize=2)
def _on_all(images: ImageSet, decay: float) -> Logistic:
    return Logistic(images.train / np.float32(255), images.train_labels, images.classes, decay)


def _told(
    federation: Federation, seed: int, spent: Sequence[Round], rows: float, seconds: float
) -> dict[str, Any]:
    """What a run cost until each of its scorings; no scorings of one that diverged.

    `counted` and `uploaded` are in models (p numbers) a client that takes part, the former as the
    FedBCGD paper counts, the latter as the bytes of float32 that were sent; `downloaded` as bytes,
    `gradients` in passes over a client's rows.
    """
    blocks, clients = federation.blocks, federation.settings.taking_part
    at = [index for index, each in enumerate(spent) if each.score is not None]

    def until(costs: Sequence[float], unit: float) -> list[float]:
        sums = np.cumsum(costs) / unit
        return [round(float(sums[index]), DIGITS) for index in at]

    model = blocks.parameters
    return {
        "seed": seed,
        "rounds": [index + 1 for index in at],
        "accuracies": [float(spent[index].score or 0.0) for index in at],
        "counted": until([each.paper_floats for each in spent], model),
        "uploaded": until([each.up_bytes for each in spent], FLOAT_BYTES * clients * model),
        "downloaded": until([each.down_bytes for each in spent], FLOAT_BYTES * clients * model),
        "gradients": until([each.gradients for each in spent], clients * rows),
        "diverged": not spent,
        "wall_s": seconds,
        "parameters": model,
        "shared_parameters": len(blocks.shared),
    }
