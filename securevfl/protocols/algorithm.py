"""What an algorithm is: one description that programs, guards, audit and documents work from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job, Section
from securevfl.models.local_model import Network
from securevfl.protocols.exchange import Exchange, HoldsKeys, Shown
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.workplace import PartyOutcome, Workplace
from securevfl.runtime.simulation import Program
from securevfl.sparse import SameRows

if TYPE_CHECKING:
    from securevfl.protocols.plan import Facts, Plan

Role = tuple[str, str, str]
"""A role, what it learns, what it does not: beyond what the exchange describes."""


class Algorithm(ABC):
    """The description of an algorithm.

    Attributes:
        name: in `[job] algorithm`.
        needs: uses of an exchange, from `exchange.NEEDS`, one of which it must offer.
        settings: the section of a job file under the algorithm's name, if it has one.
        alternating: whether parties take turns within a round.
        one_step: Q = 1 whatever the job says.
        takes_head: whether predictions may be representations for a head.
        repeats_products: whether its local steps can repeat homomorphic work (`he_per_step`).
        labels_everywhere: whether all parties hold the labels.
        scores_between: whether held-out rows are scored during training.
        gradient_steps: whether parties take the steps of `local_steps.LocalRule`, which a party
            that sees their predictions can invert.
        default_schedule: default of η's schedule.
        defaults: other defaults of `[job]`.
        roles: who learns what, in addition to what the exchange says.
        only_loss: the only loss that it supports, if any; logistic then means this loss.
        takes_sparse: whether parties may hold sparse rows.
        keeps_state: whether sessions can resume.
        servers: programs without data, beside the parties'.
    """

    name: str
    needs: tuple[type, ...] = ()
    settings: ClassVar[type[Section] | None] = None
    alternating: bool = False
    one_step: bool = False
    takes_head: ClassVar[bool] = False
    repeats_products: ClassVar[bool] = False
    labels_everywhere: ClassVar[bool] = False
    scores_between: ClassVar[bool] = True
    default_schedule: ClassVar[Literal["constant", "inverse-sqrt"]] = "constant"
    gradient_steps: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, object]] = {}
    roles: ClassVar[tuple[Role, ...]] = ()
    only_loss: ClassVar[str | None] = None
    keeps_state: ClassVar[bool] = True
    takes_sparse: ClassVar[bool] = True
    servers: ClassVar[tuple[str, ...]] = ()

    @property
    def own_components(self) -> bool:
        """Whether parties exchange values other than predictions and residuals.

        If so, the algorithm itself checks which local models an exchange supports.
        """
        return HoldsKeys in self.needs

    def loss(self, job: Job) -> str:
        """The loss of a job; a ConfigError if this algorithm does not support it."""
        if self.only_loss is None:
            return job.job.loss
        if job.job.loss not in (self.only_loss, "logistic"):
            raise ConfigError(
                f"loss = {job.job.loss!r}: algorithm {self.name!r} supports {self.only_loss!r} only"
            )
        return self.only_loss

    def roles_in(self, plan: "Plan") -> tuple[Role, ...]:
        """The roles of one job; all by default."""
        del plan
        return self.roles

    def rows(self, job: Job, dataset: VerticalDataset[SameRows]) -> VerticalDataset[SameRows]:
        """The rows that a job uses: by default those that all parties hold, or a ConfigError."""
        del job
        return dataset if dataset.own_rows is None else replace(dataset, own_rows=None)

    def networks(self, job: Job, facts: "Facts") -> dict[str, Network]:
        """The algorithm's own networks by party, in place of the job's local models.

        Raises:
            ConfigError: the job names local models that the algorithm does not support.
        """
        del job, facts
        return {}

    def held_out(self, plan: "Plan") -> Shown:
        """How the label party sees the others' held-out predictions when it scores."""
        return plan.exchange.held_out(plan.job, len(plan.facts.names))

    def new_rows(self, job: Job, exchange: Exchange, parties: int) -> Shown:
        """How the label party sees the others' predictions when new rows are scored.

        As in training, but never hidden: a score minus the label party's own part is the sum of the
        others' parts, and between two parties the other's.

        Raises:
            ConfigError: models of this algorithm cannot score rows that were not in training.
        """
        shown = exchange.held_out(job, parties)
        if shown == "hidden":
            return "summed" if parties > 2 else "singly"  # noqa: PLR2004
        return shown

    def together(self, plan: "Plan", outcomes: Mapping[str, PartyOutcome]) -> FloatArray:
        """Exact predictions of the held-out rows by all parties' models, shape (test rows, C)."""
        parts = {name: each.held_out for name, each in outcomes.items()}
        return outcomes[plan.facts.label_party].model.together(parts)

    @abstractmethod
    def check(self, plan: "Plan") -> None:
        """Check that a job can be run with this algorithm; a ConfigError says why it cannot."""

    @abstractmethod
    def visits(self, plan: "Plan") -> Visits:
        """What one visit of a batch releases of a sample, for the privacy account."""

    @abstractmethod
    def programs(self, plan: "Plan", places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """The programs of these parties, which return a `PartyOutcome`, and of any server."""
