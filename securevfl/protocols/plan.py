"""A resolved job: everything that follows from its settings and the public facts of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job, PrivacySettings
from securevfl.models.local_model import LocalModel, Network
from securevfl.models.losses import Logistic, Loss, QuadraticLoss
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Exchange, Learns, TrainsOnShares
from securevfl.protocols.local_steps import LocalRule, LocalSteps, Pace
from securevfl.protocols.session.privacy_account import PrivacyAccount
from securevfl.protocols.session.scoring import Timetable
from securevfl.runtime.line import Line
from securevfl.shown import Shown
from securevfl.sparse import Matrix

REPRESENTATION = 64
# docs/decisions/0022-row-offsets.md
ROW_OFFSETS = 0.5
# A small secret θ⁰, which training need not unlearn.
BESIDE_OFFSETS = 0.05
# docs/decisions/0054-checks-on-replies.md
DEFAULT_CHECKS = 8


@dataclass(frozen=True)
class Facts:
    """What all parties know of the data before they start.

    Attributes:
        names: of all parties, in the job's order.
        label_party: the party with the labels.
        rows: N.
        test_rows: number of held-out rows.
        classes: number of classes; 0 for real targets.
        row_digests: identify the training rows, and fix the batches.
        standardize: whether each party standardizes its features by default.
        unbounded: by party, the number of its columns to which the job gives no bounds.
        thresholds: by party, how many thresholds each of its raw columns has, where one place has
            all tables.
    """

    names: tuple[str, ...]
    label_party: str
    rows: int
    test_rows: int
    classes: int
    row_digests: NDArray[np.uint64] = field(compare=False)
    standardize: bool = True
    unbounded: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def real_targets(self) -> bool:
        """Whether the job is a regression."""
        return self.classes == 0

    @classmethod
    def of(cls, dataset: VerticalDataset[Matrix], job: Job) -> "Facts":
        """The facts of a data set under a job."""
        return cls(
            names=tuple(table.name for table in dataset.parties),
            label_party=dataset.label_party,
            rows=len(dataset.train_labels),
            test_rows=len(dataset.test_labels),
            classes=dataset.classes,
            row_digests=dataset.row_digests,
            standardize=dataset.standardize,
            unbounded={
                table.name: sum(column not in job.job.bounds for column in table.columns)
                for table in dataset.parties
            },
            thresholds={
                table.name: [len(part.edges) for part in table.recipe.parts]
                for table in dataset.parties
                if table.recipe is not None
            },
        )

    def fewer_bins(self, columns: Mapping[str, int], most: int) -> str:
        """The bins with which parties of so many columns would have `most`, to end a clause."""
        counts = [count for party in columns for count in self.thresholds.get(party, ())]
        for bins in range(max(counts, default=0), 0, -1):
            fewer = sum(max(count - bins + 1, 0) for count in counts)
            if sum(columns.values()) - fewer <= most:
                return f", as with bins = {bins}" if bins > 1 else ", as without bins"
        return ""

    def fitted(self, job: Job, algorithm: Algorithm) -> dict[str, str]:
        """By party that adds noise, what it fits to its own rows without any; empty if nothing."""
        found, wanted = {}, job.job.standardize
        own = {party.name for party in job.party if party.preprocess}
        for name in self.names:
            if name == self.label_party and not algorithm.labels_everywhere:
                continue
            found[name], columns = "", self.unbounded.get(name)
            if (self.standardize if wanted is None else wanted) and columns != 0:
                which = "columns" if columns is None else f"{columns} of its columns"
                found[name] = f"party {name!r} standardizes {which} by its own rows, without bounds"
            elif job.preprocess or name in own:
                found[name] = f"preprocess is fitted to the rows of party {name!r}"
        return found


@dataclass(frozen=True)
class StepSize:
    """η at round i: η0, η0/√(i + 1), and either divided by √K; η0 = 1 where it is derived."""

    learning_rate: float
    decays: bool = False
    parties: int = 1

    def at(self, round_index: int) -> float:
        """η of a round, counted from 0."""
        eta = self.learning_rate / sqrt(self.parties)
        return eta / sqrt(round_index + 1) if self.decays else eta


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """A resolved job, on which programs, audit and command line work.

    Attributes:
        line: the network between the parties.
        schedule: the rows of every round.
        networks: by party, where it does not train a linear model.
    """

    job: Job
    facts: Facts
    algorithm: Algorithm
    exchange: Exchange
    loss: Loss
    line: Line
    schedule: BatchSchedule
    networks: Mapping[str, Network]

    @override
    def shown(self) -> dict[str, object]:
        return {
            "algorithm": self.algorithm.name,
            "exchange": self.exchange.name,
            "loss": self.loss.name,
            "parties": ", ".join(self.facts.names),
        }

    def of_a_program(self, others: int = 0) -> "Plan":
        """The same plan for one program, which computes the order of rows by itself.

        It follows so many others, each of which may be in another epoch.
        """
        return replace(self, schedule=replace(self.schedule, kept_epochs=1 + others))

    @property
    def rounds(self) -> int:
        """R, at most."""
        return self.job.job.rounds

    @property
    def local_steps(self) -> int | Literal["exact"]:
        """Q in force."""
        steps = self.job.job.local_steps
        assert steps is not None  # noqa: S101
        return steps

    @property
    def products(self) -> int:
        """Encrypted products per signal of a batch: Q under `he_per_step`, else 1."""
        return self.rule.local_steps if self.job.exchange.he_per_step else 1

    @property
    def batch_size(self) -> int | Literal["full"]:
        """S in force."""
        size = self.job.job.batch_size
        assert size is not None  # noqa: S101
        return size

    @property
    def l2(self) -> float:
        """λ in force."""
        return self.job.job.l2 or 0.0

    @property
    def representation(self) -> int | None:
        """W with a head at the label party; None where predictions are summed."""
        settings = self.job.job
        return None if settings.head == "sum" else settings.representation or REPRESENTATION

    @property
    def given(self) -> int:
        """Numbers that a feature party sends per row: w or C."""
        return self.representation or self.loss.outputs

    @property
    def checks(self) -> int:
        """κ, under `blind`."""
        checks = self.job.exchange.checks
        return DEFAULT_CHECKS if checks is None else checks

    @property
    def fits_shares(self) -> bool:
        """Whether `scheme = "blind"` takes the algorithm, the models and the loss."""
        fits = isinstance(self.loss, Logistic | QuadraticLoss) and not self.job.job.l1
        linear = not self.networks and self.representation is None
        return TrainsOnShares in self.algorithm.needs and fits and linear

    @property
    def derives_steps(self) -> bool:
        """Whether every party's step size follows from its own curvature."""
        return self.job.job.learning_rate == "auto"

    @property
    def takes_plain_steps(self) -> bool:
        """Whether parties derive plain gradient steps of linear models, each from its own columns.

        They do with an algorithm whose η falls, and with Q = 1 unless noise is added or training
        runs on shares, whose step sizes are public.
        """
        other = self.exchange.adds_noise or self.exchange.shares_parameters
        plain = self._falls or (self.local_steps == 1 and not other)
        return plain and self.derives_steps and not self.networks

    @property
    def _falls(self) -> bool:
        return self.algorithm.default_schedule == "inverse-sqrt"

    def renews(self, party: str) -> bool:
        """Whether every gradient of a batch shows a party something new of the same labels.

        A network's Jacobian moves with its weights, and so does a hinge's weight of a label, or
        that of a class, which multiplies σ(H) as well.
        """
        return party in self.networks or self.loss.weighs_labels

    @property
    def full_batches(self) -> bool:
        """Whether every round takes all rows."""
        return self.schedule.batches == 1

    @cached_property
    def stops_early(self) -> bool:
        """Whether the label party announces a decision on early stopping every round.

        Not where nobody sees a loss; where noise on residuals protects labels, which decisions
        would bypass; nor with L1, which may raise the loss that decisions follow.
        """
        if self.exchange.shares_parameters:
            return False
        follows_loss = self.algorithm.scores_between and not self.job.job.l1
        return self.derives_steps and follows_loss and self.learns.residuals != "noisy"

    @property
    def never_resumes(self) -> str | None:
        """Why a killed session of this job cannot resume; None where it can."""
        if not self.algorithm.keeps_state:
            return f"algorithm = {self.algorithm.name!r} keeps no state to resume from"
        if self.account is not None:
            return (
                f"exchange {self.exchange.name!r}: a resumed session would release again what its "
                "account counts once"
            )
        return None

    @property
    def most_batch_rows(self) -> int:
        """The largest S of a batch."""
        return self.schedule.most_rows

    @cached_property
    def learns(self) -> Learns:
        """Who learns what in a round, see `exchange.Learns`."""
        return self.exchange.learns(self.job)

    @cached_property
    def hash(self) -> bytes:
        """The job's hash."""
        return self.job.hash()

    @cached_property
    def step_size(self) -> StepSize:
        """η, round by round."""
        settings = self.job.job
        rate = settings.learning_rate
        # A derived η accounts for the noise of batches: it needs a schedule for other noise only.
        counted = self.takes_plain_steps and not self.exchange.adds_noise
        default = "constant" if counted else self.algorithm.default_schedule
        schedule = settings.schedule or default
        parties = len(self.facts.names) if settings.divide_by_sqrt_parties else 1
        return StepSize(1.0 if rate == "auto" else rate, schedule == "inverse-sqrt", parties)

    @cached_property
    def rule(self) -> LocalRule:
        """What a party does between two exchanges."""
        settings, steps = self.job.job, self.local_steps
        return LocalRule(
            self.loss,
            local_steps=1 if steps == "exact" else steps,
            l2=self.l2,
            l1=settings.l1,
            proximal=settings.proximal,
            frozen=settings.local_rule == "frozen",
            gauss_newton=settings.local_rule == "gauss-newton",
            own_loss=settings.local_rule == "exact",
            exact=steps == "exact",
            accelerated=settings.acceleration == "nesterov",
        )

    @cached_property
    def row_offsets(self) -> float:
        """Standard deviation of the label party's offsets to H of training rows; 0 for no offsets.

        A random θ⁰ would hide d as well, but gradient steps unlearn it slowly where columns are
        correlated. Exact steps unlearn θ⁰ at once, and networks start at random anyway. Under a
        head or with L1 residuals are never encrypted, so there is nothing to hide.
        """
        settings, algorithm = self.job.job, self.algorithm
        unlearned = settings.start == "zero" or self.rule.exact or self.networks
        in_clear = settings.head != "sum" or settings.l1 or algorithm.labels_everywhere
        needless = in_clear or self.exchange.shares_parameters
        if unlearned or needless or not algorithm.gradient_steps:
            return 0.0
        return ROW_OFFSETS

    def start_deviation(self, party: str) -> float:
        """Standard deviation of H⁰ of a linear model that starts at random.

        It is small with row offsets, which hide d. Otherwise it is 1, but ½/√(K − 1) at feature
        parties with exact steps: the label party's start hides d from them.
        """
        parties = len(self.facts.names)
        if self.row_offsets:
            return BESIDE_OFFSETS / sqrt(parties)
        if not self.rule.exact or party == self.facts.label_party:
            return 1.0
        return 0.5 / sqrt(parties - 1)

    def steps(self, model: LocalModel, inputs: Matrix, columns: int) -> LocalSteps:
        """A party's steps, from its model at θ⁰ and X of all its rows, shape (N, P).

        Parties that move together majorize with γ = K; as losses bend less than their bound, and
        parties' columns differ, a job with early stopping starts at √K/2 and backtracks from there.
        In turns at 1/√2: at half of 1, which is enough there, steps on squared losses mirror them.
        Plain steps from batches start at K: windows of losses notice too late what is too far.
        `columns` are P of all parties together.
        """
        together = 1 if self.algorithm.alternating else len(self.facts.names)
        backtracks = self.stops_early and self.learns.predictions != "hidden"
        late = self.takes_plain_steps and not self.full_batches
        as_root = self._falls and self.takes_plain_steps
        majorizes = self.rule.exact and self.full_batches and not self.exchange.adds_noise
        pace = Pace(
            scale=sqrt(max(together, 2)) / 2 if backtracks and not late else together,
            most=together if majorizes and self.job.job.class_weight is None else inf,
            columns=columns if self.derives_steps and not self.networks else 0,
            rows=self.facts.rows,
            step_size=self.step_size.at,
            derived=self.derives_steps,
            growth=0.0 if self.step_size.decays else 0.5 if as_root else 1.0,
            plain=self.takes_plain_steps,
        )
        # Steps with a product of their own are exchanges of their own.
        rule = replace(self.rule, local_steps=self.rule.local_steps // self.products)
        return LocalSteps(model, inputs, rule, pace)

    @cached_property
    def timetable(self) -> Timetable:
        """The rounds after which held-out rows are scored."""
        every = self.job.job.eval_every or 0
        if every == "never":
            return Timetable(self.rounds, 0, 0)
        between = self.algorithm.scores_between
        return Timetable(self.rounds, every if between else 0, self.facts.test_rows)

    @cached_property
    def account(self) -> PrivacyAccount | None:
        """The privacy account, None without noise; a ConfigError for a useless `[privacy]`."""
        job = self.job
        if not self.exchange.adds_noise:
            if job.privacy != PrivacySettings():
                raise ConfigError(
                    f"[privacy] is for exchanges that add noise, not {self.exchange.name!r}"
                )
            return None
        visits = self.algorithm.visits(self)
        return PrivacyAccount(
            job.privacy,
            visits,
            self.rounds,
            self.schedule.batch,
            self.schedule.rows,
            self.timetable.times,
            self.loss.outputs,
            given=visits.outputs or self.given,
            labels_are_known=self.algorithm.labels_everywhere,
            label_change=self.loss.label_change,
            fitted=self.facts.fitted(job, self.algorithm),
        )
