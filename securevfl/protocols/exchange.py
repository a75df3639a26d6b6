"""What an exchange is: one description that algorithms, guards, audit and documents work from.

An exchange defines how predictions and residuals travel in a round. An algorithm asks its party's
side of the exchange for a *signal* and does not know which exchange produces it. All other code
asks the description; no code compares names.

Each small protocol below is one use that algorithms make of an exchange (`Algorithm.needs`). An
exchange offers those whose methods it implements. A job whose algorithm needs something that its
exchange does not offer is refused before any work.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import isabstract
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.blocks import BlockedRows
from securevfl.crypto.masks import PairwiseMasks
from securevfl.crypto.scheme import KeyOwner, ProductFormat
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.models.head import Head, HeadedModel
from securevfl.models.local_model import LocalModel
from securevfl.privacy.streams import Purpose
from securevfl.protocols.local_steps import LocalSteps, Signal
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import Gathering, Party, Step, gathering_of
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.privacy_account import LeakageCount, Noise
from securevfl.protocols.session.scoring import HeldOut
from securevfl.sparse import Matrix, SparseRows, dense

if TYPE_CHECKING:
    from securevfl.protocols.plan import Plan

Shown = Literal["singly", "summed", "hidden"]
"""How a party sees the others' predictions."""
ResidualsSeen = Literal["clear", "noisy", "hidden"]
Variant = Mapping[str, Mapping[str, Any]]
"""Settings by section of a job."""


KEPT_BYTES = 1 << 28
"""Limit on cached batches of sparse rows; beyond it they are extracted in every round."""
REORDERED_BYTES = 1 << 30
"""Limit on sparse rows of which a copy is kept in the order of a shuffle's epoch, at each party."""
CONVERTED, CONVERTED_VALUE = 6, 12
"""Bytes that a cached batch takes per stored cell, and per value where cells have values."""


@dataclass(frozen=True)
class Learns:
    """Who learns what in a round, beside sizes and times.

    Attributes:
        label_party: what it learns, for people.
        label_party_not: what it does not learn.
        feature_party: what a feature party learns.
        feature_party_not: what it does not learn.
        predictions: how the label party sees the others' H_k.
        residuals: how feature parties see d.
        gradients: whether feature parties learn Xᵀd/S of a batch and nothing else of d; then the
            label guard counts.
    """

    label_party: str
    label_party_not: str
    feature_party: str
    feature_party_not: str
    predictions: Shown
    residuals: ResidualsSeen
    gradients: bool

    def __post_init__(self) -> None:
        # Guards would treat an unknown value as harmless.
        for what, known in (("predictions", Shown), ("residuals", ResidualsSeen)):
            if getattr(self, what) not in get_args(known):
                raise ConfigError(
                    f"an exchange says {what} = {getattr(self, what)!r}, expected one of "
                    f"{', '.join(get_args(known))}"
                )


@dataclass(frozen=True)
class Batch:
    """The rows of a round at one party.

    Attributes:
        key: equal for equal rows.
        repeats: whether a key can come again, so that preparations are worth caching.
        rows: the row numbers, shape (S,).
        inputs: this party's X of those rows, shape (S, P).
        labels: at the label party only, shape (S,).
        jacobian: computes the Jacobian of a network at the exchange's θ⁰.
    """

    key: int
    repeats: bool
    rows: IntArray
    inputs: Matrix
    labels: Labels | None
    jacobian: Callable[[], Matrix] | None = None

    @property
    def matrix(self) -> Matrix:
        """∂H/∂θ of the rows at θ⁰: X, shape (S, P), or the Jacobian, shape (S·C, p)."""
        return self.inputs if self.jacobian is None else self.jacobian()

    @property
    def tangent(self) -> FloatArray:
        """The same as an array."""
        return dense(self.matrix)

    def seen_by(self, model: LocalModel) -> "Batch":
        """The batch with a network's Jacobian, which changes with θ and is never cached."""
        if model.is_linear:
            return self
        return replace(self, repeats=False, jacobian=model.tangent(self.inputs))


@dataclass(eq=False)
class Stretch:
    """The batches of consecutive rounds at one party; the next that is cut out takes its rows away.

    Attributes:
        inputs: X of all their rows, round after round, shape (ΣS, P).
        labels: of these rows, shape (ΣS,).
        parts: each round's slice of these rows.
    """

    inputs: Matrix
    labels: Labels
    parts: tuple[slice, ...]

    def of(self, part: slice) -> tuple[Matrix, Labels]:
        """X and labels of one round."""
        if len(self.parts) == 1:
            return self.inputs, self.labels
        return self.inputs[part], self.labels[part]


