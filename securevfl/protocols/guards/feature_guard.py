"""The feature guard: how much predictions of all jobs reveal about the rows of one party.

A prediction of a linear model shows H = X·θ: C columns in the column space of X. Once another party
has as many columns as X has rank, as many known rows reveal the features of all other rows exactly
(`attacks.held_out`, `attacks.scored_features`).

*Rounds* show columns of training rows to the label party (H_k), and under residuals in clear to
feature parties as well (the label party's part). What one job shows by itself, `train` says before
it starts. The guard counts what several jobs show together: a later one must leave it below the
rank, unless one before has reached it.

*Scorings* show columns of held-out rows and of new rows. The guard allows fewer than the rank where
rounds show every H_k of training rows anyway. Elsewhere it allows `LIMIT` of the rank: at that
limit an attacker that knew four times as many rows as the rank reduced its error by less than a
tenth. One scoring, at the end, is always allowed.

The party whose rows they are counts, since only it knows its rank. It counts per row and over all
jobs: every other θ adds a column. Networks are not counted, since their H is not in the column
space of X, nor are noisy predictions, which an account covers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import HeldOutLeakRefused
from securevfl.job import PartySettings
from securevfl.models.storage import SavedModel
from securevfl.protocols.guards.label_guard import least
from securevfl.protocols.guards.people import CountedJob, Digests, named_population
from securevfl.protocols.guards.row_record import Attempt, Kind, NamedRows, RowRecord
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.workplace import Workplace
from securevfl.sparse import Matrix, dense

LIMIT = 1 / 32
RANKED_VALUES = 1 << 22


@dataclass(frozen=True)
class HeldOutCount:
    """What a job's scorings would show.

    Attributes:
        scorings: the most that this job takes.
        outputs: C, columns per scoring.
        rank: of the party's scaled held-out columns.
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

    def planned(self, earlier: IntArray, *, resumes: bool) -> IntArray:
        """Columns shown of each row after the job; a job that resumes is among the earlier ones."""
        own = self.scorings * self.outputs
        return np.maximum(earlier, own) if resumes else earlier + own

    def require_below_limit(
        self, columns: int, last: str, remedy: str = "score less often"
    ) -> None:
        """Refuse more columns of a row's predictions than are allowed."""
        if columns <= self.allowed:
            return
        before = columns - self.scorings * self.outputs
        earlier = f" after {before} of earlier jobs (the last: {last})" if before > 0 else ""
        raise HeldOutLeakRefused(
            f"feature guard: {self.scorings} scorings x {self.outputs} outputs{earlier} show "
            f"{columns} columns of held-out predictions, at most {self.allowed} expected for "
            f"features of rank {self.rank}: as many as the rank reveal every row to a party that "
            f"knows some; "
            f"{remedy}, hold out other rows, or set allow_feature_leak = true"
        )


