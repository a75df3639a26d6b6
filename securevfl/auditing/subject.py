"""What an audit attacks: recorded runs of a job under one exchange, made on first use.

An attack by one party gets the messages that this party received and its `AdversaryView` (its own
columns, its own θ⁰ and what all parties know), and nothing else of the run. Only scores look at the
truth.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.attacks.adversary_view import AdversaryView
from securevfl.auditing.views import decisions_of, gradients_of, shown_beyond
from securevfl.data.labels import TargetScaling
from securevfl.data.scaling import Scaling, require_columns
from securevfl.data.tables import PartyTable, VerticalDataset, some_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.layers import DenseLayer
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.exchange import Exchange, Learns
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.runtime.views import Received, View
from securevfl.sparse import require_dense
from securevfl.training import Environment, TrainingResult, plan_for, train

PROBE_ROWS = 64  # of the round that checks what an exchange from elsewhere declares


@dataclass
class _RecordedLayer(DenseLayer):
    """A layer that records its W: the first one and that of each local step."""

    past: list[FloatArray] = field(default_factory=list)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "past" or (name == "weights" and "past" in vars(self)):
            self.past.append(self.weights)


@dataclass(frozen=True, eq=False)
class Recording:
    """A finished run with all views, and with the truth, which only scores look at."""

    dataset: VerticalDataset  # as it was trained on, scaled
    result: TrainingResult
    # By party, the weights of its dense layer: the first, and those after each local step
    trails: Mapping[str, list[FloatArray]] = field(default_factory=dict)

    def adversary(self, party: str) -> AdversaryView:
        """What one party holds besides the messages in its view."""
        part = local_part(self.plan, self.dataset, party)
        return AdversaryView(
            name=party,
            inputs=require_dense(part.inputs, "an audit"),
            model=part.model,
            labels=self.dataset.train_labels if party == self.dataset.label_party else None,
            row_offsets=part.row_offsets,
            plan=self.plan,
            batches=self.batches,
            columns=self.columns,
            decisions=self.decisions,
        )

    def view(self, party: str) -> View:
        """What one party received."""
        return self.result.views[party]

    def weights(self, party: str) -> list[FloatArray]:
        """A party's own weights at the start of each round, if its model is a dense layer."""
        steps = self.plan.rule.local_steps
        return self.trails[party][: self.result.rounds * steps : steps]

    @property
    def plan(self) -> Plan:
        """Of the job as it ran."""
        return self.result.plan

    @property
    def job(self) -> Job:
        """As it ran."""
        return self.plan.job

    @property
    def described(self) -> dict[str, object]:
        """Details of the run for a row on labels."""
        return {
            "rounds": self.result.rounds,
            "batch_size": self.job.job.batch_size,
            "label_guard_ratio": self.result.label_guard_ratio,
        }

    @property
    def labels(self) -> Labels:
        """The true labels, which only scores may look at."""
        return self.dataset.train_labels

    @cached_property
    def columns(self) -> int:
        """P of all parties together."""
        parts = (local_part(self.plan, self.dataset, each) for each in self.plan.facts.names)
        return sum(part.parameters or part.inputs.shape[1] for part in parts)

    @cached_property
    def decisions(self) -> list[Decision]:
        """The label party's early-stopping decisions, one per round."""
        label_party = self.plan.facts.label_party
        sent = next(
            decisions_of(view) for name, view in self.result.views.items() if name != label_party
        )
        return [sent.get(index, Decision(index)) for index in range(self.result.rounds)]

    @cached_property
    def batches(self) -> list[IntArray]:
        """The row numbers of each round."""
        return [self.plan.schedule.batch(index) for index in range(self.result.rounds)]


def local_part(
    plan: Plan,
    dataset: VerticalDataset,
    party: str,
    modules: Mapping[str, MakeModule] | None = None,
) -> LocalPart:
    """A party's inputs and its local model at θ⁰, drawn as in a job."""
    start = np.random.default_rng([plan.job.job.seed, plan.facts.names.index(party)])
    return LocalPart(plan, table_of(dataset, party), start, (modules or {}).get(party))


def table_of(dataset: VerticalDataset, party: str) -> PartyTable:
    """A party's columns."""
    for table in dataset.parties:
        if table.name == party:
            return table
    raise ConfigError(f"party {party!r}: not in {dataset.name}")


def widest_peer(dataset: VerticalDataset) -> PartyTable:
    """The feature party with the most columns."""
    others = [table for table in dataset.parties if table.name != dataset.label_party]
    return max(others, key=lambda table: len(table.columns))


