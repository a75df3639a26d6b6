"""What an audit attacks: recorded runs of a job under one exchange, made when first asked for.

A recording is handed out by party: an attack of one party gets that party's view, its own columns,
its own θ⁰ and what all parties know, and nothing else of the run. Only scores look at the truth.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from securevfl.auditing.seats import Recording, scaled
from securevfl.auditing.trails import Trails
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.exchange import Exchange, Learns
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.keys import KeyMaker, SchemeKeys
from securevfl.runtime.views import Received
from securevfl.training import Environment, plan_for, train


@dataclass(eq=False)
class Subject:
    """One exchange on one data set under one seed.

    Attributes:
        job: the settings to audit; its exchange is the one attacked.
        dataset: the data.
        seed: of batches, starts and rotations.
        keys: makes homomorphic keys.
        with_curves: measure what only the first seed shows.
        keeps_ciphertexts: keep them in views; many rounds of them are gigabytes.
        progress: told of rounds done, and of how many, as a run goes on.
        scoring: when the job scores; runs are scored at their end alone where nobody asks.
    """

    job: Job
    dataset: VerticalDataset
    seed: int
    keys: KeyMaker = field(default_factory=SchemeKeys)
    with_curves: bool = True
    keeps_ciphertexts: bool = False
    progress: Callable[[int, int], None] = lambda done, rounds: None
    scoring: dict[str, object] = field(default_factory=dict, init=False)
    _recordings: dict[str, Recording] = field(default_factory=dict, init=False)
    _smaller: "dict[int, Subject]" = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.job.exchange.he_per_step:
            raise ConfigError("he_per_step is for benchmarks: audits look at one product a round")
        job, self.dataset = scaled(self.job, self.dataset)
        privacy = job.privacy
        has_budget = privacy.budget is not None or privacy.release_budget is not None
        if self.exchange.adds_noise and (has_budget or privacy.noise_multiplier is None):
            job = _without_budget(job, self.dataset)
        self.scoring = {"eval_every": job.job.eval_every, "target_auc": job.job.target_auc}
        self.job = job.with_settings(
            seed=self.seed, eval_every=0, target_auc=None, allow_label_leak=True
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
        """Of the job on these data."""
        return plan_for(self.job, self.dataset)

    @property
    def scheme(self) -> str:
        """Of the exchange under encryption; empty in clear."""
        return self.exchange.name if self.exchange.encrypts else ""

    @property
    def learns(self) -> Learns:
        """Who learns what in a round, as the exchange says."""
        return self.exchange.learns(self.job)

    def role(self, party: str) -> str:
        """What a party is: label or feature."""
        return "label" if party == self.dataset.label_party else "feature"

    @property
    def in_clear(self) -> bool:
        """Whether residuals travel without encryption."""
        return self.learns.residuals != "hidden"

    @property
    def releases(self) -> int:
        """T: how often the job releases a sample under `dp`."""
        account = self.plan.account
        return 0 if account is None else account.after(account.rounds).releases

    @property
    def is_slow(self) -> bool:
        """Whether a round takes so long that audits make fewer and smaller ones."""
        return self.exchange.is_slow

    @property
    def shows_predictions(self) -> bool:
        """Whether the label party sees each H_k by itself."""
        return self.learns.predictions == "singly"

    @property
    def feature_party(self) -> str:
        """The feature party with the most columns, the one that attacks labels or is attacked."""
        others = [table for table in self.dataset.parties if table.name != self.dataset.label_party]
        return max(others, key=lambda table: len(table.columns)).name

    def with_rows(self, rows: int) -> "Subject":
        """The same exchange on some training rows alone; itself where there are no more."""
        if len(self.dataset.train_labels) <= rows:
            return self
        if rows not in self._smaller:
            smaller = some_rows(self.dataset, rows)
            job = self.job.with_settings(**self.scoring)
            self._smaller[rows] = Subject(
                job,
                smaller,
                self.seed,
                self.keys,
                self.with_curves,
                progress=self._pass_on,
            )
        return self._smaller[rows]

    def _pass_on(self, done: int, rounds: int) -> None:
        """What a smaller subject is told, to whoever listens by then."""
        self.progress(done, rounds)

    def record(self, **changes: object) -> Recording:
        """The run of the job with other settings in `[job]`; the same run for the same settings."""
        job = self.job.with_settings(**changes)
        key = job.model_dump_json()
        if key not in self._recordings:
            self._recordings[key] = self._run(job, self.dataset, None)
        return self._recordings[key]

    def record_guarded(self, guard: Path, dataset: VerticalDataset, **changes: object) -> Recording:
        """A run that the label guard may refuse, beside the earlier ones that it remembers.

        Args:
            guard: the directory where it remembers them.
            dataset: the data of this run, as a variation of the subject's.
            changes: other settings in `[job]`.

        Raises:
            LabelLeakRefused: the guard did.
        """
        job = self.job.with_settings(**{**changes, "allow_label_leak": False})
        return self._run(job, dataset, guard)

    def _run(self, job: Job, dataset: VerticalDataset, guard: Path | None) -> Recording:
        trails, rounds = Trails(), job.job.rounds
        environment = Environment(
            keys=self.keys,
            record_views=True,
            guard_directory=guard,
            wrap_model=trails.follow,
            progress=lambda done: self.progress(done, rounds),
        )
        result = train(job, dataset, environment)
        if not self.keeps_ciphertexts:
            for view in result.views.values():
                view.entries = [each for each in view.entries if not _is_ciphertext(each)]
        return Recording(algorithm_of(job).rows(job, dataset), result, trails.past)


def _without_budget(job: Job, dataset: VerticalDataset) -> Job:
    """The job with the noise that its budget asks for: attacks run more rounds, or fewer."""
    account = plan_for(job, dataset).account
    assert account is not None  # noqa: S101
    gradients = account.gradients
    resolved = {
        "noise_multiplier": account.mechanism.noise_multiplier,
        "gradient_noise_multiplier": gradients.noise_multiplier if gradients else None,
        "budget": None,
        "release_budget": None,
    }
    return Job.of(**{**dict(job), "privacy": {**dict(job.privacy), **resolved}})


def _is_ciphertext(entry: object) -> bool:
    return isinstance(entry, Received) and entry.message.carries == "ciphertexts"
