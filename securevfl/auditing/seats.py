"""Who has what of a run: what an attack may be given, and what the auditor alone holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.auditing.views import courses_of
from securevfl.data.labels import TargetScaling
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.protocols.local_steps import Course
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.runtime.views import View
from securevfl.sparse import require_dense
from securevfl.training import TrainingResult


@dataclass(frozen=True, eq=False)
class Seat:
    """What a party has in hand when it turns against the others: all that an attack may use.

    Attributes:
        name: the party.
        view: what it received.
        inputs: its X as it trains on it, shape (N, P).
        model: its local model at θ⁰.
        labels: shape (N,), at the label party only.
        row_offsets: what it adds to H, shape (N, C), at the label party only.
    """

    name: str
    view: View
    inputs: FloatArray
    model: LocalModel
    labels: Labels | None
    row_offsets: FloatArray | None


@dataclass(frozen=True, eq=False)
class Recording:
    """A finished run with all views, and with the truth, which only scores look at.

    Attributes:
        dataset: as it was trained on, scaled.
        result: the run's.
        trails: by party, the weights of its layer of units, see `Trails`.
    """

    dataset: VerticalDataset
    result: TrainingResult
    trails: Mapping[str, list[FloatArray]] = field(default_factory=dict)

    def seat(self, party: str) -> Seat:
        """What one party has in hand."""
        part = local_part(self.plan, self.dataset, party)
        labels = self.dataset.train_labels if party == self.dataset.label_party else None
        view = self.result.views[party]
        return Seat(
            party,
            view,
            require_dense(part.inputs, "an audit"),
            part.model,
            labels,
            part.row_offsets,
        )

    def weights(self, party: str) -> list[FloatArray]:
        """A party's own weights as every round begins, where its model is a layer of units."""
        steps = self.plan.rule.local_steps
        return self.trails[party][: self.result.rounds * steps : steps]

    @property
    def plan(self) -> Plan:
        """Of the job as it ran: public."""
        return self.result.plan

    @property
    def job(self) -> Job:
        """As it ran."""
        return self.plan.job

    @property
    def columns(self) -> int:
        """P of all parties together: told before the first round."""
        parts = (local_part(self.plan, self.dataset, each) for each in self.plan.facts.names)
        return sum(part.parameters or part.inputs.shape[1] for part in parts)

    @property
    def courses(self) -> list[Course]:
        """What the label party told all others at every round."""
        label_party = self.plan.facts.label_party
        told = next(
            courses_of(view) for name, view in self.result.views.items() if name != label_party
        )
        return [told.get(index, Course(index)) for index in range(self.result.rounds)]

    @property
    def batches(self) -> list[IntArray]:
        """The row numbers of every round: public."""
        return [self.plan.schedule.batch(index) for index in range(self.result.rounds)]


def local_part(
    plan: Plan,
    dataset: VerticalDataset,
    party: str,
    modules: Mapping[str, MakeModule] | None = None,
) -> LocalPart:
    """A party's inputs and its local model at θ⁰, as it draws it in a job."""
    start = np.random.default_rng([plan.job.job.seed, plan.facts.names.index(party)])
    return LocalPart(plan, table_of(dataset, party), start, (modules or {}).get(party))


def table_of(dataset: VerticalDataset, party: str) -> PartyTable:
    """A party's columns.

    Raises:
        ConfigError: no such party.
    """
    for table in dataset.parties:
        if table.name == party:
            return table
    raise ConfigError(f"party {party!r}: not in {dataset.name}")


def with_table(dataset: VerticalDataset, changed: PartyTable) -> VerticalDataset:
    """The data with other columns of one party."""
    parties = (changed if each.name == changed.name else each for each in dataset.parties)
    return replace(dataset, parties=tuple(parties))


def scaled(job: Job, dataset: VerticalDataset) -> tuple[Job, VerticalDataset]:
    """The same training on features that are scaled already: scaling would undo a rotation.

    So are real targets, which the label party scales by itself.
    """
    if is_real(dataset.train_labels):
        train = dataset.train_labels.astype(np.float64)
        targets = TargetScaling.fit(train, centered=job.job.intercept)
        test = targets.apply(dataset.test_labels)
        dataset = replace(dataset, train_labels=targets.apply(train), test_labels=test)
    wanted = job.job.standardize
    if dataset.standardize if wanted is None else wanted:
        for table in dataset.parties:
            scaling = Scaling.fit(table.train)
            train, test = scaling.apply(table.train), scaling.apply(table.test)
            dataset = with_table(dataset, replace(table, train=train, test=test))
    return job.with_settings(standardize=False), dataset
