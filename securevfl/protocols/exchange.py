"""What an exchange is: one description, from which everything that asks about it is answered.

An exchange says how predictions and residuals travel in a round. The algorithm asks its side of
it for a *signal* and never knows which exchange gives it; the guard, the audit, benchmarks, the
command line and the documents ask the description, and nobody compares names.

What an exchange can do it shows by the methods that it has: each of the small protocols below is
one use that algorithms make of an exchange (`Algorithm.needs`), and a class offers those whose
methods it implements. A job whose algorithm needs what its exchange does not offer is refused
before any work.
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
    from securevfl.protocols.session.workplace import PartyData

Shown = Literal["singly", "summed", "hidden"]
"""How somebody sees the others' predictions."""
ResidualsSeen = Literal["clear", "noisy", "hidden"]
Variant = Mapping[str, Mapping[str, Any]]
"""Settings by section of a job."""


KEPT_BYTES = 1 << 28
"""Of what is made of sparse rows' batches and kept; beyond it they are cut out anew every time."""
CONVERTED, CONVERTED_VALUE = 6, 12
"""Bytes of a stored cell, and of its value if it has one, that a kept batch takes."""


@dataclass(frozen=True)
class Learns:
    """Who learns what of a round, beside sizes and times.

    Attributes:
        label_party: what it learns, for people.
        label_party_not: what it does not.
        feature_party: what a feature party learns.
        feature_party_not: what it does not.
        predictions: how the label party sees the others' H_k.
        residuals: how feature parties see d.
        gradients: whether feature parties learn Xᵀd/S of a batch and no more of d, so that the
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
        # What guards do not know they would take for harmless.
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
        key: the same for the same rows.
        repeats: whether a key can come again: what was prepared for it is worth keeping.
        rows: the row numbers, shape (S,).
        inputs: this party's X of those rows, shape (S, P).
        labels: the labels, at the label party only, shape (S,).
        jacobian: computes that of a non-linear local model at the exchange's θ⁰.
    """

    key: int
    repeats: bool
    rows: IntArray
    inputs: Matrix
    labels: Labels | None
    jacobian: Callable[[], Matrix] | None = None

    @property
    def tangent(self) -> FloatArray:
        """∂H/∂θ of the rows at θ⁰: X, shape (S, P), or the Jacobian, shape (S·C, p)."""
        return dense(self.inputs if self.jacobian is None else self.jacobian())

    def seen_by(self, model: LocalModel) -> "Batch":
        """The batch with a model's Jacobian, which changes with θ and is never worth keeping."""
        if model.is_linear:
            return self
        return replace(self, repeats=False, jacobian=model.tangent(self.inputs))


@dataclass(frozen=True, eq=False)
class Stretch:
    """The batches of rounds one after another at one party, cut out together.

    Attributes:
        inputs: X of all their rows, round after round, shape (ΣS, P).
        labels: of these, shape (ΣS,).
        parts: of these rows, those of each round.
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
    """One party's rows of every round; those that repeat are cut out once."""

    def __init__(self, plan: "Plan", data: "PartyData", inputs: Matrix) -> None:
        self._schedule = plan.schedule
        self._inputs = inputs
        self._labels = data.train_labels
        self._repeats = plan.schedule.repeats and _are_worth_keeping(plan, inputs)
        self._kept: dict[int, Batch] = {}

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""
        key = self._schedule.batch_key(round_index)
        if key in self._kept:
            return self._kept[key]
        rows = self._schedule.batch(round_index)
        labels = None if self._labels is None else self._labels[rows]
        # Rows are sorted, so that all of them are the table itself.
        inputs = self._inputs if len(rows) == len(self._inputs) else self._inputs[rows]
        batch = Batch(key, self._repeats, rows, inputs, labels)
        if self._repeats:
            self._kept[key] = batch
        return batch

    def stretch(self, first: int, length: int) -> Stretch:
        """So many rounds from one on, at a party that holds the labels."""
        assert self._labels is not None  # noqa: S101
        if length == 1:
            batch = self.at(first)
            assert batch.labels is not None  # noqa: S101
            return Stretch(batch.inputs, batch.labels, (slice(None),))
        several = [self._schedule.batch(index) for index in range(first, first + length)]
        rows = np.concatenate(several)
        ends = pairwise(accumulate(map(len, several), initial=0))
        parts = tuple(slice(start, end) for start, end in ends)
        return Stretch(self._inputs[rows], self._labels[rows], parts)