def with_table(dataset: VerticalDataset, changed: PartyTable) -> VerticalDataset:
    """The data with other columns of one party."""
    parties = (changed if each.name == changed.name else each for each in dataset.parties)
    return replace(dataset, parties=tuple(parties))


def with_columns(dataset: VerticalDataset, party: str, chosen: Sequence[int]) -> VerticalDataset:
    """The data with only some of a party's columns."""
    table, places = table_of(dataset, party), list(chosen)
    changed = replace(
        table,
        columns=tuple(table.columns[place] for place in places),
        train=table.train[:, places],
        test=table.test[:, places],
    )
    return with_table(dataset, changed)


def with_section(job: Job, section: str, **changes: object) -> Job:
    """The job with other settings in a section."""
    return Job.of(**{**dict(job), section: {**dict(getattr(job, section)), **changes}})


def scaled(job: Job, dataset: VerticalDataset) -> tuple[Job, VerticalDataset]:
    """The same training on features and real targets that are scaled already.

    Scaling within the job would undo a rotation.
    """
    if is_real(dataset.train_labels):
        train = dataset.train_labels.astype(np.float64)
        targets = TargetScaling.fit(train, centered=job.job.intercept)
        test = targets.apply(dataset.test_labels)
        dataset = replace(dataset, train_labels=targets.apply(train), test_labels=test)
    wanted, bounds = job.job.standardize, job.job.bounds
    require_columns(bounds, dataset)
    standardize = dataset.standardize if wanted is None else wanted
    for table in dataset.parties:
        if any(table.signs):
            raise ConfigError(
                f"party {table.name!r}: an audit's attacks know no `monotone` columns"
            )
        scaling = Scaling.of(table, table.train, bounds, standardize=standardize)
        train, test = scaling.apply(table.train), scaling.apply(table.test)
        dataset = with_table(dataset, replace(table, train=train, test=test))
    # Nothing is left to encode, either.
    parties = tuple(party.model_copy(update={"preprocess": None}) for party in job.party)
    job = job.model_copy(update={"preprocess": None, "party": parties})
    return job.with_settings(standardize=False, bounds={}), dataset


