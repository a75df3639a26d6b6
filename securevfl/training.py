"""A job in one process: every party as a program of its own, over the simulated network.

A program gets its party's columns, and the labels only at the label party or where the algorithm
gives them to all; nothing here reads two parties' data together.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.data.tables import PartyTable, VerticalDataset, as_classes
from securevfl.data.tables import check as check_dataset
from securevfl.job import Job
from securevfl.models.calibration import Calibration, calibration
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.models.probabilities import has_probabilities, probabilities
from securevfl.models.scores import auc_error, r2_error
from securevfl.models.storage import SavedModel, save_model
from securevfl.protocols.catalogue import algorithm_of, resolve
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.keys import KeyMaker, SchemeKeys
from securevfl.protocols.session.outcome import Ending, PartyOutcome
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.protocols.session.privacy_account import Promise
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.session.state import SessionState
from securevfl.protocols.session.workplace import PartyData, Workplace
from securevfl.runtime.costs import Costs, JobCosts, Stopwatch, job_costs
from securevfl.runtime.pace import Pace
from securevfl.runtime.simulation import Tamper, simulate
from securevfl.runtime.views import View
from securevfl.shown import Shown
from securevfl.sparse import Matrix
from securevfl.verdict import Alone, Warned, alone, status_of, warned


@dataclass(frozen=True)
class Environment:
    """What a run may use besides its job and data; tests and benchmarks change it.

    Attributes:
        keys: makes homomorphic keys.
        stopwatch: how computation is timed.
        record_views: keep every party's view.
        tamper: fault injection into the network.
        guard_directory: where earlier jobs' leakage is remembered and this one's refused or
            noted; None only reports the ratio, as benchmarks do.
        checkpoints: where parties write their models as training goes on, and what it takes to go
            on from there (`session.checkpoints`); None writes none.
        progress: called with rounds done.
        modules: by party what makes its network, where its model is custom: a function of the
            numbers of features and outputs.
        wrap_model: gives what a party trains in place of its local model at θ⁰, from its name
            and that model; None trains the model itself.
        paces: by party, how much longer than measured it computes.
        keep_state: called after every round of every party with what it takes to go on.
        resume: by party, where to go on from; all from the same round.
        pads: where pads are that were made ahead (`make_ahead`): used once if they are there. None
            keeps none.
    """

    keys: KeyMaker = field(default_factory=SchemeKeys)
    stopwatch: Stopwatch | None = None
    record_views: bool = False
    tamper: Tamper | None = None
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    modules: Mapping[str, MakeModule] = field(default_factory=dict)
    wrap_model: Callable[[str, LocalModel], LocalModel] | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)
    keep_state: Callable[[SessionState], None] | None = None
    resume: Mapping[str, SessionState] = field(default_factory=dict)
    pads: PadPlaces | None = None


@dataclass(frozen=True, repr=False)
class TrainingResult(Shown):
    """A finished job.

    Attributes:
        plan: the job in force, resolved.
        outcomes: by party.
        scores: the label party's held-out scores.
        rounds: rounds done, those of an earlier run among them.
        ledgers: each party's costs.
        views: each party's view, where recorded.
        label_guard_ratio: highest ratio at any key owner; None where gradients stay hidden.
        wall_s: seconds on this machine's clock.
        test_labels: of the held-out rows.
        others: what the programs of those without data returned, by name.
        rounds_before: rounds of an earlier run, from which this one went on.
        dropped: by party, rows of its file that took no part.
        data: the rows that took part.
    """

    plan: Plan
    outcomes: dict[str, PartyOutcome]
    scores: list[Score]
    rounds: int
    ledgers: dict[str, Costs]
    views: dict[str, View]
    label_guard_ratio: float | None
    wall_s: float
    test_labels: Labels
    data: VerticalDataset[Matrix] = field(repr=False)
    others: dict[str, Any] = field(default_factory=dict)
    rounds_before: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @override
    def shown(self) -> dict[str, object]:
        """How training went, and what it cost."""
        facts, costs = self.plan.facts, self.costs()
        score = self.scores[-1] if self.scores else None
        figures = (
            {}
            if score is None
            else {
                "AUC": score.class_auc,
                "accuracy": score.class_accuracy,
                "R²": score.r2,
                "RMSE": score.rmse,
            }
        )
        guard = self.label_guard_ratio
        return {
            "job": f"{self.plan.algorithm.name} under {self.plan.exchange.name}, {facts.rows} rows",
            "parties": ", ".join(facts.names),
            "rounds": f"{self.rounds}, ended: {self.ended}",
            **{name: f"{each:.4g}" for name, each in figures.items() if each is not None},
            "learned": "yes" if self.learned else "nothing that can be told from chance",
            "total": f"{costs.total_s:.3g} s ({costs.compute_s:.3g} s of it computation)",
            **({"made ahead": f"{costs.ahead_s:.3g} s of the total"} if costs.ahead_s else {}),
            "sent": f"{costs.bytes_sent:,} bytes in {costs.messages} messages",
            **({} if guard is None else {"label guard ratio": f"{guard:.3f}"}),
        }

    @property
    def job(self) -> Job:
        """The job in force."""
        return self.plan.job

    def costs(self, rounds: int | None = None) -> JobCosts:
        """Costs of the rounds up to one, the last by default, without those of an earlier run."""
        return job_costs(self.ledgers, (rounds or self.rounds) - self.rounds_before)

    @property
    def privacy(self) -> Promise | None:
        """What the job's noise promises; None where there is none."""
        return next(iter(self.outcomes.values())).privacy

    @property
    def clear_auc(self) -> float:
        """Held-out AUC of the trained models' exact predictions.

        No party can compute it: under noise they score noisy predictions.

        Raises:
            ConfigError: targets are real.
        """
        return self.exact_score.auc

    @property
    def exact_score(self) -> Score:
        """Of the trained models' exact predictions, which no party has under noise."""
        return Score.of(self.rounds, self.predictions, self.test_labels, self.plan.loss.middle)

    @property
    def clear_loss(self) -> float:
        """The mean held-out loss of exact predictions, which no party can compute either."""
        return self.plan.loss.value(self.predictions, self.test_labels)

    @property
    def calibration(self) -> Calibration | None:
        """How far held-out probabilities are what they say, as the label party can tell.

        None where it does not see exact predictions of rows, or where they are no probabilities.
        """
        sees_rows = bool(self.scores) and not self.scores[-1].binormal
        loss, real = self.plan.loss.name, self.plan.facts.real_targets
        if self.privacy or not sees_rows or real or not has_probabilities(loss):
            return None
        return calibration(probabilities(loss, self.predictions), as_classes(self.test_labels))

    @property
    def ended(self) -> Ending:
        """What ended training."""
        return self.outcomes[self.plan.facts.label_party].ended

    @property
    def learned(self) -> bool:
        """Whether the model is of any use, as far as the label party can tell.

        Its training loss has fallen below that of the best constant prediction, and held-out rows,
        where there are some, are ranked better than chance by two of its standard errors; or R² is
        above what says nothing of real targets has. After one round the only loss is the start's:
        scores alone tell.
        """
        useful = True
        if self.scores and self.scores[-1].r2 is not None:
            useful = self.scores[-1].r2 > r2_error(len(self.test_labels))
        elif self.scores:
            useful = self.scores[-1].auc > 0.5 + 2 * auc_error(self.test_labels)
        only_started = self.rounds == 1 and bool(self.scores)
        return useful and (only_started or self.outcomes[self.plan.facts.label_party].learned)

    @property
    def kept_rounds(self) -> int:
        """Rounds after which the model was as it is kept: the last, if nothing went wrong."""
        return self.outcomes[self.plan.facts.label_party].kept.rounds

    @property
    def went_wrong(self) -> bool:
        """Whether the end of training was clearly worse than what had been there before."""
        return any(each.kept.went_wrong for each in self.outcomes.values())

    @cached_property
    def alone(self) -> Mapping[str, Alone]:
        """What each party's columns give by themselves, scored as the joint model is.

        Computed when first asked for. The label party can do it with what it has; the others were
        lent the labels, which no real party is (`Alone.labels_lent`).
        """
        binormal = bool(self.scores) and self.scores[-1].binormal
        return alone(self.plan, self.data, binormal=binormal)

    @cached_property
    def warnings(self) -> tuple[Warned, ...]:
        """What whoever trained has to know, the gravest first; needs `alone`."""
        return tuple(
            warned(
                self.plan,
                {name: each.kept for name, each in self.outcomes.items()},
                learned=self.learned,
                own=lambda: self.alone,
                predictions=self.predictions,
                labels=self.test_labels,
                noisy=self.scores[-1] if self.scores and self.plan.exchange.adds_noise else None,
            )
        )

    @property
    def status(self) -> int:
        """The exit status: 0 where all is well, see `verdict.STATUSES`."""
        return status_of(self.warnings)

    @cached_property
    def predictions(self) -> FloatArray:
        """H of the held-out rows by all parties' models, shape (test rows, C), in target units."""
        return self.plan.algorithm.together(self.plan, self.outcomes)

    @property
    def key_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the homomorphic keys, by owner."""
        return {
            name: outcome.key_fingerprint
            for name, outcome in self.outcomes.items()
            if outcome.key_fingerprint is not None
        }

    @property
    def key_bits(self) -> int | None:
        """Key size in force, where the scheme has a choice."""
        sizes = [outcome.key_bits for outcome in self.outcomes.values()]
        return next((size for size in sizes if size is not None), None)


def train(
    job: Job, dataset: VerticalDataset[Matrix], environment: Environment | None = None
) -> TrainingResult:
    """Run all parties of a job in this process.

    Raises:
        ConfigError: a job that does not fit the data, or would leak too much about labels.
        RangeExceeded: fixed-point products could overflow; before anything is sent.
        BudgetExhausted: the job would spend more than its privacy budget.
        PeerError: a party broke the protocol (with fault injection).
    """
    environment = environment or Environment()
    plan, dataset = resolved(job, dataset, environment.modules)
    places = {
        table.name: workplace_of(plan, dataset, table, environment) for table in dataset.parties
    }
    started = time.perf_counter()
    simulated = simulate(
        plan.algorithm.programs(plan, places),
        plan.line,
        job_hash=plan.hash,
        stopwatch=environment.stopwatch,
        record_views=environment.record_views,
        tamper=environment.tamper,
        paces=environment.paces,
    )
    wall = time.perf_counter() - started
    outcomes: dict[str, PartyOutcome] = {name: simulated.results[name] for name in places}
    label = outcomes[plan.facts.label_party]
    ratios = [outcome.leakage.ratio for outcome in outcomes.values()]
    return TrainingResult(
        plan=plan,
        outcomes=outcomes,
        scores=label.scores,
        rounds=label.rounds,
        ledgers=simulated.costs,
        views=simulated.views,
        label_guard_ratio=max(ratios) if plan.learns.gradients else None,
        wall_s=wall,
        test_labels=dataset.test_labels,
        data=dataset,
        rounds_before=max((each.rounds for each in environment.resume.values()), default=0),
        dropped=dataset.dropped,
        others={name: each for name, each in simulated.results.items() if name not in places},
    )


def plan_for(job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str] = ()) -> Plan:
    """The job resolved for a data set, before any work.

    Args:
        job: the settings.
        dataset: the data.
        modules: the parties for which there is a custom module.

    Raises:
        ConfigError: a loss, local model, exchange, network or batch size that does not fit.
        DataError: data that no job could train on.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    return resolved(job, dataset, modules)[0]