def _are_worth_keeping(plan: "Plan", inputs: Matrix) -> bool:
    """Whether all batches together, as products take them, are no more than is kept."""
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
        """Take part in the first half: predictions come together.

        Args:
            step: whose predictions are fresh.
            predictions: this party's H of the batch, shape (S, C), or u_k for a head, shape (S, w).

        Returns:
            The sum of the others' H, shape (S, C), at the label party, where it learns it.

        Raises:
            PeerError: a peer broke the protocol or is gone; nothing of this party has changed.
            RangeExceeded: predictions leave the agreed range.
        """

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Take part in the second half.

        Args:
            step: who gets a signal.
            batch: the rows.
            predictions: this party's H of those rows, shape (S, C).
            others: what `gather` returned.

        Returns:
            The signal, if this party is among the receivers.

        Raises:
            PeerError: a peer broke the protocol or is gone; nothing of this party has changed.
            RangeExceeded: residuals leave the agreed range.
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
    """What a party knows of coming rounds: its own steps, and its rows by round."""

    steps: LocalSteps
    rounds: int
    batch: Callable[[int], Batch]

    def next_batch(self, round_index: int) -> Batch | None:
        """The batch after this round; None after the last."""
        return self.batch(round_index + 1) if round_index + 1 < self.rounds else None


@dataclass(frozen=True)
class Session:
    """What a party's side of an exchange is made from, once all have agreed.

    Attributes:
        leakage: counts what the gradients of this party's key reveal.
        keys: makes homomorphic keys.
        lookahead: what this party knows of coming rounds, where its steps are local ones.
        noise: what it adds, where the exchange adds noise.
        head: its model with the head, at the label party of a job that has one.
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
        side: its side.
        gathering: how held-out predictions travel, row by row.
        key: its own homomorphic key, if it has one.
        in_flight: what the side holds from one round for the next, by name: filled as rounds end,
            and beforehand where a session goes on.
        sums: this party's side of scoring where held-out predictions do not travel.
    """

    side: Side
    gathering: Gathering
    key: KeyOwner | None = None
    in_flight: dict[str, FloatArray] = field(default_factory=dict)
    sums: HeldOut | None = None


@runtime_checkable
class GivesSignals(Protocol):
    """Rounds of FedBCD: predictions one way, then a signal of whatever kind to each that steps."""

    async def establish(self, session: Session) -> Established:
        """Set up this party's side.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
            PeerViolation: a peer's key does not fit.
        """


@runtime_checkable
class TellsResiduals(Protocol):
    """Rounds of DBCD: d of all rows in clear first, then what feature parties give for it."""

    async def establish_residuals(self, session: Session) -> Established:
        """Set up this party's side; every feature party's signal is a `ResidualSignal`."""


class Outgoing(Protocol):
    """What a party's numbers become before they are given."""

    def units(self, units: FloatArray) -> FloatArray:
        """Of its numbers of some rows, shape (rows, w)."""

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """Of the mean of y·u over so many rows, shape (w,)."""


class AsTheyAre:
    """Numbers that stay as they are, which an exchange has to say; nothing returned is an error."""

    def units(self, units: FloatArray) -> FloatArray:
        """The same."""
        return units

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """The same."""
        del rows
        return phi


IN_CLEAR = AsTheyAre()


@runtime_checkable
class GivesSingly(Protocol):
    """Numbers of a party as they are, or with its noise; how they travel is the algorithm's."""

    def release(self, noise: Noise | None, purpose: Purpose = "predictions") -> Outgoing:
        """What numbers become before they are given; `AsTheyAre` where they stay in clear."""


