"""A job resolved: everything that follows from it and from what all know of the data, once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import Network
from securevfl.models.losses import Loss
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Exchange, Learns
from securevfl.protocols.session.privacy_account import PrivacyAccount
from securevfl.protocols.session.scoring import Timetable
from securevfl.protocols.signals import LocalRule
from securevfl.runtime.line import Line


@dataclass(frozen=True)
class Facts:
    """What all parties know of the data before they start.

    Attributes:
        names: of all parties, in the job's order.
        label_party: the one that holds the labels.
        rows: N.
        test_rows: of the held-out rows; 0 for none.
        classes: number of classes.
        fingerprint: of the ids of the training rows; it fixes the batches.
        standardize: whether features are standardized where the job does not say, each party on
            its own.
    """

    names: tuple[str, ...]
    label_party: str
    rows: int
    test_rows: int
    classes: int
    fingerprint: str
    standardize: bool = True

    @classmethod
    def of(cls, dataset: VerticalDataset) -> "Facts":
        """Those of a data set."""
        return cls(
            names=tuple(table.name for table in dataset.parties),
            label_party=dataset.label_party,
            rows=len(dataset.train_labels),
            test_rows=len(dataset.test_labels),
            classes=dataset.classes,
            fingerprint=dataset.fingerprint,
            standardize=dataset.standardize,
        )


@dataclass(frozen=True)
class StepSize:
    """η at round i: η0, η0/√(i + 1), and either divided by √K."""

    learning_rate: float
    decays: bool = False
    parties: int = 1

    def at(self, round_index: int) -> float:
        """η of a round, counted from 0."""
        eta = self.learning_rate / sqrt(self.parties)
        return eta / sqrt(round_index + 1) if self.decays else eta


@dataclass(frozen=True, eq=False)
class Plan:
    """A resolved job: what the parties' programs, the audit and the command line work from.

    Attributes:
        job: the settings.
        facts: of the data.
        algorithm: its description.
        exchange: its description.
        loss: f.
        line: between the parties.
        schedule: which rows every round takes.
        networks: by party, what it trains in place of a linear model.
    """

    job: Job
    facts: Facts
    algorithm: Algorithm
    exchange: Exchange
    loss: Loss
    line: Line
    schedule: BatchSchedule
    networks: Mapping[str, Network]

    @property
    def rounds(self) -> int:
        """R, at most."""
        return self.job.job.rounds

    @property
    def local_steps(self) -> int:
        """Q in force."""
        return self.algorithm.local_steps(self.job)

    @property
    def most_batch_rows(self) -> int:
        """The largest S of a batch: the remainder of a partition is spread."""
        return -(-self.facts.rows // self.schedule.batches)

    @property
    def learns(self) -> Learns:
        """Who learns what in a round."""
        return self.exchange.learns(self.job)

    @cached_property
    def hash(self) -> bytes:
        """The job's."""
        return self.job.hash()

    @cached_property
    def step_size(self) -> StepSize:
        """η, round by round."""
        settings = self.job.job
        schedule = settings.schedule or self.algorithm.default_schedule
        parties = len(self.facts.names) if settings.divide_by_sqrt_parties else 1
        return StepSize(settings.learning_rate, schedule == "inverse-sqrt", parties)

    @cached_property
    def rule(self) -> LocalRule:
        """What a party does between two exchanges."""
        settings = self.job.job
        return LocalRule(
            self.loss,
            local_steps=self.local_steps,
            l2=settings.l2,
            proximal=settings.proximal,
            frozen=settings.local_rule == "frozen",
            gauss_newton=settings.local_rule == "gauss-newton",
        )

    @cached_property
    def timetable(self) -> Timetable:
        """When held-out rows are scored."""
        every = self.job.job.eval_every if self.algorithm.scores_between else 0
        return Timetable(self.rounds, every, self.facts.test_rows)

    @cached_property
    def account(self) -> PrivacyAccount | None:
        """What the job's noise promises; None where its exchange adds none.

        Raises:
            ConfigError: `[privacy]` in a job whose exchange would ignore it.
        """
        job = self.job
        if not self.exchange.adds_noise:
            if job.privacy != PrivacySettings():
                raise ConfigError(
                    f"[privacy] is for exchanges that add noise, not {self.exchange.name!r}"
                )
            return None
        return PrivacyAccount(
            job.privacy,
            self.algorithm.visits(self),
            self.rounds,
            self.schedule.batch,
            self.schedule.rows,
            self.timetable.times,
            self.loss.outputs,
            labels_are_known=self.algorithm.labels_everywhere,
        )
