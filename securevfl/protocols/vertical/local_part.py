"""A party's scaled inputs and its local model, linear or a network."""

from collections.abc import Collection, Iterable

import numpy as np

from securevfl.crypto.schemes import SCHEMES
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable
from securevfl.errors import ConfigError
from securevfl.job import Job, check_models
from securevfl.models.linear import random_start, zero_start
from securevfl.models.local_model import LocalModel, MakeModule, Network
from securevfl.models.losses import Loss
from securevfl.models.storage import ModelHeader, SavedModel, saved_model


class LocalPart:
    """What a party trains.

    Args:
        job: the job.
        table: its columns.
        loss: f.
        classes: number of classes.
        standardize: whether features are standardized where the job does not say.
        holds_labels: whether this is the label party.
        start: draws θ⁰.
        make_module: makes a custom network.

    Raises:
        ConfigError: a module that does not fit.
    """

    def __init__(
        self,
        job: Job,
        table: PartyTable,
        *,
        loss: Loss,
        classes: int,
        standardize: bool,
        holds_labels: bool,
        start: np.random.Generator,
        make_module: MakeModule | None,
    ) -> None:
        self._job, self._table, self._loss, self._classes = job, table, loss, classes
        if job.job.standardize is not None:
            standardize = job.job.standardize
        columns = table.train.shape[1]
        identity = Scaling(np.zeros(columns), np.ones(columns))
        self.scaling = Scaling.fit(table.train) if standardize else identity
        self._network = network_of(job, table.name)
        self._make_module = make_module
        self.model = self._start(holds_labels, start)
        self.inputs = self.model.inputs(self.scaling.apply(table.train))
        self.held_out = self.model.inputs(self.scaling.apply(table.test))

    @property
    def parameters(self) -> int | None:
        """P of a network; None for a linear model."""
        return None if self.model.is_linear else self.model.weights.size

    def _start(self, holds_labels: bool, start: np.random.Generator) -> LocalModel:
        outputs = self._loss.outputs
        features = self.scaling.apply(self._table.train)
        # A promise end to end covers θ⁰, which predictions show.
        private = self._job.privacy.gradient_clip is not None
        if self._network is not None:
            # torch takes a second to load, and linear jobs need none.
            from securevfl.models.neural import maker_of, neural_start  # noqa: PLC0415

            make = maker_of(self._network, self._make_module)
            return neural_start(make, features, outputs, start, whatever_the_rows=private)
        intercept = self._job.job.intercept and holds_labels
        zero = zero_start(features.shape[1] + int(intercept), outputs, intercept)
        if self._job.job.start == "zero":
            return zero
        return random_start(
            zero.inputs(features), outputs, intercept, start, whatever_the_rows=private
        )

    def saved(self, rounds: int) -> SavedModel:
        """The model as it stands, with its header."""
        header = ModelHeader(
            party=self._table.name,
            columns=self._table.columns,
            intercept=self.model.intercept,
            classes=self._classes,
            loss=self._loss.name,
            job_hash=self._job.hash().hex(),
            rounds=rounds,
            network=self._network,
        )
        return saved_model(
            header,
            self.model,
            mean=self.scaling.mean,
            scale=self.scaling.scale,
            make_module=self._make_module,
        )


def network_of(job: Job, party: str) -> Network | None:
    """The network of a party; None for a linear model."""
    settings = job.model_of(party)
    if settings.model == "linear":
        return None
    if settings.model == "custom":
        return Network("custom")
    return Network("mlp", settings.hidden, settings.activation)


def network_parties(job: Job, names: Iterable[str]) -> frozenset[str]:
    """The parties that train a network."""
    return frozenset(name for name in names if network_of(job, name) is not None)


def check_local_models(
    job: Job,
    loss: Loss,
    *,
    names: Collection[str],
    label_party: str,
    modules: Collection[str],
) -> None:
    """Check that the parties' models fit the job.

    Args:
        job: the job.
        loss: f.
        names: all parties.
        label_party: the one with labels.
        modules: the parties for which there is a custom module.

    Raises:
        ConfigError: they do not.
    """
    check_models(job)
    custom = {name for name in names if job.model_of(name).model == "custom"}
    for name in sorted(custom - set(modules)):
        raise ConfigError(f"party {name!r}: model = 'custom' needs a module from Python")
    for name in sorted(set(modules) - custom):
        raise ConfigError(f"a module for {name!r}, which is no party with model = 'custom'")
    networks = network_parties(job, names)
    if networks:
        _check_networks(job, loss, networks - {label_party})


def _check_networks(job: Job, loss: Loss, at_feature_parties: Collection[str]) -> None:
    if job.job.start == "zero":
        raise ConfigError("start = 'zero' gives a network no gradient: use 'random'")
    if job.privacy.gradient_clip and job.job.local_rule == "gauss-newton":
        raise ConfigError("gradient_clip needs gradients of networks: local_rule = 'curvature'")
    if job.exchange.hide == "both":
        raise ConfigError("hide = 'both' takes linear models only")
    if at_feature_parties and job.exchange.scheme in SCHEMES:
        if loss.outputs > 1:
            raise ConfigError(
                f"networks at feature parties take two classes under encryption, not "
                f"{loss.outputs}; use plain or masked, or linear models"
            )
        if job.exchange.round_trips == 1:
            raise ConfigError("round_trips = 1 takes linear models at feature parties")