class PartyBatches:
    """One party's rows of every round; repeated batches are cut out once."""

    def __init__(self, plan: "Plan", labels: Labels | None, inputs: Matrix) -> None:
        self._schedule = plan.schedule
        self._inputs = inputs
        self._labels = labels
        self._repeats = plan.schedule.repeats and _are_worth_keeping(plan, inputs)
        self._kept: dict[int, Batch] = {}
        # An epoch of a shuffle, and all rows and labels in its order.
        self._reordered: tuple[int, SparseRows, Labels] | None = None
        self._stretch: Stretch | None = None

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""
        key = self._schedule.batch_key(round_index)
        if key in self._kept:
            return self._kept[key]
        rows = self._schedule.batch(round_index)
        # Rows are sorted: a batch of all rows is the table itself.
        every = len(rows) == len(self._inputs)
        labels = self._labels if self._labels is None or every else self._labels[rows]
        inputs = self._inputs if every else self._inputs[rows]
        # All batches of rows by block would be a copy of the table.
        repeats = self._repeats and (every or not isinstance(self._inputs, BlockedRows))
        batch = Batch(key, repeats, rows, inputs, labels)
        if repeats:
            self._kept[key] = batch
        return batch

    def stretch(self, first: int, length: int) -> Stretch:
        """`length` rounds from `first` on, at a party with labels.

        Of a shuffle of sparse rows it is a part of them, reordered once an epoch.
        """
        if self._stretch is not None:
            del self._stretch.inputs  # which may be overwritten now
        rounds = range(first, first + length)
        ends = pairwise(accumulate(map(self._schedule.size, rounds), initial=0))
        parts = tuple(slice(start, end) for start, end in ends)
        self._stretch = Stretch(*self._cut(rounds), parts)
        return self._stretch

    def _cut(self, rounds: range) -> tuple[Matrix, Labels]:
        labels, inputs, schedule = self._labels, self._inputs, self._schedule
        assert labels is not None  # noqa: S101
        if isinstance(inputs, SparseRows) and not schedule.repeats:
            (epoch, begin), (last, end) = map(schedule.place, (rounds[0], rounds[-1]))
            if epoch == last and inputs.nbytes <= REORDERED_BYTES:
                before = self._reordered
                if before is None or before[0] != epoch:
                    order = schedule.order(epoch).astype(np.int64)
                    rows = inputs.reordered(order, before and before[1])
                    self._reordered = before = epoch, rows, labels.take(order)
                every = slice(begin.start, end.stop)
                return before[1][every], before[2][every]
        if len(rounds) == 1:
            batch = self.at(rounds[0])
            assert batch.labels is not None  # noqa: S101
            return batch.inputs, batch.labels
        together = np.concatenate([schedule.batch(index) for index in rounds])
        return inputs[together], labels[together]


def _are_worth_keeping(plan: "Plan", inputs: Matrix) -> bool:
    """Whether all batches together, as products take them, fit the cache."""
    if not isinstance(inputs, SparseRows):
        return True
    if plan.exchange.encrypts:
        rows, columns = inputs.shape
        return 8 * rows * columns <= KEPT_BYTES
    cell = CONVERTED + CONVERTED_VALUE * (inputs.values is not None)
    return cell * inputs.nnz <= KEPT_BYTES


class Side(Protocol):
    """One party's side of an exchange: first predictions, then signals."""

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray | None:
        """The first half of an exchange: predictions are gathered.

        Args:
            step: says whose predictions are fresh.
            predictions: this party's H of the batch, shape (S, C), or u_k for a head, shape (S, w).

        Returns:
            The sum of the others' H, shape (S, C), at a label party that learns it; else None.

        Raises:
            PeerError: a peer failed or violated the protocol; this party's state is unchanged.
            RangeExceeded: predictions leave the agreed range.
        """

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """The second half: returns the signal, if this party is among the step's receivers.

        `predictions` are as for `gather`, `others` is what it returned; errors as of `gather`.
        """