def resolved(
    job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str]
) -> tuple[Plan, VerticalDataset[Matrix]]:
    """The plan, and the rows that take part."""
    check_dataset(dataset)
    taken = algorithm_of(job).rows(job, dataset)
    if taken is not dataset:
        check_dataset(taken)
    return resolve(job, Facts.of(taken), modules), taken


def model_files(name: str, outcome: PartyOutcome, directory: Path) -> dict[Path, SavedModel]:
    """A party's model, `<party>.safetensors`, and those of an L1 path, `<party>-l1-<λ₁>…`."""
    models = {directory / f"{name}.safetensors": outcome.model}
    for point in outcome.path if len(outcome.path) > 1 else ():
        models[directory / f"{name}-l1-{point.l1}.safetensors"] = point.model
    return models


def save_models(result: TrainingResult, directory: Path) -> list[Path]:
    """Write every party's models, see `model_files`.

    Raises:
        DataError: a file cannot be written.
    """
    models: dict[Path, SavedModel] = {}
    for name in result.outcomes:
        models |= model_files(name, result.outcomes[name], directory)
    for path, model in models.items():
        save_model(path, model)
    return list(models)


def workplace_of(
    plan: Plan,
    dataset: VerticalDataset[Matrix],
    table: PartyTable[Matrix],
    environment: Environment,
) -> Workplace:
    """What a party's program is given of an environment, and of the data its own alone."""
    name, facts, wrap = table.name, plan.facts, environment.wrap_model
    with_labels = plan.algorithm.labels_everywhere or name == facts.label_party
    return Workplace(
        data=PartyData(
            table,
            dataset.train_labels if with_labels else None,
            dataset.test_labels if with_labels else None,
            dataset.own_rows if name == facts.label_party else None,
            dataset.class_names if name == facts.label_party else (),
        ),
        keys=environment.keys,
        start=np.random.default_rng([plan.job.job.seed, facts.names.index(name)]),
        guard_directory=environment.guard_directory,
        checkpoints=environment.checkpoints,
        progress=environment.progress if name == facts.label_party else None,
        make_module=environment.modules.get(name),
        wrap_model=None if wrap is None else partial(wrap, name),
        keep_state=environment.keep_state,
        resume=environment.resume.get(name),
        pads=None if environment.pads is None else environment.pads.of(name),
    )
