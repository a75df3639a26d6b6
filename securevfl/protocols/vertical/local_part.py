"""What a party trains: its scaled inputs, its model, and the label party's row offsets.

*Row offsets* e are secret numbers that the label party adds to H of its training rows throughout a
job. So the residuals σ(H + e) − y stay secret even if all H are known. They are drawn for each job
and are not part of the model (docs/decisions/0022-row-offsets.md).

Jobs that would turn too many sparse rows into an array are refused. Messages are sized by all P
columns, stored or not: the set of columns that occur in a batch is private.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.blocks import BlockedRows, blocked
from securevfl.data.labels import TargetScaling
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable
from securevfl.errors import ConfigError
from securevfl.models.curvature import most_gram_columns
from securevfl.models.head import HeadedModel, head_start
from securevfl.models.layers import dense_start, multilayer_start
from securevfl.models.linear import random_start, zero_start
from securevfl.models.local_model import LocalModel, MakeModule, Network
from securevfl.models.storage import ModelHeader, SavedModel, saved_model
from securevfl.privacy.streams import KEY_BYTES, NoiseStream
from securevfl.protocols.exchange import SendsSignals
from securevfl.protocols.plan import Plan
from securevfl.sparse import Matrix, SparseRows, dense, scaled_for


class LocalPart:
    """What a party trains.

    `start` draws θ⁰, and the key of row offsets where none is given. `with_intercept` gives this
    party the constant column; by default the label party has it.

    Attributes:
        phi: computes Φ of transfer learning, which the label party's model file holds.
        row_offsets: e of all rows, shape (N, C); None at parties without offsets.
        targets: the label party's scaling of real targets, which its model file holds.

    Raises:
        ConfigError: a module that does not fit, or sparse rows that do not fit the job.
    """

    def __init__(
        self,
        plan: Plan,
        table: PartyTable[Matrix],
        start: np.random.Generator,
        make_module: MakeModule | None = None,
        *,
        with_intercept: bool | None = None,
        class_names: tuple[str, ...] = (),
        offsets_key: bytes | None = None,
    ) -> None:
        self._plan, self._table = plan, table
        self._class_names = class_names
        self._network = plan.networks.get(table.name)
        check_columns(plan, table, self._network)
        self.phi: Callable[[], FloatArray] | None = None
        self.targets: TargetScaling | None = None
        standardize = plan.job.job.standardize
        if standardize is None:
            standardize = plan.facts.standardize
        self._make_module = make_module
        if with_intercept is None:
            with_intercept = table.name == plan.facts.label_party
        intercept = plan.job.job.intercept and with_intercept
        self.head: HeadedModel | None = None
        # Networks take arrays.
        as_arrays = bool(plan.networks) or plan.representation is not None
        train, held_out = (_taken(each, as_arrays) for each in (table.train, table.test))
        bounds = plan.job.job.bounds
        self.scaling = Scaling.of(table, train, bounds, standardize=standardize)
        features = self.scaling.apply(train)
        if plan.representation is None:
            self.model = self._start(features, intercept, start)
        else:
            self.model = self._start(features, False, start)
            if table.name == plan.facts.label_party:
                self.model = self.head = self._with_head(self.model, start)
        self.inputs = self.model.inputs(features)
        del features  # as large as the inputs
        others = scaled_for(table.name, table.columns, held_out, self.scaling.apply)
        self.held_out = self.model.inputs(others)
        self.row_offsets: FloatArray | None = None
        if plan.row_offsets and table.name == plan.facts.label_party:
            shape = len(table.train), plan.loss.outputs
            # Predictable offsets could be subtracted.
            stream = NoiseStream(offsets_key or start.bytes(KEY_BYTES))
            self.row_offsets = plan.row_offsets * stream.gaussian(shape)

    @property
    def parameters(self) -> int | None:
        """P of a network; None for a linear model."""
        return None if self.model.is_linear else self.model.weights.size

    def _start(self, features: Matrix, intercept: bool, start: np.random.Generator) -> LocalModel:
        job, outputs, network = self._plan.job, self._plan.given, self._network
        signs = signs_of(self._plan, self._table, intercept)
        # Predictions show θ⁰, so an end-to-end guarantee must cover it.
        private = job.privacy.gradient_clip is not None
        depends_on_none = private or self._plan.representation is not None
        if network is not None and network.kind == "dense":
            (units,) = network.hidden
            return dense_start(features, units, network.activation, start)
        if network is not None and network.kind == "mlp" and isinstance(features, SparseRows):
            return multilayer_start(
                network, features, outputs, start, data_independent=depends_on_none
            )
        if network is not None:
            # torch takes a second to load, and linear jobs need none.
            from securevfl.models.neural import maker_of, neural_start  # noqa: PLC0415

            return neural_start(
                maker_of(network, self._make_module),
                features,
                outputs,
                start,
                hidden=network.hidden if network.kind == "mlp" else None,
                precision=network.precision,
                data_independent=depends_on_none,
            )
        if job.job.start == "zero":
            zero = zero_start(features.shape[1] + int(intercept), outputs, intercept)
            return replace(zero, signs=signs)
        return random_start(
            features,
            outputs,
            intercept,
            start,
            deviation=self._plan.start_deviation(self._table.name),
            data_independent=private,
            signs=signs,
        )

    def _with_head(self, model: LocalModel, start: np.random.Generator) -> HeadedModel:
        plan, own = self._plan, self._table.name
        names = (own, *(name for name in plan.facts.names if name != own))
        head = head_start(len(names), plan.given, plan.loss.outputs, start)
        return HeadedModel(model, self._table.train.shape[1], names, head)

    def saved(self, rounds: int) -> SavedModel:
        """The model as it stands, with its header."""
        header = ModelHeader(
            party=self._table.name,
            columns=self._table.columns,
            intercept=self.model.intercept,
            classes=self._plan.facts.classes,
            loss=self._plan.loss.name,
            job_hash=self._plan.hash.hex(),
            rounds=rounds,
            network=self._network,
            representation=self._plan.representation,
            target_mean=None if self.targets is None else self.targets.mean,
            target_scale=None if self.targets is None else self.targets.scale,
            class_names=self._class_names or None,
            rows=self._plan.facts.rows,
            recipe=self._table.recipe,
        )
        return saved_model(
            header,
            self.model,
            mean=self.scaling.mean,
            scale=self.scaling.scale,
            bounds=self.scaling.bounds,
            make_module=self._make_module,
            phi=None if self.phi is None else self.phi(),
        )


def _taken(rows: Matrix, as_array: bool) -> Matrix:
    if as_array:
        return dense(rows) if isinstance(rows, BlockedRows) else rows
    return blocked(rows) if isinstance(rows, np.ndarray) else rows


def signs_of(plan: Plan, table: PartyTable[Matrix], intercept: bool) -> FloatArray | None:
    """The signs of a linear model's weights; a ConfigError where steps do not keep them."""
    if not any(table.signs):
        return None
    alone = SendsSignals in plan.algorithm.needs and not plan.exchange.shares_parameters
    if not (alone and plan.rule.exact and plan.loss.outputs == 1):
        raise ConfigError(
            f"party {table.name!r}: monotone takes linear models of two classes or real targets, "
            "by 'fedbcd-p' or 'fedbcd-s' with local_steps = 'exact', not under 'blind' or with l1"
        )
    return np.array([*table.signs, *[0] * intercept], np.float64)