class GatheringSide:
    """The first half of most exchanges: predictions, or u_k for a head, are gathered."""

    def __init__(self, party: Party, gathering: Gathering) -> None:
        self.party, self.gathering = party, gathering

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray | None:
        """See `Side.gather`."""
        return await self.gathering.batch(step, predictions)


@dataclass(frozen=True)
class Lookahead:
    """What a party knows about later rounds: its own steps, and its rows by round."""

    steps: LocalSteps
    rounds: int
    batch: Callable[[int], Batch]

    def next_batch(self, round_index: int) -> Batch | None:
        """The batch after this round; None after the last."""
        return self.batch(round_index + 1) if round_index + 1 < self.rounds else None


@dataclass(frozen=True)
class Session:
    """Everything that a party's side of an exchange needs, once the parties have agreed.

    Attributes:
        leakage: counts what gradients under this party's key reveal.
        keys: makes homomorphic keys.
        lookahead: for exchanges that compute the next round's predictions.
        noise: of this party, where the exchange adds noise.
        head: the model with its head, at the label party of a job that has one.
    """

    party: Party
    plan: "Plan"
    agreement: Agreement
    leakage: LeakageCount
    keys: KeyMaker
    lookahead: Lookahead | None = None
    noise: Noise | None = None
    head: HeadedModel | None = None


@dataclass(frozen=True)
class Established:
    """One party's exchange, ready for the first round.

    Attributes:
        side: of this party.
        gathering: how held-out predictions are gathered row by row.
        key: its own homomorphic key, if it has one.
        in_flight: what the side carries from one round to the next, by name; checkpoints hold it.
        sums: how the party scores where held-out predictions are not gathered.
        opens: whether predictions are products that a key opens, with few digits.
    """

    side: Side
    gathering: Gathering
    key: KeyOwner | None = None
    in_flight: dict[str, FloatArray] = field(default_factory=dict)
    sums: HeldOut | None = None
    opens: bool = False


@runtime_checkable
class SendsSignals(Protocol):
    """Rounds of FedBCD: predictions are gathered, then each party that steps gets a signal."""

    async def establish(self, session: Session) -> Established:
        """Set up this party's side.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
            PeerViolation: a peer's key does not fit.
        """


@runtime_checkable
class SendsResiduals(Protocol):
    """Rounds of DBCD: d of all rows is sent in clear, then feature parties answer."""

    async def establish_residuals(self, session: Session) -> Established:
        """Set up this party's side; every feature party's signal is a `ResidualSignal`."""


class Outgoing(Protocol):
    """How a party protects its numbers before it sends them."""

    def units(self, units: FloatArray) -> FloatArray:
        """Numbers of some rows, shape (rows, w)."""

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """The mean of y·u over this many rows, shape (w,)."""


class AsTheyAre:
    """No protection. An exchange has to return this explicitly."""

    def units(self, units: FloatArray) -> FloatArray:
        """Unchanged."""
        return units

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """Unchanged."""
        del rows
        return phi


IN_CLEAR = AsTheyAre()


@runtime_checkable
class SendsSingly(Protocol):
    """Each party sends its own numbers, in clear or with noise, in messages of the algorithm."""

    def release(self, noise: Noise | None, purpose: Purpose = "predictions") -> Outgoing:
        """How numbers are protected; `IN_CLEAR` where they are not."""


@runtime_checkable
class HoldsKeys(Protocol):
    """Products under homomorphic keys, of factors that the algorithm chooses."""

    async def keys(
        self, session: Session, product_format: ProductFormat, columns: Mapping[str, int]
    ) -> tuple[Any, Mapping[str, Any]]:
        """This party's key (`homomorphic.OwnKey`), if it owns one, and ends of the others' keys.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
            PeerViolation: a peer's key does not fit.
        """


@runtime_checkable
class TrainsOnShares(Protocol):
    """Rounds on secret shares: no party sees any number until training is over."""

    def part(self, training: Any) -> Any:  # noqa: ANN401
        """A party's part of a job; see `vertical.runner.Part`."""

    async def make_offline(self, training: Any) -> Any:  # noqa: ANN401
        """A party's part of the offline phase; see `vertical.runner.MakeOffline`."""


