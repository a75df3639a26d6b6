"""The label guard: what a job's gradients or its end, with earlier jobs, would reveal of labels.

A refusal names the least change that passes. It is found by bisection: changed jobs are counted on
top of the same record.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.blocks import block_rows
from securevfl.data.partition import BatchSchedule
from securevfl.errors import ConfigError, DataError, LabelLeakRefused, PeerViolation
from securevfl.files import content_if_there, only_one, replace_file
from securevfl.protocols.guards.label_ends import End
from securevfl.protocols.guards.people import CountedJob, Digests, OwnTable, Population, own_table
from securevfl.protocols.guards.person_record import (
    FEWEST_SHARE,
    MODEL_LIMIT,
    OTHERS_LIMIT,
    PersonRecord,
    Revealing,
    label_variance,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import COMMITMENT_BYTES, Agreement
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.workplace import Workplace
from securevfl.sparse import Matrix, dense

KEY_BYTES = 32
# Of two targets of the same people, or of two peoples with the same row numbers: 200 rows that have
# nothing to do with each other have an association of 0.07 or so.
LEAST_ASSOCIATION, FEWEST_COMPARED, COMPARED, MOST_CLASSES = 0.2, 50, 20_000, 20
# The variance of predictions, which gradients reveal in place of labels with hide = "both".
NO_LABELS = 1.0


def commitments(plan: Plan, party: str, inputs: Matrix, directory: Path | None) -> bytes:
    """Keyed hashes of a party's scaled columns of every fixed batch, 16 bytes each.

    By them the parties that decrypt its gradients recognize the columns of an earlier job. The key
    stays in the party's directory, so that no other party can try rows. Without a directory there
    are no commitments, and every visit counts. A malicious party could commit to other columns.
    """
    decrypted = party != plan.facts.label_party or plan.job.exchange.hide == "both"
    encrypted = plan.exchange.encrypts and decrypted
    repeats = plan.schedule.repeats and not plan.renews(party)
    if directory is None or not (encrypted and repeats):
        return b""
    key, hashes = _own_key(directory / party), []
    for batch in plan.schedule.fixed:
        people = plan.facts.row_digests[batch]
        rows, (_, columns) = batch[np.argsort(people)], inputs.shape
        digest = hashlib.blake2b(np.sort(people).astype("<u8").tobytes(), key=key, digest_size=16)
        digest.update(f"{(len(rows), columns)}".encode())
        block = block_rows(columns)
        for first in range(0, len(rows), block):
            digest.update(dense(inputs[rows[first : first + block]]).astype("<f8").tobytes())
        hashes.append(digest.digest())
    return b"".join(hashes)


def require_guard(
    party: Party,
    plan: Plan,
    agreement: Agreement,
    labels: Labels | None,
    place: Workplace,
    *,
    resumes: bool = False,
) -> None:
    """Refuse a job whose gradients would reveal too much, or record it before it starts.

    Labels are compared with those of earlier jobs at the label party, under exchanges without
    gradients as well: what is revealed at the end differs by the labels that changed. Where nothing
    is revealed before, what it tells of labels counts too (`label_ends`).

    Args:
        party: the one that decrypts gradients, or has labels that the exchange hides.
        plan: of the job.
        agreement: of all parties.
        labels: of all training rows, at the label party.
        place: with the party's table and the folder of its record. Without one nothing is counted
            over jobs, and only the end of a job by itself is looked at.
        resumes: whether the job was recorded when it started and must not count twice.

    Raises:
        LabelLeakRefused: they would reveal too much.
        PeerViolation: commitments whose length does not fit the number of batches.
        ConfigError: the population that the party names is about others.
        DataError: the record of earlier jobs cannot be read or written.
    """
    directory = place.guard_directory
    if directory is None:
        if labels is not None and plan.exchange.shares_parameters:
            record, own = PersonRecord(), own_table(plan, place.data.table)  # of this job alone
            End(plan, agreement, own, labels, record.welcome(own.ids), record).count()
        return
    # One record for all jobs, whatever a job calls the label party.
    path = directory / "labels.safetensors"
    if labels is None:
        path = directory / party.name / "predictions.safetensors"
    with only_one(path, PersonRecord.NAME):
        earlier, own = PersonRecord.load(path), own_table(plan, place.data.table)
        known = _Known(earlier, own, labels, directory)
        persons, number = earlier.identify(own, known.agrees)
        places, population = earlier.welcome(persons), earlier.populations[number]
        before = population.last if population.jobs else ""
        if before and population.name != own.population:
            before += f", known as {population.name!r}"
        resumes = resumes or place.answer in earlier.answers
        earlier.note(places, own, number, CountedJob.of(plan.job, plan.hash))
        if place.answer is not None:
            earlier.answers.add(place.answer)
        ways = ""
        try:
            if labels is not None:
                ways = _noted(
                    plan,
                    agreement,
                    known,
                    places,
                    population.name,
                    session=place.session,
                    resumes=resumes,
                )
            trial = _Trial(party, agreement, labels, earlier, places)
            record = trial.counted(plan, resumes=resumes) if plan.learns.gradients else earlier
        except LabelLeakRefused as error:
            others = (
                f"; earlier jobs of these people: {before}; if they are other people, give the "
                f"table of {party.name!r} a population of its own"
            )
            raise LabelLeakRefused(f"{error}{ways}{others if before else ''}") from None
        record.save(path)


def _noted(
    plan: Plan,
    agreement: Agreement,
    known: "_Known",
    places: IntArray,
    population: str,
    *,
    session: str,
    resumes: bool,
) -> str:
    """Note labels, and what the end tells of them; returns which exchange would pass."""
    record, labels, allowed = known.record, known.labels, plan.job.job.allow_label_leak
    assert labels is not None  # noqa: S101
    columns, marks = _columns(plan, agreement, population), known.marks(record.people[places])
    record.relabel(places, marks, columns, _batches(plan), allowed=allowed)
    end = End(plan, agreement, known.own, labels, places, record)
    if plan.exchange.shares_parameters:
        end.count(session, resumes=resumes)
    if plan.exchange.shares_parameters or plan.learns.gradients:
        end.require_apart()
    if not plan.exchange.shares_parameters and plan.fits_shares and end.passes:
        return "; scheme = 'blind' reveals no gradient and would pass"
    return ""


def _batches(plan: Plan) -> Sequence[IntArray]:
    """Rows that have gradients together, as far as they are known beforehand."""
    return plan.schedule.fixed if plan.schedule.repeats else [np.arange(plan.facts.rows)]


def _columns(plan: Plan, agreement: Agreement, population: str) -> dict[str, tuple[str, int]]:
    """By peer, a name of its columns in a job on this population, and their number."""
    # Without commitments a job's columns are known by the job.
    digests = {
        peer: hashlib.sha256(agreement.commitments[peer] or plan.hash).hexdigest()
        for peer in agreement.columns
    }
    return {peer: (f"{digests[peer]} {population}", n) for peer, n in agreement.columns.items()}


@dataclass(frozen=True)
class _Trial:
    """Counts variants of a job on top of the record of earlier ones.

    `earlier` has room for the job's rows; `places` are their positions in it.
    """

    party: Party
    agreement: Agreement
    labels: Labels | None
    earlier: PersonRecord
    places: IntArray

    @property
    def variance(self) -> float:
        """Of the values that gradients reveal."""
        return NO_LABELS if self.labels is None else label_variance(self.labels)

    def counted(self, plan: Plan, *, resumes: bool) -> PersonRecord:
        """The record after the job, which must be within the limits unless it overrules them."""
        record = self.after(plan, self.agreement, resumes=resumes)
        record.populations[record.of[self.places[0]]].variance = self.variance
        if not plan.job.job.allow_label_leak:
            model, others = record.revealed(self.places, self.variance)
            exceeds = model > MODEL_LIMIT or others > OTHERS_LIMIT
            self.require(record, plan, _remedy(self, plan) if exceeds else "")
        return record

    def after(self, plan: Plan, agreement: Agreement, *, resumes: bool = False) -> PersonRecord:
        """The record after a job."""
        record = deepcopy(self.earlier)
        gradients = _gradients_of(self.party, plan, agreement, self.labels, resumes=resumes)
        record.add(gradients, self.places)
        return record

    def require(self, record: PersonRecord, plan: Plan, remedy: str = "") -> None:
        """Refuse a record that reveals too much."""
        record.require_within_limits(self.places, self.variance, remedy)
        columns = record.columns_of_sets(self.places[rows] for rows in _batches(plan))
        more = columns > sum(self.agreement.columns.values())
        known_to = self.places if more else None
        record.require_company(self.earlier.history, columns, self.variance, known_to)

    def passes(self, plan: Plan) -> bool:
        """Whether a plan would pass, with columns that are new in its batches."""
        try:
            self.require(self.after(plan, self._agreement(plan)), plan)
        except LabelLeakRefused:
            return False
        return True

    def of_columns(self, columns: int) -> "_Trial":
        """The same job where peers have this many columns together."""
        first, *others = self.agreement.columns
        shares = {first: columns, **dict.fromkeys(others, 0)}
        return replace(self, agreement=replace(self.agreement, columns=shares))

    def _agreement(self, plan: Plan) -> Agreement:
        commits = any(self.agreement.commitments.values()) or not plan.schedule.repeats
        fresh = COMMITMENT_BYTES * len(plan.schedule.fixed) * (commits and plan.schedule.repeats)
        commitments = {
            peer: b"" if plan.renews(peer) else secrets.token_bytes(fresh)
            for peer in self.agreement.columns
        }
        return replace(self.agreement, commitments=commitments)


def _gradients_of(
    party: Party, plan: Plan, agreement: Agreement, labels: Labels | None, *, resumes: bool
) -> Iterator[Revealing]:
    """The gradients that all rounds of a job would reveal to all peers."""
    every_visit = plan.job.job.label_guard == "visits" or not plan.schedule.repeats
    every_visit = every_visit or plan.products > 1
    keys = sorted({plan.schedule.batch_key(index) for index in range(plan.rounds)})
    for peer in party.others:
        values, committed = agreement.columns[peer], agreement.commitments[peer]
        if len(committed) not in (0, COMMITMENT_BYTES * len(plan.schedule.fixed)):
            raise PeerViolation(
                f"{peer} commits to its columns in {len(committed)} bytes, expected "
                f"{COMMITMENT_BYTES} for each of {len(plan.schedule.fixed)} batches"
            )
        renewed = plan.renews(peer)
        model = plan.full_batches and not renewed
        if every_visit or renewed or not committed:
            for index in range(plan.rounds):
                name, rows = f"{plan.hash.hex()} {index}", plan.schedule.batch(index)
                for product in range(plan.products):
                    once = f"{name} {product}" if product else name
                    yield Revealing(peer, values, rows, once, model, may_repeat=resumes)
            continue
        for key in keys:
            rows = plan.schedule.fixed[key]
            kind = "<f8" if labels is not None and is_real(labels) else "<i8"
            what = hashlib.sha256(committed[COMMITMENT_BYTES * key :][:COMMITMENT_BYTES])
            if labels is not None:
                people = plan.facts.row_digests[rows]
                what.update(labels[rows[np.argsort(people)]].astype(kind).tobytes())
            yield Revealing(peer, values, rows, what.hexdigest()[:32], model)


def _remedy(trial: _Trial, plan: Plan) -> str:
    """How to change a refused job so that it reveals less and passes the guard."""
    if plan.products > 1:
        return (
            f"he_per_step makes {plan.products} products a visit and all count: drop it, as one "
            "serves all local steps"
        )
    if any(map(plan.renews, trial.agreement.columns)):
        return _fewer_rounds(trial, plan)
    if plan.full_batches and plan.job.job.label_guard == "visits":
        rounds = _most_rounds(plan, trial.passes)
        passes = f"at most {rounds} rounds pass" if rounds else "not even one round passes"
        return f"every visit counts, of all jobs together, and {passes} here"
    size = _smallest_batch(plan, trial.passes)
    if size is not None and size < plan.facts.rows:
        return f"batch_size = {size} is the smallest that passes, as long as batches stay the same"
    if size is not None:
        return (
            'batches of part of these rows would reveal too much; batch_size = "full" passes, '
            'with local_steps = "exact" for few rounds'
        )
    return _fewer_columns(trial, plan)


def _fewer_rounds(trial: _Trial, plan: Plan) -> str:
    rounds, how = _most_rounds(plan, trial.passes), ""
    if not (rounds or plan.full_batches):
        how = 'with batch_size = "full" '
        rounds = _most_rounds(_with_batch_size(plan, plan.facts.rows), trial.passes)
    passes = f"{how}at most {rounds} rounds pass" if rounds else "not even one round passes"
    what = f"the {plan.loss.name} loss" if plan.loss.weighs_labels else "a network"
    new = f"every gradient of {what} reveals something new, and on these rows {passes}"
    if plan.loss.weighs_labels:
        weighted = plan.job.job.class_weight is not None
        return f"{new}: " + ("drop class_weight" if weighted else "take loss = 'logistic'")
    return new if plan.algorithm.own_components else f"{new}: train linear models"


def _fewer_columns(trial: _Trial, plan: Plan) -> str:
    columns = sum(trial.agreement.columns.values())
    whole = _with_batch_size(plan, plan.facts.rows)
    most = least(columns, 0, lambda each: not each or trial.of_columns(each).passes(whole))
    others = "more rows, or the rows and columns of an earlier job"
    what = "" if plan.full_batches else 'batch_size = "full" with '
    bins = plan.facts.fewer_bins(trial.agreement.columns, most)
    return (
        f"take {what}fewer columns (at most {most} of peers pass{bins}), {others}"
        if most
        else (f"no column of peers passes: take {others}")
    )


def least(fails: int, passes: int, test: Callable[[int], bool]) -> int:
    """Bisect: the passing number next to a failing one; either may be the larger."""
    while abs(passes - fails) > 1:
        middle = (fails + passes) // 2
        if test(middle):
            passes = middle
        else:
            fails = middle
    return passes


def _with_batch_size(plan: Plan, size: int) -> Plan:
    """The same job with other batches; ConfigError if its exchange refuses them."""
    settings = plan.job.job
    other = replace(
        plan,
        job=plan.job.with_settings(batch_size=size),
        schedule=BatchSchedule(plan.facts.row_digests, size, settings.seed, settings.sampling),
    )
    plan.exchange.check(other)
    return other


def _smallest_batch(plan: Plan, passes: Callable[[Plan], bool]) -> int | None:
    """The smallest passing batch size above the plan's, up to all N rows; None if none passes."""
    rows = plan.facts.rows
    if plan.full_batches or plan.batch_size == "full":
        return None

    def test(size: int) -> bool:
        try:
            return passes(_with_batch_size(plan, size))
        except ConfigError:
            return False

    fails = size = plan.batch_size
    # Above N/2 there is only one batch, of all rows.
    while 2 * size <= rows:
        size = min(2 * size, rows // 2)
        if test(size):
            return least(fails, size, test)
        fails = size
        if size == rows // 2:
            break
    return rows if test(rows) else None


def _most_rounds(plan: Plan, passes: Callable[[Plan], bool]) -> int:
    """The most rounds, up to the plan's, that pass; 0 where not even one does."""

    def test(rounds: int) -> bool:
        return rounds == 0 or passes(replace(plan, job=plan.job.with_settings(rounds=rounds)))

    return least(plan.rounds + 1, 0, test)


class _Known:
    """What a record's digests say of a job's labels, or else of its values.

    Args:
        record: of earlier jobs.
        own: the party's table.
        labels: at the label party; None where the record is of a feature party's predictions.
        directory: of the key, by which everybody's labels are kept as digests.
    """

    def __init__(
        self, record: PersonRecord, own: OwnTable, labels: Labels | None, directory: Path
    ) -> None:
        self.record, self.own, self.labels = record, own, labels
        self._key, self._fits = _own_key(directory), 0.0
        self._rounded = np.zeros((0, 2), "<f4") if labels is None else _rounded(labels)

    def marks(self, persons: Digests, rounded: FloatArray | None = None) -> Digests:
        """Keyed digests of every person with its label, on both grids, shape (N, 2).

        By them a later job sees which labels changed.
        """
        values = self._rounded if rounded is None else rounded
        grids = values[:, :1] if np.array_equal(*values.T) else values  # of classes both are equal
        digests = (
            hashlib.blake2b(person + label.tobytes(), key=self._key, digest_size=8).digest()
            for person, both in zip(map(bytes, persons.astype("<u8")[:, None]), grids, strict=True)
            for label in both
        )
        marks = np.frombuffer(b"".join(digests), "<u8").reshape(grids.shape) | np.uint64(1)
        return np.broadcast_to(marks, values.shape)  # 0 stands for no label

    def agrees(
        self, known: NDArray[np.bool_], persons: Digests, population: Population
    ) -> float | None:
        """How well known people's labels, or their values, fit; 0 if no better than by chance.

        Labels fit up to the names of classes. None if too few are known, or if all values of the
        same table have changed, which says nothing.
        """
        rows = np.flatnonzero(known)
        if len(rows) > COMPARED:  # from all of the table, which may be sorted by label
            rows = rows[np.linspace(0, len(rows) - 1, COMPARED).astype(np.int64)]
        record, places = self.record, np.searchsorted(self.record.people, persons[rows])
        if len(rows) < FEWEST_COMPARED:
            return None
        same_values = np.mean(record.values[places] == self.own.values[rows]) >= FEWEST_SHARE
        if self.labels is None:
            if same_values:
                return 1.0
            return None if population.name == self.own.population != "" else 0.0
        current = record.labels[places, record.current[places].astype(np.int64) - 1]
        classes, now = np.unique(self._rounded, axis=0, return_inverse=True)
        if len(classes) > MOST_CLASSES:
            return self._target_fits(rows, persons, current)
        now, before = now.reshape(-1)[rows], np.full(len(rows), len(classes))
        for number, each in enumerate(classes):
            marks = self.marks(persons[rows], np.broadcast_to(each, (len(rows), 2)))
            before[(marks == current).any(axis=1)] = number
        fits = association(now, before)
        few = same_values and np.count_nonzero(now != before) < FEWEST_COMPARED
        # Of a rare class a few corrections leave nothing that fits.
        return max(fits, LEAST_ASSOCIATION) if few or fits >= LEAST_ASSOCIATION else 0.0

    def _target_fits(self, rows: IntArray, persons: Digests, current: Digests) -> float:
        """The share of real targets that are as before, on the grid on which most of them are."""
        assert self.labels is not None  # noqa: S101
        grids = [_rounded(self.labels, finer) for finer in (0, -1, 1)]
        shares = [
            float((self.marks(persons[rows], grid[rows]) == current).any(axis=1).mean())
            for grid in grids
        ]
        best = int(np.argmax(shares))
        if shares[best] < LEAST_ASSOCIATION:
            return 0.0
        if shares[best] > self._fits:
            self._fits, self._rounded = shares[best], grids[best]
        return shares[best]


def association(now: IntArray, before: IntArray) -> float:
    """Cramér's V of two labellings by numbers, less its bias (Bergsma 2013); 1 if one is constant.

    It is 0 for labels that have nothing to do with each other, and 1 for the same ones under any
    names.
    """
    table = np.zeros((now.max() + 1, before.max() + 1))
    np.add.at(table, (now, before), 1)
    table = table[table.any(axis=1)][:, table.any(axis=0)]
    if min(table.shape) == 1:
        return 1.0
    total, sizes = table.sum(), np.array(table.shape)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    chance = (sizes - 1) / (total - 1)
    surplus = max(
        np.sum((table - expected) ** 2 / expected) / total - chance.prod() * (total - 1), 0
    )
    return float(np.sqrt(surplus / (np.min(sizes - (sizes - 1) * chance) - 1)))


def _rounded(labels: Labels, finer: int = 0) -> FloatArray:
    """Labels on two grids that lie half a step apart, shape (N, 2); `finer` by powers of ten.

    A number that was written and read again is the same on one of them; no single target decides
    how fine they are.

    Raises:
        DataError: targets of which float32 makes infinities or zeros, so that others seem equal.
    """
    values = labels.astype("<f8")
    rounded, grid = [values, values], 1.0
    if is_real(labels) and values.any():
        size = np.floor(np.log10(np.median(np.abs(values[values != 0]))))
        grid = 10.0 ** (size - 5 - finer)
        rounded = [np.rint(values / grid) * grid + 0.0, np.floor(values / grid)]
    with np.errstate(over="ignore"):
        found = np.stack(rounded, axis=1).astype("<f4")
    if grid < np.finfo(np.float32).tiny or not np.isfinite(found).all():
        raise DataError(
            "label guard: targets are too small, too large or too far apart for float32, in which "
            "it knows them again: give them in other units, without outliers"
        )
    return found


def _own_key(directory: Path) -> bytes:
    path = directory / "commitment.key"
    key = content_if_there(path, "commitment key")
    if key is None:
        key = secrets.token_bytes(KEY_BYTES)
        replace_file(path, key, "commitment key")
    if len(key) != KEY_BYTES:
        raise DataError(f"commitment key {path}: {len(key)} bytes, expected {KEY_BYTES}")
    return key
