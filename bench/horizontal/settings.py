"""What a comparison of horizontal methods sets."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bench.experiment import Settings, Several

METHODS = (
    *("fedavg", "fedavgm", "fedadam", "scaffold", "feddc", "top-k", "fedpaq"),
    *("fedbcgd", "fedbcgd+", "fedbcgd+:printed", "fedbcgd:qsgd", "fedbcgd+:qsgd"),
)
TARGETS = {"cifar10": (0.4, 0.35), "mnist": (0.9, 0.8), "digits": (0.8, 0.7)}
"""Accuracies to reach, by set: with many classes a client, and with few."""
FEW_CLASSES = 0.3


class HorizontalSettings(Settings):
    """Every method on every set of images at every split with every seed.

    Attributes:
        methods: any also with :momentum=0.5 (of the server) or :unclipped, a blockwise one with
            :qsgd, :freezing or :unshared, FedBCGD+ with :printed, as its paper has it.
        images: cifar10, mnist or digits.
        rows: training images at most, of each set.
        model: LeNet-5, scored by accuracy, or logistic regression, scored by the share of the way
            from the training loss at zero to the least one.
        dirichlet: D: small is few classes a client.
        clients: M.
        taking_part: m: clients of a round.
        blocks: b of blockwise methods; divides m.
        cut: blocks of as many weights each, or of whole tensors.
        shared_layers: layers of the shared block.
        epochs: of a client in a round.
        learning_rate: of clients; chosen on validation images from several.
        decay: of the learning rate, a round.
        weight_decay: L2 of clients' steps.
        clip: bound on the norm of clients' steps; by method if None.
        bits: of a number under fedpaq and qsgd.
        kept: share of numbers that top-k uploads.
        budget: uploads, counted as the paper does, in models a client.
        tuning_rounds: of one rate's trial; as many as of a run if None.
        eval_every: rounds between scorings.
        target_accuracy: to reach; by set and split if None.
        repeats: runs with seeds of their own; medians.
        workers: number of processes; one per core if None.
        fresh: discard what an interrupted run with the same settings has done.
    """

    methods: Several[str] = METHODS
    images: Several[str] = ("cifar10", "mnist")
    rows: int = Field(15000, ge=10)
    model: Literal["lenet5", "logistic"] = "lenet5"
    dirichlet: Several[float] = (0.6, 0.1)
    clients: PositiveInt = 100
    taking_part: PositiveInt = 10
    blocks: Several[PositiveInt] = (5,)
    cut: Literal["equal", "layers"] = "equal"
    shared_layers: Several[str] = ("fc2", "fc3")
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 50
    learning_rate: Several[float] = (0.01, 0.03, 0.1, 0.3)
    decay: float = 0.998
    weight_decay: NonNegativeFloat = 1e-3
    clip: PositiveFloat | None = None
    bits: int = Field(default=8, ge=2)
    kept: float = 0.1
    budget: float = 200.0
    max_rounds: PositiveInt = 200
    tuning_rounds: PositiveInt | None = 80
    eval_every: PositiveInt = 5
    target_accuracy: float | None = None
    repeats: PositiveInt = 3
    workers: PositiveInt | None = None
    fresh: bool = False

    def target(self, images: str, dirichlet: float) -> float:
        """The accuracy to reach on a set of images at a split."""
        if self.target_accuracy is not None:
            return self.target_accuracy
        return TARGETS[images][dirichlet < FEW_CLASSES]
