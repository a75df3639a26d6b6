"""Federated transfer learning (Liu, Chen, Yang 2018) with the local steps of FedBCD.

The label party A has labelled rows, the feature party B has other rows, and both share some. Each
trains one hidden layer; the score of a row of B is Φ·u_B, where Φ is the mean of y·u_A. In a round
both send components of a batch of common rows, and each takes Q local steps with those of the
other: both at once (FedBCD-p; FedSGD at Q = 1) or A first (`alternating`, FedBCD-s).

Learns: see `sides`; the objective is in `objective`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset, overlapping
from securevfl.errors import ConfigError
from securevfl.job import FtlSettings, Job
from securevfl.models.layers import BOUNDED, DenseLayer
from securevfl.models.local_model import Network
from securevfl.protocols.algorithm import Role
from securevfl.protocols.exchange import (
    AsTheyAre,
    Batch,
    Exchange,
    HoldsKeys,
    PartyBatches,
    SendsSingly,
    Shown,
)
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.early_stopping import (
    LONGEST_WINDOW,
    CheckpointSelection,
    SelectedState,
)
from securevfl.protocols.session.keys import exchange_keys
from securevfl.protocols.session.privacy_account import LeakageCount, Visits
from securevfl.protocols.session.scoring import Scoring
from securevfl.protocols.transfer.objective import (
    FeatureObjective,
    LabelObjective,
    OwnObjective,
    mean_units,
    settings_of,
    signs_of,
    take_steps,
)
from securevfl.protocols.transfer.sides import (
    ClearSide,
    EncryptedSide,
    ScoringEncrypted,
    ScoringInClear,
    product_format,
    score_format,
)
from securevfl.protocols.vertical.runner import (
    Part,
    Seen,
    Training,
    VerticalAlgorithm,
    checkpoint_selection,
    scoring_of,
    steps_of,
)
from securevfl.sparse import SameRows, require_dense

LABEL_PARTY, FEATURE_PARTY = "label party", "feature party"
IN_CLEAR = {
    LABEL_PARTY: ("u_B of every row of a batch; φ of every held-out row", "B's features"),
    FEATURE_PARTY: ("Φ, and ½yΦ + 2g·u_A of every row of a batch, so every label", "A's features"),
}
ENCRYPTED = {
    LABEL_PARTY: (
        "its own gradient; a power of two above u_B; φ of held-out rows",
        "u_B; φ of training rows",
    ),
    FEATURE_PARTY: (
        "its own gradient, which reveals something about labels at every visit; one above Φ",
        "Φ, u_A, and labels where no guard is overruled",
    ),
}
FTL = "algorithm 'ftl'"


class FtlPart(Part):
    """A party's layer, its side of the exchange, and its steps."""

    selection: CheckpointSelection
    _side: ClearSide | EncryptedSide

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        data = self.place.data
        assert isinstance(self.model, DenseLayer)  # noqa: S101
        self._layer = self.model
        self.inputs = self.local.inputs[: self.plan.facts.rows]
        self._losses: list[float] = []
        self.signs: FloatArray | None = None
        if data.train_labels is not None:
            own = data.own_rows
            labels = [data.train_labels, *([] if own is None else [own.labels])]
            self.signs = signs_of(np.concatenate(labels))

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        training, party, plan = self.training, self.party, self.plan
        self.selection = checkpoint_selection(training, agreement)
        self._batches = PartyBatches(plan, self.place.data.train_labels, self.inputs)
        self.local.phi = None if self.signs is None else self.phi
        if isinstance(plan.exchange, HoldsKeys):
            return await self._under_encryption(plan.exchange, agreement, leakage)
        assert isinstance(plan.exchange, SendsSingly)  # noqa: S101
        release = plan.exchange.release(training.noise)
        of_scores = plan.exchange.release(training.noise, "held-out predictions")
        self._side = side = ClearSide(party, linearized=plan.rule.gauss_newton, release=release)
        # A further release of Φ would cost privacy.
        phi = self.phi if isinstance(release, AsTheyAre) else side.given_phi
        return scoring_of(training, ScoringInClear(party, phi, of_scores))

    async def _under_encryption(
        self, exchange: HoldsKeys, agreement: Agreement, leakage: LeakageCount
    ) -> Scoring:
        training, party, plan, keys = self.training, self.party, self.plan, self.place.keys
        settings, units = plan.job.exchange, settings_of(plan).units
        columns = {name: values // units for name, values in agreement.columns.items()}
        fmt = product_format(plan, max(agreement.own_columns // units, *columns.values()))
        own_key, peers = await exchange.keys(self.session(agreement, leakage), fmt, columns)
        assert own_key is not None  # noqa: S101
        (peer_key,) = peers.values()
        self._side, self.key = EncryptedSide(party, own_key, peer_key), own_key.owner
        if not plan.timetable.test_rows:
            return scoring_of(training, ScoringInClear(party, self.phi))
        of_scores, owners = score_format(plan, units), (party.label_party,)
        made = await exchange_keys(
            party, settings, of_scores, owners=owners, keys=keys, seed=agreement.seed
        )
        return scoring_of(training, ScoringEncrypted(party, self.phi, of_scores, *made))

    @override
    async def round(self, index: int) -> Seen:
        """Exchange components once, or once per turn, and take steps."""
        plan, side = self.plan, self._side
        batch, loss = self._batches.at(index), None
        for step in steps_of(plan, index, alternating=settings_of(plan).alternating):
            signal = await side.signal(step, batch, self.objective(batch))
            if signal is None:
                continue
            async with self.party.costs.compute("local"):
                if side.scores is not None and batch.labels is not None:
                    loss = plan.loss.value(side.scores, batch.labels)
                    self._losses.append(loss)
                if self.selection.lost is None:
                    with self.selection.undoing_divergence(index):
                        take_steps(plan, self._layer, index, signal)
        return Seen(loss, selection_loss=loss)

    def phi(self) -> FloatArray:
        """Φ at the weights now, at the label party."""
        assert self.signs is not None  # noqa: S101
        return mean_units(self._layer, require_dense(self.local.inputs, FTL), self.signs)

    def objective(self, batch: Batch) -> OwnObjective:
        """This party's side of the objective on a batch; it follows the weights."""
        gamma = settings_of(self.plan).alignment
        if self.signs is None:
            return FeatureObjective(self._layer, require_dense(batch.inputs, FTL), gamma)
        inputs = require_dense(self.local.inputs, FTL)
        return LabelObjective(self._layer, inputs, self.signs, batch.rows, gamma)

    @override
    def arrays(self) -> dict[str, FloatArray]:
        return {"own losses": np.array(self._losses), **self.selection.arrays()}

    @override
    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        self._losses = arrays["own losses"].tolist()
        self.selection.restore(arrays)

    @override
    def learned(self, selected: SelectedState) -> bool:
        """Whether the loss fell below that of φ = 0, if this party sees it without noise.

        The first loss is that of the start and does not count.
        """
        plan, seen = self.plan, self._losses[1 : selected.rounds + 1]
        if plan.exchange.adds_noise or not seen:
            return True
        window = max(1, min(plan.schedule.batches, LONGEST_WINDOW, len(seen) // 2))
        return bool(np.mean(seen[-window:]) < np.log(2))


class Ftl(VerticalAlgorithm):
    """Transfer learning between two parties."""

    name = "ftl"
    needs = (SendsSingly, HoldsKeys)
    part = FtlPart
    takes_sparse = False
    repeats_products = True
    settings = FtlSettings
    only_loss: ClassVar[str | None] = "taylor-logistic"
    roles = (
        (f"{LABEL_PARTY} in clear", *IN_CLEAR[LABEL_PARTY]),
        (f"{FEATURE_PARTY} in clear", *IN_CLEAR[FEATURE_PARTY]),
        (f"{LABEL_PARTY}, encrypted", *ENCRYPTED[LABEL_PARTY]),
        (f"{FEATURE_PARTY}, encrypted", *ENCRYPTED[FEATURE_PARTY]),
    )

    @override
    def roles_in(self, plan: Plan) -> tuple[Role, ...]:
        """The roles in clear or under encryption."""
        roles = ENCRYPTED if plan.exchange.encrypts else IN_CLEAR
        return tuple((role, *learns) for role, learns in roles.items())

    @override
    def check(self, plan: Plan) -> None:
        job = plan.job
        if len(plan.facts.names) != 2:  # noqa: PLR2004
            raise ConfigError(f"algorithm = 'ftl' takes 2 parties, not {len(plan.facts.names)}")
        if job.exchange.predictions == "masked" or plan.learns.predictions == "summed":
            raise ConfigError("algorithm = 'ftl' gives no predictions that could be masked")
        if plan.exchange.adds_noise:
            _check_noise(plan)
        if plan.exchange.encrypts:
            _check_encrypted(job)
        activation = settings_of(plan).activation
        if activation not in BOUNDED and (plan.exchange.encrypts or plan.exchange.adds_noise):
            raise ConfigError(
                f"ftl.activation = {activation!r}: exchange {plan.exchange.name!r} needs units "
                f"with a bound: {' or '.join(BOUNDED)}"
            )
        _check_steps(job)

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release of w units per visit, and Φ every round."""
        steps = plan.rule.local_steps
        return Visits(1, 1, steps, every_round=1, outputs=settings_of(plan).units)

    @override
    def rows(self, job: Job, dataset: VerticalDataset[SameRows]) -> VerticalDataset[SameRows]:
        """The overlap, and the label party's own rows."""
        settings = job.section(FtlSettings, self.name)
        taken = overlapping(dataset, settings.overlap, job.job.seed)
        if dataset.own_rows is None:
            return taken
        dropped = dict(dataset.dropped)
        dropped[dataset.label_party] = dropped.get(dataset.label_party, 0) - len(dataset.own_rows)
        return replace(taken, dropped=dropped)

    @override
    def networks(self, job: Job, facts: Facts) -> dict[str, Network]:
        """One hidden layer per party."""
        models = {job.job.model, *(job.model_of(name).model for name in facts.names)}
        if models != {"linear"}:
            raise ConfigError("algorithm = 'ftl' brings its own layers: [ftl] units, activation")
        settings = job.section(FtlSettings, self.name)
        network = Network("dense", (settings.units,), settings.activation)
        return dict.fromkeys(facts.names, network)

    @override
    def held_out(self, plan: Plan) -> Shown:
        """φ of every row, whatever the exchange."""
        return "singly"

    @override
    def new_rows(self, job: Job, exchange: Exchange, parties: int) -> Shown:
        """Not supported: φ = Φ·u_B needs Φ at the feature party, or a further product."""
        raise ConfigError(
            "algorithm = 'ftl' scores rows in training only: hold new ones out as test_data"
        )


def _check_encrypted(job: Job) -> None:
    if job.exchange.hide != "both":
        raise ConfigError("algorithm = 'ftl' encrypts components of both: hide = 'both'")
    if job.job.eval_every == "never":
        raise ConfigError(
            "eval_every = 'never': under encryption only held-out scores show whether anything "
            "was learned"
        )


def _check_steps(job: Job) -> None:
    settings = job.job
    if settings.local_rule not in ("curvature", "gauss-newton"):
        raise ConfigError("algorithm = 'ftl' takes local_rule = 'curvature' or 'gauss-newton'")
    if settings.acceleration == "nesterov":
        raise ConfigError("acceleration: algorithm = 'ftl' has none")
    if settings.l1:
        raise ConfigError("l1 is for linear models: algorithm = 'ftl' has l2")
    if not settings.intercept:
        raise ConfigError("intercept = false: the units of algorithm = 'ftl' have biases")


def _check_noise(plan: Plan) -> None:
    privacy = plan.job.privacy
    if privacy.label_noise_multiplier:
        raise ConfigError(
            "label_noise_multiplier: no epsilon covers labels under algorithm = 'ftl', whose label "
            "party learns from them exactly"
        )
    if privacy.gradient_clip is not None or privacy.budget is not None:
        raise ConfigError(
            "algorithm = 'ftl' promises nothing end to end: drop gradient_clip and budget; "
            "release_budget bounds the releases"
        )


DESCRIPTIONS = (Ftl(),)