NEEDS: Mapping[type, str] = {
    SendsSignals: "its parties step by signals that the exchange makes of their predictions",
    SendsResiduals: "every party solves for its direction with residuals and curvature of all "
    "rows in clear",
    SendsSingly: "each party sends its own numbers, in clear or with noise",
    HoldsKeys: "its parties multiply components under homomorphic keys",
    TrainsOnShares: "its rounds run on secret shares",
}
"""What an algorithm can need of an exchange, in words for errors."""
WAYS = (
    "learns",
    "new_rows",
    *sorted(name for need in NEEDS for name in vars(need) if not name.startswith("_")),
)
"""The methods by which numbers leave a party, and `learns`, which describes them."""


class Exchange(ABC):
    """The description of an exchange.

    A subclass of a finished exchange must define each method in `WAYS` again: an inherited method
    would still send in clear what the subclass protects in another.

    Attributes:
        name: in `[exchange] scheme`.
        takes: keys of `[exchange]` that a job may set beside the scheme.
        encrypts: whether it needs homomorphic keys.
        adds_noise: whether it uses `[privacy]`.
        takes_head: whether predictions may be representations for a head.
        is_slow: whether audits take fewer and smaller rounds.
        sends_sum: whether feature parties get ΣH, as `local_rule = "exact"` needs.
        fewest_parties: the least K.
        error: relative difference to weights trained in clear that fixed point and approximations
            may cause.
        repeats: whether the same job on the same data shows the same numbers again.
        variants: settings that change who learns what; documents and tests have a row for each.
    """

    name: str
    takes: ClassVar[Collection[str]] = ()
    encrypts: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    takes_head: ClassVar[bool] = False
    is_slow: bool = False
    sends_sum: ClassVar[bool] = False
    fewest_parties: ClassVar[int] = 2
    error: ClassVar[float] = 1e-4
    repeats: bool = False
    variants: tuple[Variant, ...] = ({},)

    @override
    def __init_subclass__(cls) -> None:
        """Refuse methods of `WAYS` that are inherited from a finished exchange."""
        for finished in cls.__mro__[1:-1]:
            if isabstract(finished) or not issubclass(finished, Exchange):
                continue
            unsaid = [way for way in WAYS if hasattr(finished, way) and way not in vars(cls)]
            if unsaid:
                raise ConfigError(
                    f"exchange {cls.__name__} inherits {', '.join(unsaid)} from "
                    f"{finished.__name__}: define each, or set it to None if it is not offered"
                )

    @cached_property
    def shares_parameters(self) -> bool:
        """Whether no party sees a prediction, a residual or a gradient before the last round."""
        return isinstance(self, TrainsOnShares)

    def check(self, plan: "Plan") -> None:
        """Check that a job can be run under this exchange; a ConfigError says why it cannot."""
        del plan

    @abstractmethod
    def learns(self, job: Job) -> Learns:
        """Who learns what in a round of the job."""

    def held_out(self, job: Job, parties: int) -> Shown:
        """How the label party sees the others' held-out predictions when it scores.

        Args:
            job: the settings.
            parties: K.
        """
        del parties
        return self.learns(job).predictions

    def counts_held_out(self, job: Job) -> bool:
        """Whether the guard counts scorings, and the default is to score at the end only.

        Not if the label party sees each H_k of a batch and feature parties see d: scoring then
        reveals no more about held-out rows than rounds reveal about training rows.
        """
        learns = self.learns(job)
        return learns.residuals == "hidden" or learns.predictions != "singly"

    @abstractmethod
    def new_rows(
        self,
        job: Job,
        party: Party,
        masks: PairwiseMasks,
        *,
        shown: Shown,
        given: int,
        head: Head | None,
    ) -> Gathering:
        """How a trained model's predictions of new rows are gathered; often `as_shown`.

        Args:
            job: the settings.
            party: this party.
            masks: shared with the others, for this scoring alone.
            shown: singly or summed, as `Algorithm.new_rows` says.
            given: numbers that a feature party sends per row.
            head: at the label party of a model that has one.
        """

    @abstractmethod
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """Messages in a round of FedBCD-p among K parties."""

    def key_owners(self, settings: ExchangeSettings, party: Party) -> tuple[str, ...]:
        """The owners of homomorphic keys; required where `learns` has gradients."""
        del settings, party
        return ()


def as_shown(
    exchange: Exchange,
    job: Job,
    party: Party,
    masks: PairwiseMasks,
    *,
    shown: Shown,
    given: int,
    head: Head | None,
) -> Gathering:
    """`Exchange.new_rows` where predictions travel in clear or as a masked sum."""
    del exchange, job, given
    return gathering_of(party, masks, sums=shown == "summed", head=head)
