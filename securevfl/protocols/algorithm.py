"""What an algorithm is: one description, from which everything that asks about it is answered."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from securevfl.job import Section
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.workplace import Workplace
from securevfl.runtime.simulation import Program

if TYPE_CHECKING:
    from securevfl.protocols.plan import Plan

Role = tuple[str, str, str]
"""Who, what it learns, what it does not: of those that no exchange describes."""


class Algorithm(ABC):
    """The description of an algorithm.

    Attributes:
        name: in `[job] algorithm`.
        settings: the section of a job file under the algorithm's own name, if it has one.
        in_turns: whether parties take turns within a round.
        one_step: Q = 1 whatever the job says.
        repeats_products: whether its local steps can repeat homomorphic work (`he_per_step`).
        labels_everywhere: whether all parties hold the labels.
        scores_between: whether held-out rows are scored as training goes on.
        default_schedule: of η, where the job does not say.
        roles: who learns what beside what the exchange says.
    """

    name: str
    settings: ClassVar[type[Section] | None] = None
    in_turns: bool = False
    one_step: bool = False
    repeats_products: ClassVar[bool] = False
    labels_everywhere: ClassVar[bool] = False
    scores_between: ClassVar[bool] = True
    default_schedule: ClassVar[Literal["constant", "inverse-sqrt"]] = "constant"
    roles: ClassVar[tuple[Role, ...]] = ()

    @abstractmethod
    def check(self, plan: "Plan") -> None:
        """Check that a job can be run with this algorithm.

        Raises:
            ConfigError: it cannot; the message says why.
        """

    @abstractmethod
    def visits(self, plan: "Plan") -> Visits:
        """What one visit of a batch releases of a sample, for privacy accounts."""

    @abstractmethod
    def programs(self, plan: "Plan", places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """The programs of the parties at these places, and of whoever takes part without data.

        A party's program returns a `PartyOutcome`.
        """
