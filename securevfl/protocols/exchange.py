"""What an exchange is: one description, from which everything that asks about it is answered.

An exchange says how predictions and residuals travel in a round. The algorithm asks its side of
it for a *signal* and never knows which exchange gives it; the guard, the audit, benchmarks, the
command line and the documents ask the description, and nobody compares names.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.crypto.masks import PairwiseMasks
from securevfl.crypto.scheme import KeyOwner
from securevfl.job import ExchangeSettings, Job
from securevfl.models.head import Head, HeadedModel
from securevfl.models.local_model import LocalModel
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import ClearGathering, Gathering, MaskedGathering
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.privacy_account import Noise
from securevfl.protocols.session.scoring import GivesHeldOut, ScoresHeldOut
from securevfl.protocols.signals import Signal
from securevfl.sparse import Matrix, dense

if TYPE_CHECKING:
    from securevfl.protocols.plan import Plan

Shown = Literal["singly", "summed", "hidden"]
"""How somebody sees the others' predictions."""
Variant = Mapping[str, Mapping[str, Any]]
"""Settings by section of a job."""


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
    residuals: Literal["clear", "noisy", "hidden"]
    gradients: bool


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


@dataclass(frozen=True)
class Lookahead:
    """What a party knows of coming rounds.

    Attributes:
        steps: its own.
        rounds: of the job.
        batch: its rows by round.
    """

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
        party: who it is.
        plan: of the job.
        agreement: what the parties told each other.
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
        gives_held_out: a feature party's side of scoring where they do not.
        scores_held_out: the label party's.
        key: its own homomorphic key, if it has one.
        in_flight: what the side holds from one round for the next, by name: filled as rounds end,
            and beforehand where a session goes on.
    """

    side: Side
    gathering: Gathering
    key: KeyOwner | None = None
    in_flight: dict[str, FloatArray] = field(default_factory=dict)
    gives_held_out: GivesHeldOut | None = None
    scores_held_out: ScoresHeldOut | None = None


class Exchange(ABC):
    """The description of an exchange.

    Attributes:
        name: in `[exchange] scheme`.
        encrypts: whether it needs homomorphic keys.
        adds_noise: whether `[privacy]` belongs to it.
        takes_head: whether predictions may be representations for a head.
        shares_parameters: whether parameters stay in shares until the last round, so that nobody
            sees a prediction, a residual or a gradient before.
        is_slow: whether a round takes so long that audits make fewer and smaller ones.
        tells_sum: whether it has feature parties told ΣH, as `local_rule = "exact"` asks.
        fewest_parties: K must not be less.
        variants: settings beside the name that change who learns what; documents and tests show
            one row for each.
    """

    name: str
    encrypts: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    takes_head: ClassVar[bool] = False
    shares_parameters: ClassVar[bool] = False
    is_slow: bool = False
    tells_sum: ClassVar[bool] = False
    fewest_parties: ClassVar[int] = 2
    variants: tuple[Variant, ...] = ({},)

    @property
    def take_part(self) -> Callable[[Any], Awaitable[Any]] | None:
        """A party's part of a job (`vertical.program.Train`), where it has rounds of its own."""
        return None

    @abstractmethod
    def check(self, plan: "Plan") -> None:
        """Check that a job can be run under this exchange.

        Raises:
            ConfigError: it cannot; the message says why.
        """

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

        Args:
            job: the settings.
            party: who it is.
            masks: shared with the others, for this scoring alone.
            shown: singly or summed, as `Algorithm.new_rows` says.
            given: numbers that a feature party gives of a row.
            head: at the label party of a model that has one.
        """
        del job, given
        return MaskedGathering(party, masks) if shown == "summed" else ClearGathering(party, head)

    @abstractmethod
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """Messages in a round of FedBCD-p among K parties."""

    def key_owners(self, settings: ExchangeSettings, party: Party) -> tuple[str, ...]:
        """Who owns a homomorphic key."""
        del settings, party
        return ()

    @abstractmethod
    async def establish(self, session: Session) -> Established:
        """Set up this party's side.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
            PeerViolation: a peer's key does not fit.
        """

    @property
    def make_ahead(self) -> Callable[[Any], Awaitable[Any]] | None:
        """A party's part of making pads before training (`vertical.program.MakeAhead`), if any."""
        return None
