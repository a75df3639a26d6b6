"""What `securevfl train` says of a job before it starts, and how long it will take."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from operator import itemgetter
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from securevfl.crypto.schemes import why_slower
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.protocols.guards.label_ends import BITS, label_bits, visited
from securevfl.protocols.guards.person_record import label_variance
from securevfl.protocols.plan import Plan
from securevfl.protocols.resolving import resolve
from securevfl.reports.tables import seconds, size, spent_text, table, wrapped
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, OFFLINE, SETUP, Stopwatch
from securevfl.shown import counted
from securevfl.sparse import Matrix

if TYPE_CHECKING:
    from rich.table import Table

    from securevfl.training.dry_run import Expected

MOST_CLASSES, MOST_NAMES = 3, 3
# Where peers' own parts of the model rank training rows by some 0.02 AUC better than others.
BY_HEART = 1 / 25
# A round that took as long says enough; after a shorter one the next, which has nothing to prepare,
# is worth waiting for.
LONG_SECONDS = 10.0
OFTEN_SECONDS, ALMOST = 0.5, 0.95
PARTIES = ("party", "columns", "rows", "in common", "left out")
SYMBOLS = {
    r"H_k": "H_k is party k's part of the prediction of a row",
    r"ΣH": "ΣH the sum of all parts",
    r"\bd\b|ᵀd": "d the loss's slope at a row",
    r"G_k": "G_k party k's gradient",
    r"Xᵀ|X_k": "X_k a party's columns",
    r"\bS\b": "S the rows of a round",
    r"u_[AB]": "u_A and u_B a row's hidden units at the label party and the other",
    r"Φ": "Φ the mean of u_A by label",
    r"φ": "φ a row's score",
}


def brought(plan: Plan, dataset: VerticalDataset[Matrix]) -> list[list[str]]:
    """By party, what it brings, and what of it all others hold too: a row of `PARTIES`."""
    common = len(dataset.train_labels) + len(dataset.test_labels)
    rows = []
    for each in dataset.parties:
        dropped = dataset.dropped.get(each.name, 0)
        labels = " (labels)" if each.name == plan.facts.label_party else ""
        figures = (len(each.columns), common + dropped, common, dropped)
        rows.append([each.name + labels, *map(str, figures)])
    return rows


def parties_table(rows: Sequence[Sequence[str]]) -> "Table":
    """The rows of `brought`."""
    return table([(name, itemgetter(place)) for place, name in enumerate(PARTIES)], rows)


def forecast_table(plan: Plan, expected: "Expected") -> "Table":
    """What each party, and the job, is expected to cost."""
    rows = [
        (
            each.name + (" (labels)" if each.name == plan.facts.label_party else ""),
            seconds(each.compute_s),
            "",
            "",
            size(each.bytes_sent),
            "-" if each.memory_bytes is None else size(each.memory_bytes),
        )
        for each in expected.parties
    ]
    times = (expected.compute_s, expected.communication_s, expected.total_s)
    job = ("the job", *map(seconds, times), size(expected.bytes_sent), "")
    headings = ("", "compute", "network", "total", "sent", "memory")
    return table([(n, itemgetter(place)) for place, n in enumerate(headings)], [*rows, job])


def forecast_notes(plan: Plan, expected: "Expected", took_s: float) -> list[str]:
    """What to know of these figures, in lines."""
    may_end = plan.stops_early or plan.job.job.target_auc is not None
    sizes = "bytes are exact" if expected.exact_bytes else "bytes are scaled up"
    memory = "memory is that of a party's process at most"
    if any(each.memory_bytes is None for each in expected.parties):
        memory = "this system does not tell how much memory parties take"
    rounds = counted(expected.rounds, "round")
    notes = [
        f"forecast of {rounds} from a dry run of {seconds(took_s)}"
        + ("; training may end sooner" if may_end else ""),
        f"set-up takes {seconds(expected.setup_s)} more; {sizes}"
        + (", and fewer where a step is taken back" if plan.stops_early else ""),
        "the job's compute is its longest chain of work: parties work at the same time, and some "
        f"of their work is done while they wait; {memory}",
        "no guard was asked: what this job and earlier ones show of people may still rule it out",
    ]
    return [line for text in notes for line in wrapped(text)]


def before(plan: Plan, dataset: VerticalDataset[Matrix]) -> list[str]:
    """What will be done, and what each party will learn of the others, a sentence each."""
    settings = plan.job.job
    size = "all rows" if plan.full_batches else f"about {plan.batch_size} rows"
    exact = plan.local_steps == "exact"
    steps = "exact local steps" if exact else counted(int(plan.local_steps), "local step")
    ends_before = plan.stops_early or settings.target_auc is not None
    rounds = ("at most " if ends_before else "") + counted(plan.rounds, "round")
    lines = [
        f"{plan.facts.rows} rows to train on, {plan.facts.test_rows} held out; {_classes(dataset)}",
        f"{settings.algorithm} under {plan.exchange.name}: {rounds} of {size}, {steps} in each",
        *_learned(plan),
        *to_do_first(plan),
        *_determined(plan, dataset),
        *_by_heart(plan, dataset),
        *_told_at_the_end(plan, dataset),
    ]
    exchange = plan.job.exchange
    if (slower := why_slower(exchange.scheme, exchange.engine)) is not None:
        lines.append(slower)
    if plan.account is not None:
        lines.append(f"noise after all rounds: {spent_text(plan.account.after(plan.rounds).row())}")
    return lines


def to_resume(plan: Plan) -> Iterator[str]:
    """How a job goes on after an interrupt."""
    output = plan.job.output
    if plan.never_resumes is not None:
        yield f"cannot be resumed after an interrupt: {plan.never_resumes}"
    elif output.checkpoint_every == 0:
        yield "cannot be resumed after an interrupt: checkpoint_every = 0"
    elif output.checkpoint_every < plan.rounds:
        every = counted(output.checkpoint_every, "round")
        yield f"a checkpoint every {every} in {output.directory}, from which --resume continues"


def to_do_first(plan: Plan) -> list[str]:
    """To set `hide = "both"`, in a line, where nothing that the job sets excludes it."""
    job = plan.job
    if not plan.exchange.encrypts or job.exchange.hide == "both":
        return []
    affine = "taylor-logistic" if job.job.loss == "logistic" else job.job.loss
    hidden = job.exchange.model_copy(update={"hide": "both"})
    changed = job.model_copy(update={"exchange": hidden})
    try:
        # The default of eval_every depends on `hide`.
        resolve(changed.with_settings(loss=affine, eval_every=None), plan.facts)
    except ConfigError:
        return []
    also, price = "", ""
    if affine != job.job.loss:
        also = f" with loss = {affine!r}"
        price = ", for an AUC up to 0.007 lower and a log loss 3 % higher or more (measured)"
    return [
        f"to do first: hide = 'both'{also} shows nobody a number per person in training, at about "
        f"twice the work{price}"
    ]


def _determined(plan: Plan, dataset: VerticalDataset[Matrix]) -> Iterator[str]:
    """Of which parties rounds show as many numbers of each person as they have columns."""
    if plan.learns.predictions == "hidden" or plan.exchange.adds_noise:
        return
    shown = -(-plan.rounds // plan.schedule.batches) * plan.given * plan.products
    for party in dataset.parties:
        columns, linear = len(party.columns), party.name not in plan.networks
        if party.name != plan.facts.label_party and linear and shown >= columns:
            yield (
                f"{plan.facts.label_party} sees up to {counted(shown, 'number')} of each person "
                f"from {party.name}, which has {counted(columns, 'column')}: whoever knows as many "
                "people can then compute the columns of all"
            )


def _by_heart(plan: Plan, dataset: VerticalDataset[Matrix]) -> Iterator[str]:
    """What peers' parts of the model tell of the very labels that they were trained on.

    P numbers about N labels of variance v separate two classes by √(P/(N·v)) where nothing else
    does (docs/decisions/0016-label-guard-by-person.md).
    """
    if plan.learns.residuals == "clear":
        return
    peers = [table for table in dataset.parties if table.name != plan.facts.label_party]
    columns = sum(len(table.columns) for table in peers)
    separation = columns / (plan.facts.rows * label_variance(dataset.train_labels))
    if separation > BY_HEART:
        auc = NormalDist().cdf(sqrt(separation / 2))
        yield (
            f"{plan.facts.rows} people are few for {columns} columns of peers: whatever the "
            "exchange, their parts of the trained model rank the labels of these people at an AUC "
            f"of up to {auc:.2f} where the columns themselves say nothing of labels (0.50)"
        )


def _told_at_the_end(plan: Plan, dataset: VerticalDataset[Matrix]) -> Iterator[str]:
    """What peers learn of labels if parameters are in shares until the end."""
    if not plan.exchange.shares_parameters:
        return
    peers = [table for table in dataset.parties if table.name != plan.facts.label_party]
    columns, labels = sum(len(each.columns) for each in peers), dataset.train_labels[visited(plan)]
    bits = label_bits(labels) * len(labels)
    warning = ", so they can be read off it" if BITS * columns > bits else ""
    yield (
        f"the final model tells feature parties {counted(columns, 'number')} of labels, which "
        f"count as {BITS * columns} bits over all jobs on these people; the labels of "
        f"{len(labels)} rows have {bits:.0f}{warning}"
    )


def _classes(dataset: VerticalDataset[Matrix]) -> str:
    if not dataset.classes:
        return "real targets"
    codes, counts = np.unique(dataset.train_labels, return_counts=True)
    names = dataset.label_names or tuple(map(str, range(dataset.classes)))
    shares = {names[code]: count / counts.sum() for code, count in zip(codes, counts, strict=True)}
    if len(shares) <= MOST_CLASSES:
        return "classes " + ", ".join(f"{name!r} {share:.1%}" for name, share in shares.items())
    rarest = min(shares, key=shares.__getitem__)
    return f"{len(shares)} classes, the rarest {rarest!r} {shares[rarest]:.1%}"


def _learned(plan: Plan) -> Iterator[str]:
    label = plan.facts.label_party
    others = [name for name in plan.facts.names if name != label]
    features = ", ".join(others[:MOST_NAMES])
    if len(others) > MOST_NAMES:
        features += f" and {len(others) - MOST_NAMES} more"
    names = {"label party": label, "feature party": features}
    texts = []
    for role, learns in learned_in(plan):
        verb = "learn, each" if names.get(role) == features and len(others) > 1 else "learns"
        texts.append(f"{names.get(role, role)} {verb}: {learns}")
    yield from texts
    said = " ".join(texts)
    meanings = [text for pattern, text in SYMBOLS.items() if re.search(pattern, said)]
    if meanings:
        yield f"({'; '.join(meanings)})"


def learned_in(plan: Plan) -> list[tuple[str, str]]:
    """What each role of a job learns: those of its algorithm, or else of its exchange."""
    roles = plan.algorithm.roles_in(plan)
    if roles:
        return [(role, learns) for role, learns, _ in roles]
    learns = plan.learns
    weights = "the mean weight of rows, rounded up to a power of two, and each one's with d"
    every = [("every party", weights)] if plan.facts.weight_bits else []
    return [("label party", learns.label_party), ("feature party", learns.feature_party), *every]


class SetupWatch(Stopwatch):
    """Measures as any other, and notes when set-up was over: keys are made, rounds begin.

    Of the seconds in which something was made offline, `offline_s`, some were before rounds began.
    `worked` is called after every section, with its phase.
    """

    def __init__(self, worked: Callable[[str], None] = lambda phase: None) -> None:
        super().__init__()
        self._worked = worked
        self.rounds_began: float | None = None
        self.offline_s = self.offline_before_s = 0.0
        self._made, self._began = 1.0, 0.0

    @override
    def made(self, parts: int, of: int) -> None:
        if parts == 0:
            self._began = self.clock()
        self._made = parts / of

    @property
    def left(self) -> str:
        """How much of long work is done, and the time that the rest will take; else nothing."""
        if not 0 < self._made < 1:
            return ""
        rest = (self.clock() - self._began) * (1 / self._made - 1)
        return f": this part {self._made:.0%}, {seconds(rest)} left"

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        if phase == CORRELATED_RANDOMNESS:
            self.offline_s += elapsed
        # There are waits in a set-up too, and work in them.
        elif phase not in {SETUP, OFFLINE} and self.rounds_began is None:
            self.rounds_began = time.perf_counter() - elapsed
            self.offline_before_s = self.offline_s
        self._worked(phase)
        return elapsed


@dataclass
class WithinRounds:
    """Progress within rounds that take long, measured by the round before.

    Attributes:
        show: takes what to say beside, and how many rounds are done, with a part of one.
        done: rounds.
        began: when the current round did, or work before the first.
    """

    show: Callable[[str, float], None]
    done: int
    began: float
    _one: float = inf
    _told: float = 0.0

    def ended(self, done: int, now: float) -> None:
        """So many rounds have ended."""
        self.done, self._one, self.began, self._told = done, now - self.began, now, now

    def worked(self, phase: str, now: float) -> None:
        """A section of this phase has ended; says so now and then."""
        if now - max(self._told, self.began) < OFTEN_SECONDS:
            return
        self._told, spent = now, now - self.began
        # Rounds that end together take no time.
        part = spent / self._one if spent < ALMOST * self._one else ALMOST
        self.show(f", {phase.replace('_', ' ')}, {seconds(spent)} so far", self.done + part)


@dataclass
class Forecast:
    """Says once how long all rounds, or fewer where training `may_end` before, will take."""

    rounds: int
    may_end: bool
    stopwatch: SetupWatch
    started: float
    _last: float = 0.0
    _shown: bool = False

    def after(self, done: int, now: float) -> str | None:
        """What to say after so many rounds of this run, on the clock of `started`; or nothing."""
        stopwatch = self.stopwatch
        began = stopwatch.rounds_began or self.started
        # A clock that stands still while something is made offline.
        now -= stopwatch.offline_s - stopwatch.offline_before_s
        one = now - (began if done == 1 else self._last)
        self._last = now
        if self._shown or (done == 1 and one < LONG_SECONDS and self.rounds > 1):
            return None
        self._shown = True
        most = now - began + (self.rounds - done) * one
        ends = "; it may end sooner" if self.may_end and self.rounds > done else ""
        setup = seconds(began - self.started - stopwatch.offline_before_s)
        offline = (
            f"the offline phase {seconds(stopwatch.offline_s)}, " if stopwatch.offline_s else ""
        )
        lines = f"at most {self.rounds} rounds take about {seconds(most)}{ends}"
        return (
            f"set-up took {setup}, {offline}a round takes {seconds(one)}: "
            f"{lines if self.rounds > 1 else 'it is the only one'}"
        )