DENSE_BYTES = 1 << 28
"""Limit on a batch as a dense array over all P columns."""


def check_columns(plan: Plan, table: PartyTable[Matrix], network: Network | None) -> None:
    """Refuse a job that would make too large an array of a party's columns, or sparse rows."""
    party, columns = table.name, table.train.shape[1]
    is_sparse = isinstance(table.train, SparseRows)
    kind = "sparse" if is_sparse else "dense"
    of_rows = f"party {party!r} holds {kind} rows of {columns} columns"
    if is_sparse:
        _check_sparse(plan, of_rows, party, columns, network)
    whole, most = _needs_gram(plan, network), most_gram_columns(table.train)
    if whole and columns > most:
        raise ConfigError(
            f"{of_rows}: {whole} needs a matrix of P x P numbers, for at most "
            f"{most} columns; give local_steps a number and learning_rate one"
            + (" and round_trips = 2" if plan.exchange.encrypts else "")
        )


def _check_sparse(
    plan: Plan, of_sparse: str, party: str, columns: int, network: Network | None
) -> None:
    if not plan.algorithm.takes_sparse:
        raise ConfigError(
            f"{of_sparse}: algorithm {plan.algorithm.name!r} takes dense ones; use fedbcd-p or fdml"
        )
    if plan.representation is not None and party == plan.facts.label_party:
        raise ConfigError(f"{of_sparse}: a head at the label party takes dense ones")
    if network is not None and network.precision == "single":
        raise ConfigError(f"{of_sparse}: their products are float64, not precision = 'single'")
    rows, what, most = plan.most_batch_rows, "batches", DENSE_BYTES // (8 * columns)
    if plan.exchange.shares_parameters:
        rows, what = plan.facts.rows, "all rows"
    is_made_dense = network is not None and network.kind != "mlp"
    if (plan.exchange.encrypts or is_made_dense) and rows > most:
        why = f"exchange {plan.exchange.name!r}" if plan.exchange.encrypts else "this network"
        raise ConfigError(
            f"{of_sparse}: {why} takes {what} as arrays over all of them, {rows} rows of "
            f"{8 * rows * columns >> 20} MiB where {DENSE_BYTES >> 20} are allowed; {most} rows "
            "pass, and linear models in exchange 'plain' or 'masked' need no array"
        )


def _needs_gram(plan: Plan, network: Network | None) -> str:
    if network is not None:
        return ""
    if plan.rule.exact:
        return "local_steps = 'exact'"
    if plan.exchange.shares_parameters:
        return f"exchange {plan.exchange.name!r}"
    trips = plan.job.exchange.round_trips
    if plan.exchange.encrypts and (trips == 1 or (trips == "auto" and plan.networks)):
        return f"round_trips = {trips}"
    return ""