@dataclass(eq=False)
class Subject:
    """One exchange on one data set under one seed."""

    job: Job
    dataset: VerticalDataset
    seed: int  # of batches, starts and rotations
    keys: KeyMaker = field(default_factory=KeyMaker)
    with_curves: bool = True  # whether to measure curves, as the first seed does
    keeps_ciphertexts: bool = False  # in views; ciphertexts of many rounds take gigabytes
    progress: Callable[[int, int], None] = lambda done, rounds: None  # called during a run
    # When the job scores; recorded runs are scored only at their end unless asked otherwise
    scoring: dict[str, object] = field(default_factory=dict, init=False)
    # What was fitted to a party's rows, by party, before `scaled` did so once for all
    fitted: dict[str, str] = field(default_factory=dict, init=False)
    bounded: frozenset[str] = field(default=frozenset(), init=False)  # columns with bounds, then
    _recordings: dict[str, Recording] = field(default_factory=dict, init=False)
    _smaller: "dict[int, Subject]" = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.job.exchange.he_per_step:
            raise ConfigError("he_per_step is for benchmarks: leave it unset for an audit")
        self.fitted = Facts.of(self.dataset, self.job).fitted(self.job, self.algorithm)
        self.bounded = frozenset(self.job.job.bounds)
        job, self.dataset = scaled(self.job, self.dataset)
        privacy = job.privacy
        has_budget = privacy.budget is not None or privacy.release_budget is not None
        if self.exchange.adds_noise and (has_budget or privacy.noise_multiplier is None):
            job = _without_budget(job, self.dataset)
        self.scoring = {"eval_every": job.job.eval_every, "target_auc": job.job.target_auc}
        shown = self.exchange.held_out(job, len(self.dataset.parties))
        unscored = shown == "hidden" and not self.algorithm.own_components
        self.job = job.with_settings(
            seed=self.seed,
            eval_every="never" if unscored else 0,
            target_auc=None,
            allow_label_leak=True,
        )

    @property
    def algorithm(self) -> Algorithm:
        """The description of the algorithm."""
        return algorithm_of(self.job)

    @property
    def exchange(self) -> Exchange:
        """The description of the exchange under attack."""
        return exchange_of(self.job)

    @cached_property
    def plan(self) -> Plan:
        """The plan of the job on these data."""
        return plan_for(self.job, self.dataset)

    @property
    def scheme(self) -> str:
        """The name of an exchange that encrypts; empty in clear."""
        return self.exchange.name if self.exchange.encrypts else ""

    @property
    def learns(self) -> Learns:
        """Who learns what in a round, as the exchange declares."""
        return self.exchange.learns(self.job)

    @property
    def in_clear(self) -> bool:
        """Whether residuals travel without encryption."""
        return self.learns.residuals != "hidden"

    @property
    def is_slow(self) -> bool:
        """Whether rounds are so slow that audits run fewer and smaller ones."""
        return self.exchange.is_slow

    @property
    def feature_party(self) -> str:
        """The feature party with the most columns: the one that attacks labels, or is attacked."""
        return widest_peer(self.dataset).name

    def with_rows(self, rows: int) -> "Subject":
        """The same exchange on at most so many training rows; itself if there are no more."""
        if len(self.dataset.train_labels) <= rows:
            return self
        if rows not in self._smaller:
            smaller = some_rows(self.dataset, rows)
            job = self.job.with_settings(**self.scoring)
            self._smaller[rows] = Subject(
                job, smaller, self.seed, self.keys, self.with_curves, progress=self._pass_on
            )
        return self._smaller[rows]

    @cached_property
    def contradiction(self) -> str:
        """What a round shows although the exchange denies it; empty if nothing.

        Only exchanges and algorithms from elsewhere are checked: tests cover those of this package.
        """
        described = (self.exchange, self.algorithm)
        if all(type(each).__module__.startswith("securevfl.") for each in described):
            return ""
        label, learns = self.dataset.label_party, self.learns
        # An exchange that hides held-out rows and has no sums refuses to score.
        settings = {"rounds": 1, "batch_size": "full", "eval_every": "never"}
        views = self.with_rows(PROBE_ROWS).record(**settings).result.views
        found = [shown_beyond(views[label], learns.predictions)]
        if not self.in_clear:
            others = [view for name, view in views.items() if name != label]
            found += [shown_beyond(view, "hidden") for view in others]
            if not learns.gradients and any(map(gradients_of, others)):
                found.append("gradients that a feature party learned")
        beyond = next(filter(None, found), "")
        name = self.exchange.name
        return beyond and f"a round shows {beyond}, which {name!r} says no party sees"

    def _pass_on(self, done: int, rounds: int) -> None:  # to whatever `progress` is by then
        self.progress(done, rounds)

    def record(self, **changes: object) -> Recording:
        """Run the job with other settings in `[job]`, once for the same settings."""
        job = self.job.with_settings(**changes)
        key = job.model_dump_json()
        if key not in self._recordings:
            self._recordings[key] = self._run(job, self.dataset, None)
        return self._recordings[key]

    def record_guarded(self, guard: Path, dataset: VerticalDataset, **changes: object) -> Recording:
        """Run a variation under guards that remember runs: the label guard unless changed."""
        alone = {"allow_label_leak": False, "allow_feature_leak": True}
        job = self.job.with_settings(**{**alone, **changes})
        return self._run(job, dataset, guard)

    @contextmanager
    def jobs(self, *, guarded: bool) -> Iterator[Callable[..., Recording]]:
        """Runs variations, given data and settings: under one guard's memory, or in clear."""
        if guarded:
            with TemporaryDirectory() as guard:
                yield partial(self.record_guarded, Path(guard))
            return
        clear = self.job.without_protection
        yield lambda data, **changes: Subject(clear, data, self.seed).record(**changes)

    def _run(self, job: Job, dataset: VerticalDataset, guard: Path | None) -> Recording:
        trails: dict[str, list[FloatArray]] = {}
        rounds = job.job.rounds

        def recorded(party: str, model: LocalModel) -> LocalModel:
            if not isinstance(model, DenseLayer):
                return model
            layer = _RecordedLayer(**vars(model))
            trails[party] = layer.past
            return layer

        environment = Environment(
            keys=self.keys,
            record_views=True,
            guard_directory=guard,
            wrap_model=recorded,
            progress=lambda done: self.progress(done, rounds),
        )
        result = train(job, dataset, environment)
        if not self.keeps_ciphertexts:
            for view in result.views.values():
                view.entries = [
                    entry
                    for entry in view.entries
                    if not (isinstance(entry, Received) and entry.message.carries == "ciphertexts")
                ]
        return Recording(algorithm_of(job).rows(job, dataset), result, trails)


def _without_budget(job: Job, dataset: VerticalDataset) -> Job:
    """The job with the noise that its budget asks for, as attacks run other numbers of rounds."""
    account = plan_for(job, dataset).account
    assert account is not None  # noqa: S101
    gradients = account.gradients
    return with_section(
        job,
        "privacy",
        noise_multiplier=account.mechanism.noise_multiplier,
        gradient_noise_multiplier=gradients.noise_multiplier if gradients else None,
        budget=None,
        release_budget=None,
    )
