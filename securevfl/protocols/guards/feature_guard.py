"""The feature guard: how much predictions of all jobs reveal about the rows of one party.

A prediction of a linear model shows H = X·θ: C columns in the column space of X. Once another party
has as many columns as X has rank, as many known rows reveal the features of all other rows exactly
(`attacks.held_out`, `attacks.scored_features`). Columns that hang together are estimated from
fewer, so the guard counts by the *effective rank*: the directions that hold 99 % of the variance.

*Rounds* show columns of training rows to the label party (H_k), and under residuals in clear to
feature parties as well (the label party's part). What one job shows by itself, `train` says before
it starts. The guard counts what several jobs show together: a later one must leave it below the
rank. Rows that one job alone has revealed have nothing left to hide (`reveals`). Rounds that
converge often do not, however many they are.

*Scorings* show columns of held-out rows and of new rows. Where the exchange shows as much of
training rows, several jobs together must stay below the rank as well, and new rows below it. Where
rounds show every H_k but not d, a job may show fewer than the rank. Elsewhere the guard allows
`LIMIT` of the rank: at that limit an attacker that knew four times as many rows as the rank reduced
its error by less than a tenth. One scoring, at the end, is always allowed.

The party whose rows they are counts, since only it knows its rank. It counts per row and over all
jobs: every other θ adds a column. Networks are not counted, since their H is not in the column
space of X, nor are noisy predictions, which an account covers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.scaling import Scaling
from securevfl.data.tables import row_digests
from securevfl.errors import DataError, FeatureLeakRefused
from securevfl.job import PartySettings
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import QuadraticLoss
from securevfl.models.storage import SavedModel
from securevfl.protocols.guards.label_guard import least
from securevfl.protocols.guards.people import (
    CountedJob,
    Digests,
    digests_of_values,
    find,
    named_population,
)
from securevfl.protocols.guards.row_record import Attempt, Kind, NamedRows, RowRecord
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.workplace import Workplace
from securevfl.shown import counted
from securevfl.sparse import Matrix, dense

LIMIT = 1 / 32
RANKED_VALUES = 1 << 22
# Of features that count as revealed: the largest error of a column that is left, of its norm, by
# directions whose singular value is large enough for an attacker, of the largest.
KNOWN, VISIBLE = 1e-3, 1e-9
# The variance that the effective rank leaves out: a relative error of 0.1.
LEFT_OUT = 0.01
UNCOUNTED = (
    "; where all files are at hand, `securevfl bench tradeoff JOB.toml --exchange plain,bfv` "
    "compares exchanges on the same people and counts nothing"
)


@dataclass(frozen=True, eq=False)
class Counted:
    """Columns of predictions of some rows.

    Attributes:
        kind: of rounds or of scorings.
        rows: of the party.
        earlier: columns of this kind that other jobs have shown of each, shape (rows,).
        others: columns of the other kind, likewise.
        own: columns that the job may show, shape (rows,).
    """

    kind: Kind
    rows: NamedRows
    earlier: IntArray
    others: IntArray
    own: IntArray


@dataclass(frozen=True)
class HeldOutCount:
    """What a job's scorings would show.

    Attributes:
        scorings: the most that this job takes.
        outputs: C, columns per scoring.
        rank: the effective one of the party's scaled held-out columns.
        rounds_show: whether rounds show the same of training rows.
    """

    scorings: int
    outputs: int
    rank: int
    rounds_show: bool = False

    @property
    def allowed(self) -> int:
        """Columns that may be shown: `LIMIT` of the rank or rank − 1, at least one scoring's."""
        most = self.rank - 1 if self.rounds_show else int(LIMIT * self.rank)
        return max(self.outputs, most)

    def require_below_limit(
        self, columns: int, last: str, remedy: str = "score less often", hint: str = ""
    ) -> None:
        """Refuse more columns of a row's predictions than are allowed."""
        if columns <= self.allowed:
            return
        own = self.scorings * self.outputs
        this, more = "this job", ""
        if before := columns - own:
            numbers = f"up to {counted(before, 'number')} of each person scored"
            this = f"earlier jobs (the last: {last}) already showed {numbers}, and this one"
            more = "more "
        raise FeatureLeakRefused(
            f"feature guard: {this} would show {counted(own, more + 'number')} "
            f"({counted(self.scorings, 'scoring')} x {counted(self.outputs, 'output')}), at most "
            f"{self.allowed} expected in all for features of effective rank {self.rank}: as many "
            f"as the rank reveal every row to a party that knows some; {remedy}, hold out other "
            f"rows, or set allow_feature_leak = true{hint}"
        )


