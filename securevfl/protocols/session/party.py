"""Who takes part in a job, as one party sees it, and which step of the job is on."""

from dataclasses import dataclass

from securevfl.models.losses import Loss
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs


@dataclass(frozen=True)
class Party:
    """Who takes part, as seen from one party.

    Attributes:
        channel: the way to the others; `channel.name` is this party.
        costs: this party's ledger.
        names: all parties, in the job's order.
        label_party: the one that holds the labels.
        loss: f, known to all.
    """

    channel: Channel
    costs: Costs
    names: tuple[str, ...]
    label_party: str
    loss: Loss

    @property
    def name(self) -> str:
        """This party."""
        return self.channel.name

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party."""
        return self.name == self.label_party

    @property
    def others(self) -> tuple[str, ...]:
        """All other parties."""
        return tuple(name for name in self.names if name != self.name)

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """All parties without labels."""
        return tuple(name for name in self.names if name != self.label_party)


@dataclass(frozen=True)
class Step:
    """One exchange: in FedBCD-p there is one a round, in FedBCD-s one a party and round.

    Where every local step repeats homomorphic work (`he_per_step`), each is an exchange.

    Attributes:
        index: counts the exchanges of a job.
        receivers: who gets a signal.
        fresh: whose predictions of this batch the label party has not seen yet; nobody's where the
            step repeats the product of the one before, on the same ciphertexts.
    """

    index: int
    receivers: tuple[str, ...]
    fresh: tuple[str, ...]