class FeatureGuard:
    """Counts one job of one party, in a record that no other party reads.

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
        self._path = None if directory is None else directory / party.name / "rows.safetensors"
        self._named = named_population(plan.job.party, table.name)
        learns = plan.learns
        seen = learns.residuals == "clear" if party.holds_labels else learns.predictions != "hidden"
        linear = party.name not in plan.networks
        self._trains = seen and linear and not plan.exchange.adds_noise
        hidden = plan.algorithm.held_out(plan) == "hidden"
        scores = plan.timetable.times(plan.rounds) > 0 and not (party.holds_labels or hidden)
        self._scores = scores and plan.exchange.counts_held_out(plan.job)
        self._recorded = self._repeats = False
        self._key = place.answer or plan.hash.hex()

    def require(self) -> None:
        """Check the job before any party records anything.

        Raises:
            HeldOutLeakRefused: rounds or scorings would show too much.
            DataError: the record of earlier jobs cannot be read.
        """
        if self._path is not None and (self._trains or self._scores):
            self._counted(RowRecord.load(self._path))

    def write_down(self) -> None:
        """Check again and record the job, before the first round and once nobody can refuse."""
        if self._path is not None and (self._trains or self._scores):
            with RowRecord.changed(self._path) as record:
                self._counted(record)
            self._recorded = True

    @contextmanager
    def rounds(self, done: int) -> Iterator[list[int]]:
        """Take rounds, and take back what those would have shown that have not begun.

        The list is of how many rounds have begun, `done` at first, so that an error or an early end
        counts no more than it showed.
        """
        begun, ended = [done], False
        try:
            yield begun
            ended = True
        finally:
            if self._recorded and not self._repeats:
                with self._changed() as record:
                    self._settle(record, begun[-1], ended=ended)

    def _settle(self, record: RowRecord, begun: int, *, ended: bool) -> None:
        attempt = record.attempts.get(self._key)
        if attempt is None:  # forgotten meanwhile
            return
        if self._trains:
            rows, now = self._training_rows(record), self._columns(begun)
            counts: tuple[tuple[Kind, int], ...]
            counts = ("trained", attempt.at_most), ("at_least", attempt.at_least)
            for kind, before in counts:
                record.note(kind, rows, record.shown(kind, rows) - self._columns(before) + now)
        record.attempts[self._key] = Attempt(at_most=begun, at_least=begun, ended=ended)

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

    def _counted(self, record: RowRecord) -> None:
        """Count the job in a record of earlier ones."""
        place, plan = self._place, self._plan
        known = record.attempts.get(self._key)
        again = place.answer is not None and known is not None
        goes_on, columns = place.resume is not None or again, place.data.table.columns
        self._repeats = again and known is not None and known.ended
        job = CountedJob.of(plan.job, plan.hash)
        before = known if goes_on and known is not None else Attempt(at_most=0)
        if self._trains:
            rows, own = self._training_rows(record), self._columns(plan.rounds)
            others = np.maximum(record.shown("trained", rows) - self._columns(before.at_most), 0)
            if not self._repeats:
                # Other jobs may have come between two attempts at this one.
                self._require_rounds(record, rows, others, own)
                record.note("trained", rows, others + own)
            record.note_job(rows, columns, job)
        if self._scores and not self._repeats:
            rows = self._held_out_rows(record)
            scorings, outputs = plan.timetable.times(plan.rounds), plan.loss.outputs
            count = HeldOutCount(scorings, outputs, rank_of(self._held_out), self._rounds_show)
            after = count.planned(record.shown("scored", rows), resumes=goes_on)
            most = int(after.max())
            if not plan.job.job.allow_feature_leak:
                remedy = ""
                if most > count.allowed:
                    remedy = _remedy(plan, (count.allowed - most) // outputs + scorings)
                count.require_below_limit(most, record.last(rows), remedy)
            record.note("scored", rows, after)
            record.note_job(rows, columns, job)
        if not self._repeats:
            record.attempts[self._key] = before.model_copy(update={"at_most": plan.rounds})

    def _require_rounds(
        self, record: RowRecord, rows: NamedRows, earlier: IntArray, own: IntArray
    ) -> None:
        """Refuse rounds that, with those of earlier jobs, show as many columns as the rank.

        Rows that earlier jobs have shown in so many columns have nothing left to hide.
        """
        if self._plan.job.job.allow_feature_leak or not earlier.any():
            return
        shown, rank = earlier + record.shown("scored", rows), rank_of(self._inputs)
        again = (earlier > 0) & (record.shown("at_least", rows) < rank)
        columns = int((shown + own)[again].max(initial=0))
        last = record.attempts.get(self._key)
        restarts = last is not None and not last.ended and int(own.max()) >= rank
        # A job that may show all by itself may start again after its end was lost.
        if columns < rank or restarts:
            return
        plan, name = self._plan, self._party.name
        before = int(shown[again].max())

        def passes(rounds: int) -> bool:
            return int((shown + self._columns(rounds))[again].max()) < rank

        most = least(plan.rounds, 0, lambda rounds: rounds == 0 or passes(rounds))
        fewer = f"or at most {most} rounds pass, " if most else ""
        raise HeldOutLeakRefused(
            f"feature guard: earlier jobs (the last: {record.last(rows)}) showed the other side "
            f"{before} columns of predictions of rows of {name!r}, and up to {columns - before} "
            f"more would be as many as their rank {rank}: whoever knows {rank} of these people "
            f"could compute the columns of all; {_ways(plan)}, {fewer}or set "
            "allow_feature_leak = true; if these are other people, give their table a population "
            "of its own"
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
        return record.rows(table.train, ids, self._named or table.source, table.columns)

    def _held_out_rows(self, record: RowRecord) -> NamedRows:
        table = self._place.data.table
        ids = None if table.people is None else table.people[1]
        return record.rows(table.held_out_rows, ids, self._named or table.source, table.columns)


def _ways(plan: Plan) -> str:
    """What shows less, the best first."""
    if plan.exchange.encrypts:
        return "hide = 'both' or scheme = 'blind' shows no number of a person"
    return "scheme = 'bfv' with hide = 'both', or scheme = 'blind', shows no number of a person"


def rank_of(columns: Matrix) -> int:
    """The rank of a party's columns, of as many rows as fit in memory.

    All rows may have a higher rank, so this never allows too much.
    """
    rows = max(1, RANKED_VALUES // columns.shape[1])
    return int(np.linalg.matrix_rank(dense(columns[:rows])))


def _remedy(plan: Plan, most: int) -> str:
    """What a refused job can change, if it may score `most` times."""
    if most < 1 and plan.exchange.shares_parameters:
        return "take scores = 'sums', which show no row, or do not score (eval_every = 'never')"
    if most < 1:
        return "do not score (eval_every = 'never', where a job can do without)"

    def passes(every: int) -> bool:
        return replace(plan.timetable, every=every).times(plan.rounds) <= most

    now = plan.timetable.every
    every = least(1 if now == "doubling" else now, plan.rounds, passes)
    once = "" if every < plan.rounds else " or 0"
    return f"score at most {most} times: eval_every = {every}{once} passes, and less often"


def require_scoring_guard(
    directory: Path,
    model: SavedModel,
    features: FloatArray,
    rows: FloatArray,
    job: CountedJob,
    *,
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
        parties: the job's, which may name the population.
        source: the file or data set of the rows.
        ids: their digests, shape (rows,), if they have ids.
        rounds_show: whether rounds of the job show the same of training rows.
        allowed: whether the job allows any number of scorings; rows still count.

    Returns:
        A function that checks again and records the rows. Call it once no other party can refuse.

    Raises:
        HeldOutLeakRefused: they would be shown too often.
        DataError: the record of earlier jobs cannot be read.
    """
    path = directory / "rows.safetensors"
    population = named_population(parties, model.header.party) or source
    # With fewer rows than columns the rank of the columns is unknown.
    columns = features.shape[1]
    centred = features - features.mean(axis=0)
    rank = columns if len(features) < columns else int(np.linalg.matrix_rank(centred))
    count = HeldOutCount(1, model.header.outputs, rank, rounds_show)

    def counted(record: RowRecord) -> None:
        named = record.rows(rows, ids, population, tuple(model.header.columns))
        marks, earlier = named.under(model.digest), record.shown("scored", named)
        fresh = ~np.isin(marks, record.models)
        after = np.where(fresh, count.planned(earlier, resumes=False), earlier)
        if not allowed:
            count.require_below_limit(
                int(after[fresh].max(initial=0)),
                record.last(named),
                "the model that scored these rows before may again",
            )
        record.note("scored", named, after)
        record.note_models(marks)
        record.note_job(named, tuple(model.header.columns), job)

    def write_down() -> None:
        with RowRecord.changed(path) as record:
            counted(record)

    counted(RowRecord.load(path))
    return write_down