class FeatureGuard:
    """Counts one job of one party, in a record for all jobs, whatever these call the party.

    Args:
        party: whose rows are counted.
        plan: of the job.
        place: with the party's data and the folder of its record; no folder counts nothing.
        inputs: its scaled training columns, shape (N, P).
        held_out: likewise of its held-out rows.
    """

    def __init__(
        self, party: Party, plan: Plan, place: Workplace, inputs: Matrix, held_out: Matrix
    ) -> None:
        self._party, self._plan, self._place = party, plan, place
        self._inputs, self._held_out = inputs, held_out
        directory, table = place.guard_directory, place.data.table
        self._path = None if directory is None else directory / "rows.safetensors"
        self._named = named_population(plan.job.party, table.name)
        learns = plan.learns
        seen = learns.residuals == "clear" if party.holds_labels else learns.predictions != "hidden"
        network = plan.networks.get(party.name)
        # A module of one's own may be linear.
        linear = network is None or network.kind == "custom"
        exact = linear and not plan.exchange.adds_noise
        self._trains = seen and exact
        hidden = plan.algorithm.held_out(plan) == "hidden"
        scores = plan.timetable.times(plan.rounds) > 0 and not (party.holds_labels or hidden)
        self._limits_scores = plan.exchange.counts_held_out(plan.job)
        self._scores = scores and (exact or self._limits_scores)
        self._recorded = self._repeats = False
        self._key = f"{place.answer or plan.hash.hex()} {party.name}"
        self._peers = _digest_of(party.others)
        self._job = CountedJob.of(plan.job, plan.hash)

    def require(self) -> None:
        """Check the job before any party records anything.

        Raises:
            FeatureLeakRefused: rounds or scorings would show too much.
            DataError: the record of earlier jobs cannot be read.
        """
        if self._path is not None and (self._trains or self._scores):
            record = RowRecord.load(self._path)
            self._check(record, self._counted(record))

    def write_down(self) -> None:
        """Check again and record the job, before the first round and once nobody can refuse."""
        if self._path is not None and (self._trains or self._scores):
            with RowRecord.changed(self._path) as record:
                counted = list(self._counted(record))
                self._check(record, counted)
                self._count(record, counted)
            self._recorded = True

    @contextmanager
    def rounds(
        self, done: int, model: LocalModel, *, exact: bool
    ) -> Iterator[Callable[[int], None]]:
        """Take rounds, and take back what those would have shown that have not begun.

        Call what this yields with the number of rounds as each begins, so that an error or an early
        end counts no more than it showed. `done` have begun before; `model` has θ; `exact` says
        whether others see all digits of H.
        """
        begun, shown = done, dict[int, FloatArray]()  # θ by how many rounds it has behind it
        keeps = exact and self._recorded and not self._repeats and self._alone

        def begin(rounds: int) -> None:
            nonlocal begun
            begun = rounds
            if keeps and (len(shown) + 1) * model.weights.size <= RANKED_VALUES:
                shown[rounds - 1] = model.weights

        try:
            yield begin
        except BaseException:
            with suppress(DataError):  # what ended the job matters more than what it takes back
                self._settle(begun, shown, ended=False)
            raise
        self._settle(begun, shown, ended=True)

    def _settle(self, begun: int, shown: dict[int, FloatArray], *, ended: bool) -> None:
        if not self._recorded or self._repeats:
            return
        with self._changed() as record:
            attempt = record.attempts.get(self._key)
            if attempt is None:  # forgotten meanwhile
                return
            if self._trains:
                rows = self._training_rows(record)
                others = record.shown("trained", rows) - self._columns(attempt.at_most)
                record.note("trained", rows, others + self._columns(begun))
                self._note_revealed(record, rows, self._inputs, [*shown.values()])
            if self._scores and not self._limits_scores:
                due = self._plan.timetable.due
                scored = [each for rounds, each in shown.items() if rounds > 0 and due(rounds)]
                rows = self._held_out_rows(record)
                self._note_revealed(record, rows, self._held_out, scored)
            record.attempts[self._key] = Attempt(at_most=begun, ended=ended)

    def _note_revealed(
        self, record: RowRecord, rows: NamedRows, inputs: Matrix, weights: list[FloatArray]
    ) -> None:
        if weights and reveals(inputs, np.hstack(weights)):
            to = np.full(len(rows.digests), self._peers)
            record.note("revealed", rows.by_values, to)

    @property
    def _alone(self) -> bool:
        """Whether somebody sees each H of this party alone, of all its rows."""
        plan = self._plan
        alone = len(plan.facts.names) == 2 if self._party.holds_labels else self._rounds_show  # noqa: PLR2004
        return self._trains and alone and plan.full_batches and not plan.networks

    def note_model(self, model: SavedModel) -> None:
        """Record that a trained model has scored the held-out rows, so that it may again."""
        if self._scores and self._recorded:
            with self._changed() as record:
                record.note_models(self._held_out_rows(record).under(model.digest))

    @contextmanager
    def _changed(self) -> Iterator[RowRecord]:
        assert self._path is not None  # noqa: S101
        with RowRecord.changed(self._path) as record:
            yield record

    def _counted(self, record: RowRecord) -> Iterator[Counted]:
        """What the job may show on top of a record; also notes whether it repeats an ended one."""
        plan, place = self._plan, self._place
        known = record.attempts.get(self._key)
        again = place.answer is not None and known is not None
        goes_on = place.resume is not None or again
        self._repeats = again and known is not None and known.ended
        before = known.at_most if goes_on and known is not None else 0
        if self._trains:
            rows = self._training_rows(record)
            # Other jobs may have come between two attempts at this one.
            earlier = np.maximum(record.shown("trained", rows) - self._columns(before), 0)
            scored = record.shown("scored", rows)
            yield Counted("trained", rows, earlier, scored, self._columns(plan.rounds))
        if self._scores:
            rows = self._held_out_rows(record)
            columns = plan.timetable.times(plan.rounds) * plan.loss.outputs
            own = np.full(len(rows.digests), columns)
            earlier = np.maximum(record.shown("scored", rows) - goes_on * own, 0)
            yield Counted("scored", rows, earlier, record.shown("trained", rows), own)

    def _check(self, record: RowRecord, counted: Iterable[Counted]) -> None:
        """Refuse the job if it would show too much on top of a record."""
        plan = self._plan
        for each in counted:
            if self._repeats or plan.job.job.allow_feature_leak:
                return
            if each.kind == "scored" and self._limits_scores:
                scorings, outputs = plan.timetable.times(plan.rounds), plan.loss.outputs
                count = HeldOutCount(scorings, outputs, self._held_out_rank, self._rounds_show)
                most, remedy = int((each.earlier + each.own).max()), ""
                if most > count.allowed:
                    remedy = _remedy(plan, (count.allowed - most) // outputs + scorings)
                count.require_below_limit(most, record.last(each.rows), remedy, UNCOUNTED)
            self._require_apart(record, each)

    def _count(self, record: RowRecord, counted: Iterable[Counted]) -> None:
        """Note what the job may show."""
        for each in counted:
            if not self._repeats:
                record.note(each.kind, each.rows, each.earlier + each.own)
            record.note_job(each.rows, self._place.data.table.columns, self._job)
        if not self._repeats:
            record.attempts[self._key] = Attempt(at_most=self._plan.rounds)

    @cached_property
    def _training_rank(self) -> int:
        return rank_of(self._inputs)

    @cached_property
    def _held_out_rank(self) -> int:
        return rank_of(self._held_out)

    def _require_apart(self, record: RowRecord, counted: Counted) -> None:
        """Refuse columns that, with those of earlier jobs, would be as many as the rank."""
        rows, own, plan = counted.rows, counted.own, self._plan
        shown = counted.earlier + counted.others
        again = (shown > 0) & (record.shown("revealed", rows.by_values) != self._peers)
        if not again.any():
            return
        rank = self._training_rank if counted.kind == "trained" else self._held_out_rank
        columns, before = (int(each[again].max()) for each in (shown + own, shown))
        last = record.attempts.get(self._key)
        # A job that may show all by itself may start again after its end was lost.
        broke_off = last is not None and not last.ended and record.only(self._job, rows)
        if columns < rank or (broke_off and int(own.max()) >= rank):
            return
        if counted.kind == "trained":
            most = least(
                plan.rounds,
                0,
                lambda rounds: int((shown + self._columns(rounds))[again].max()) < rank,
            )
            what, fewer = "rows", f", or rounds = {most}" if most > 0 else ""
            ways = f"{_ways(plan)}{fewer}"
        else:
            what = "held-out rows"
            ways = _remedy(plan, (rank - 1 - before) // plan.loss.outputs)
        raise FeatureLeakRefused(
            f"feature guard: earlier jobs (the last: {record.last(rows)}) showed the other side "
            f"{before} columns of predictions of {what} of {self._party.name!r}, and this job "
            f"would show up to {columns - before} more; their effective rank is {rank}, so whoever "
            f"knows {rank} of these people could then compute the columns of all, or nearly; "
            f"{ways}, or set allow_feature_leak = true; if these are other people, give their "
            f"table a population of its own{UNCOUNTED}"
        )

    @property
    def _rounds_show(self) -> bool:
        return self._plan.learns.predictions == "singly"

    def _columns(self, rounds: int) -> IntArray:
        """Columns of each training row that so many rounds show, shape (N,)."""
        plan = self._plan
        each = plan.given * plan.products
        if plan.full_batches:
            return np.full(plan.facts.rows, rounds * each)
        visits = np.zeros(plan.facts.rows, np.int64)
        for index in range(rounds):
            visits[plan.schedule.batch(index)] += each
        return visits

    def _training_rows(self, record: RowRecord) -> NamedRows:
        table = self._place.data.table
        ids = self._plan.facts.row_digests if table.people is None else table.people[0]
        return record.rows(self._values, ids, self._named or table.source, table.columns)

    def _held_out_rows(self, record: RowRecord) -> NamedRows:
        table = self._place.data.table
        ids = None if table.people is None else table.people[1]
        return record.rows(self._held_out_values, ids, self._named or table.source, table.columns)

    @cached_property
    def _values(self) -> Digests:
        table = self._place.data.table
        return digests_of_values(table.train, table.columns)

    @cached_property
    def _held_out_values(self) -> Digests:
        table = self._place.data.table
        return digests_of_values(table.held_out_rows, table.held_out_columns)


def _digest_of(peers: Iterable[str]) -> int:
    """What `RowRecord.revealed` keeps of the parties that have seen all of a row."""
    digest = row_digests(["\n".join(sorted(peers))], "peers")[0]
    return int(digest >> np.uint64(1)) | 1


def _ways(plan: Plan) -> str:
    """What shows less, the best first."""
    if not plan.fits_shares:
        return "take scheme = 'dp', which shows no number of a person without noise"
    both = "hide = 'both'" if plan.exchange.encrypts else "scheme = 'bfv' with hide = 'both'"
    if not isinstance(plan.loss, QuadraticLoss):
        both += " and loss = 'taylor-logistic'"
    return f"take {both}, or scheme = 'blind', which show no number of a person"


def rank_of(columns: Matrix) -> int:
    """The effective rank of a party's scaled columns, of as many rows as fit in memory.

    Means do not count, as whoever knows some rows can fit a constant.
    """
    rows = dense(columns[: max(1, RANKED_VALUES // columns.shape[1])])
    rows = rows / (np.abs(rows).max() or 1.0)  # squares of large numbers overflow
    sizes = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    left = sizes.sum() - np.cumsum(sizes)
    return int(np.count_nonzero(left > LEFT_OUT * sizes.sum())) + 1


def reveals(inputs: Matrix, weights: FloatArray) -> bool:
    """Whether H = X·θ of one job gives away X to who knows as many rows as it has columns.

    X has shape (N, P), and θ of all rounds (P, C·T). Many rounds alone are not enough: those that
    converge show the same directions again, and leave a part of X open. Numbers that overflow give
    away nothing, so that they are counted.
    """
    rows, columns = inputs.shape
    if rows * columns > RANKED_VALUES or not np.isfinite(weights).all():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.linalg.qr(dense(inputs), mode="r")
        shown = factor @ weights
    if not (np.isfinite(factor).all() and np.isfinite(shown).all()):
        return False
    directions, sizes, _ = np.linalg.svd(shown, full_matrices=False)
    seen = directions[:, sizes > VISIBLE * sizes[0]]
    largest = np.abs(factor).max(axis=0)
    factor /= np.where(largest > 0, largest, 1.0)  # squares overflow, or are rounded to 0
    left = np.linalg.norm(factor - seen @ (seen.T @ factor), axis=0)
    return bool((left <= KNOWN * np.linalg.norm(factor, axis=0)).all())


def _remedy(plan: Plan, most: int) -> str:
    """What a refused job can change, if it may score `most` times."""
    if most < 1 and plan.exchange.shares_parameters:
        return "take scores = 'sums', which show no row, or do not score (eval_every = 'never')"
    ways = "" if plan.learns.predictions == "hidden" else f"; or {_ways(plan)}"
    if most < 1:
        return f"do not score (eval_every = 'never', where a job can do without){ways}"

    def passes(every: int) -> bool:
        return replace(plan.timetable, every=every).times(plan.rounds) <= most

    now = plan.timetable.every
    every = least(1 if now == "doubling" else now, plan.rounds, passes)
    once = "" if every < plan.rounds else " or 0"
    return f"score at most {most} times: eval_every = {every}{once} passes, and less often{ways}"


def require_scoring_guard(
    directory: Path,
    model: SavedModel,
    features: FloatArray,
    rows: FloatArray,
    job: CountedJob,
    *,
    names: tuple[str, ...],
    peers: Iterable[str],
    parties: tuple[PartySettings, ...] = (),
    source: str = "",
    ids: Digests | None = None,
    rounds_show: bool,
    allowed: bool,
) -> Callable[[], None]:
    """Refuse to score new rows of which other models have shown too much.

    A row counts once per model, as scoring it again shows the same numbers. Noisy releases are not
    counted here, nor added up across runs (docs/decisions/0028-scoring-new-rows.md).

    Args:
        directory: of the feature party's records.
        model: its part.
        features: of the rows, unscaled, shape (rows, P).
        rows: what identifies them: the features, or the rows before a recipe.
        job: which the model is of.
        names: of the columns of `rows`.
        peers: all other parties.
        parties: the job's, which may name the population.
        source: the file or data set of the rows.
        ids: their digests, shape (rows,), if they have ids.
        rounds_show: whether rounds of the job show the same of training rows.
        allowed: whether the job allows any number of scorings; rows still count.

    Returns:
        A function that checks again and records the rows. Call it once no other party can refuse.

    Raises:
        FeatureLeakRefused: they would be shown too often.
        DataError: the record of earlier jobs cannot be read.
    """
    path = directory / "rows.safetensors"
    population = named_population(parties, model.header.party) or source
    # With fewer rows than columns the rank of the columns is unknown.
    columns = features.shape[1]
    values = digests_of_values(rows, names)
    rank = columns
    if len(features) >= columns:
        header = model.header
        rank = rank_of(Scaling.fit(features, header.party, header.columns).apply(features))
    count = HeldOutCount(1, model.header.outputs, rank, rounds_show)

    def counted(record: RowRecord) -> None:
        named = record.rows(values, ids, population, tuple(model.header.columns))
        marks, earlier = named.under(model.digest), record.shown("scored", named)
        fresh = ~find(record.models, marks)[1]
        after = earlier + fresh * count.outputs
        trained = record.shown("trained", named)
        trained[record.shown("revealed", named.by_values) == _digest_of(peers)] = 0
        both = (after + trained)[fresh & (trained > 0)].max(initial=0)
        if not allowed:
            most, last = int(after[fresh].max(initial=0)), record.last(named)
            again = "the model that scored these rows before may again"
            count.require_below_limit(most, last, again)
            if both >= rank and not record.only(job, named):
                raise FeatureLeakRefused(
                    f"feature guard: earlier jobs (the last: {last}) and this scoring show {both} "
                    f"columns of predictions of these rows; their effective rank is {rank}, so "
                    f"whoever knows {rank} of these people could then compute the columns of all, "
                    f"or nearly; {again}, "
                    "score other rows, or set allow_feature_leak = true"
                )
        record.note("scored", named, after)
        record.note_models(marks)
        record.note_job(named, tuple(model.header.columns), job)

    def write_down() -> None:
        with RowRecord.changed(path) as record:
            counted(record)

    counted(RowRecord.load(path))
    return write_down