@runtime_checkable
class HoldsKeys(Protocol):
    """Products under homomorphic keys, of whatever the algorithm puts in."""

    async def keys(
        self, session: Session, product_format: ProductFormat, columns: Mapping[str, int]
    ) -> tuple[Any, Mapping[str, Any]]:
        """This party's key (`homomorphic.OwnKey`), if it owns one, and its ends of the others'.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
            PeerViolation: a peer's key does not fit.
        """


@runtime_checkable
class KeepsShares(Protocol):
    """Rounds in which parameters stay in shares: nobody sees a number before they are over."""

    def part(self, training: Any) -> Any:  # noqa: ANN401
        """A party's part of a job; see `vertical.runner.Part`."""

    async def make_offline(self, training: Any) -> Any:  # noqa: ANN401
        """A party's part of making pads before training; see `vertical.runner.MakeAhead`."""


NEEDS: Mapping[type, str] = {
    GivesSignals: "its parties step by what the exchange makes of their predictions",
    TellsResiduals: "every party solves for its direction with residuals and curvature of all "
    "rows in clear",
    GivesSingly: "its parties give numbers singly, clear or noisy",
    HoldsKeys: "its parties multiply components under homomorphic keys",
    KeepsShares: "its rounds run in shares",
}
"""What an algorithm can need of an exchange, and how an error says so."""
WAYS = (
    "learns",
    "new_rows",
    *sorted(name for need in NEEDS for name in vars(need) if not name.startswith("_")),
)
"""The methods by which numbers leave a party, and what is said of them."""


class Exchange(ABC):
    """The description of an exchange.

    A subclass of a finished exchange defines each of its methods in `WAYS` again. A method that it
    inherited would still send in clear what the subclass protects in another.

    Attributes:
        name: in `[exchange] scheme`.
        takes: keys of `[exchange]` beside the scheme that a job may give; others are refused.
        encrypts: whether it needs homomorphic keys.
        adds_noise: whether `[privacy]` belongs to it.
        takes_head: whether predictions may be representations for a head.
        is_slow: whether a round takes so long that audits make fewer and smaller ones.
        tells_sum: whether it has feature parties told ΣH, as `local_rule = "exact"` asks.
        fewest_parties: K must not be less.
        error: by how much of themselves weights may differ from those in clear, where nothing else
            does, as fixed point and approximations have it.
        variants: settings beside the name that change who learns what; documents and tests show
            one row for each.
    """

    name: str
    takes: ClassVar[Collection[str]] = ()
    encrypts: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    takes_head: ClassVar[bool] = False
    is_slow: bool = False
    tells_sum: ClassVar[bool] = False
    fewest_parties: ClassVar[int] = 2
    error: ClassVar[float] = 1e-4
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
        """Whether nobody sees a prediction, a residual or a gradient before the last round."""
        return isinstance(self, KeepsShares)

    def check(self, plan: "Plan") -> None:
        """Check that a job can be run under this exchange; any by default.

        Raises:
            ConfigError: it cannot; the message says why.
        """
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
        """Whether scorings are counted, and as few as can be where the job does not say.

        Not where the label party sees each H_k of a batch and feature parties see d: held-out rows
        would be the only ones that anything is kept of.
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
        """How a trained model's predictions of new rows come to the label party.

        In clear or as a masked sum it is `as_shown`.

        Args:
            job: the settings.
            party: who it is.
            masks: shared with the others, for this scoring alone.
            shown: singly or summed, as `Algorithm.new_rows` says.
            given: numbers that a feature party gives of a row.
            head: at the label party of a model that has one.
        """

    @abstractmethod
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """Messages in a round of FedBCD-p among K parties."""

    def key_owners(self, settings: ExchangeSettings, party: Party) -> tuple[str, ...]:
        """Who owns a homomorphic key; an exchange whose `learns` has gradients names them."""
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
    """`Exchange.new_rows` of those whose predictions travel in clear, or as a masked sum."""
    del exchange, job, given
    return gathering_of(party, masks, sums=shown == "summed", head=head)
