"""The label guard: what a job's gradients would tell of labels, with those of earlier jobs.

A job that is refused is told what it would have to be to pass. Nothing of that is estimated: a
changed job is counted on top of the same record, and the least change that passes is found by
halving.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from securevfl.arrays import IntArray, Labels, is_real
from securevfl.data.partition import BatchSchedule
from securevfl.errors import ConfigError, DataError, LabelLeakRefused, PeerViolation
from securevfl.files import only_one, replace_file
from securevfl.protocols.guards.person_record import (
    MODEL_LIMIT,
    OTHERS_LIMIT,
    PersonRecord,
    Revealing,
    label_variance,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import COMMITMENT_BYTES, Agreement
from securevfl.protocols.session.gathering import Party
from securevfl.sparse import Matrix, dense

KEY_BYTES = 32
# Of a value that is no label, as predictions are where both sides are hidden.
NO_LABELS = 1.0


def commitments(plan: Plan, party: str, inputs: Matrix, directory: Path | None) -> bytes:
    """Keyed hashes of a party's scaled columns of every fixed batch, 16 bytes each.

    They say to those who decrypt its gradients whether its columns are those of an earlier job. The
    key is the party's own, kept in its directory, so that nobody can try rows. Without one there is
    no commitment, and every visit counts. A commitment holds a semi-honest party only.
    """
    decrypted = party != plan.facts.label_party or plan.job.exchange.hide == "both"
    encrypted = plan.exchange.encrypts and decrypted
    repeats = plan.schedule.repeats and party not in plan.networks
    if directory is None or not (encrypted and repeats):
        return b""
    key, hashes = _own_key(directory / party), []
    for batch in plan.schedule.fixed:
        people = plan.facts.row_digests[batch]
        rows = dense(inputs[batch[np.argsort(people)]])
        digest = hashlib.blake2b(np.sort(people).astype("<u8").tobytes(), key=key, digest_size=16)
        digest.update(f"{rows.shape}".encode() + rows.astype("<f8").tobytes())
        hashes.append(digest.digest())
    return b"".join(hashes)


def require_guard(
    party: Party,
    plan: Plan,
    agreement: Agreement,
    labels: Labels | None,
    directory: Path | None,
    *,
    resumes: bool = False,
) -> None:
    """Refuse a job whose gradients would tell too much, or write it down before it starts.

    A job that goes on was written down when it started, and is not counted twice.

    Args:
        party: who decrypts gradients.
        plan: of the job.
        agreement: what the parties told each other.
        labels: of all training rows, at the label party.
        directory: where the record is; None counts nothing.
        resumes: whether the job goes on.

    Raises:
        LabelLeakRefused: they would.
        PeerViolation: commitments of another length than there are batches.
        DataError: the record of earlier jobs cannot be read or written.
    """
    if directory is None:
        return
    # Whatever the label party is called in a job, its people are the same.
    path = directory / "labels.safetensors"
    if labels is None:
        path = directory / party.name / "predictions.safetensors"
    with only_one(path, "label guard record"):
        earlier = PersonRecord.load(path)
        places = earlier.welcome(plan.facts.row_digests)
        trial = _Trial(party, agreement, labels, earlier, places)
        record = trial.after(plan, agreement, resumes=resumes)
        if not plan.job.job.allow_label_leak:
            model, others = record.revealed(places, trial.variance)
            exceeds = model > MODEL_LIMIT or others > OTHERS_LIMIT
            trial.require(record, _remedy(trial, plan) if exceeds else "")
        record.save(path)


@dataclass(frozen=True)
class _Trial:
    """Counts jobs on top of the same earlier ones, for the party that decrypts gradients.

    `earlier` is the record so far, with room for the job's rows, whose places in it are `places`.
    """

    party: Party
    agreement: Agreement
    labels: Labels | None
    earlier: PersonRecord
    places: IntArray

    @property
    def variance(self) -> float:
        """Of what gradients tell of."""
        return NO_LABELS if self.labels is None else label_variance(self.labels)

    def after(self, plan: Plan, agreement: Agreement, *, resumes: bool = False) -> PersonRecord:
        """The record after a job."""
        record = deepcopy(self.earlier)
        gradients = _gradients_of(self.party, plan, agreement, self.labels, resumes=resumes)
        record.add(gradients, self.places)
        return record

    def require(self, record: PersonRecord, remedy: str = "") -> None:
        """Refuse what the record would be where too much would be told."""
        record.require_within_limits(self.places, self.variance, remedy)
        columns = sum(self.agreement.columns.values())
        record.require_company(self.earlier.history, columns, self.variance)

    def passes(self, plan: Plan) -> bool:
        """Whether a plan would, of columns that its peers have not shown in such batches before."""
        try:
            self.require(self.after(plan, self._agreement(plan)))
        except LabelLeakRefused:
            return False
        return True

    def of_columns(self, columns: int) -> "_Trial":
        """The same where peers have so many columns together."""
        first, *others = self.agreement.columns
        shares = {first: columns, **dict.fromkeys(others, 0)}
        return replace(self, agreement=replace(self.agreement, columns=shares))

    def _agreement(self, plan: Plan) -> Agreement:
        commits = any(self.agreement.commitments.values()) or not plan.schedule.repeats
        fresh = COMMITMENT_BYTES * len(plan.schedule.fixed) * (commits and plan.schedule.repeats)
        commitments = {
            peer: b"" if peer in plan.networks else secrets.token_bytes(fresh)
            for peer in self.agreement.columns
        }
        return replace(self.agreement, commitments=commitments)


def _gradients_of(
    party: Party, plan: Plan, agreement: Agreement, labels: Labels | None, *, resumes: bool
) -> Iterator[Revealing]:
    """What all rounds of a job would tell all peers."""
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
        model = plan.full_batches and peer not in plan.networks
        if every_visit or not committed:
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
    """What would tell less than a job that is refused, as far as the guard lets it pass."""
    if plan.products > 1:
        return (
            f"he_per_step makes {plan.products} products a visit and all count: drop it, as one "
            "serves all local steps"
        )
    if plan.networks:
        return _fewer_rounds_of_networks(trial, plan)
    if plan.full_batches and plan.job.job.label_guard == "visits":
        rounds = _most_rounds(plan, trial.passes)
        passes = f"at most {rounds} rounds pass" if rounds else "not even one round passes"
        return f"every visit counts, of all jobs together, and {passes} here"
    size = _smallest_batch(plan, trial.passes)
    if size is not None and size < plan.facts.rows:
        return f"batch_size = {size} is the smallest that passes, as long as batches stay the same"
    if size is not None:
        return (
            'batches of part of these rows would tell too much, and batch_size = "full" passes, '
            'with local_steps = "exact" for few rounds'
        )
    return _fewer_columns(trial, plan)


def _fewer_rounds_of_networks(trial: _Trial, plan: Plan) -> str:
    rounds, how = _most_rounds(plan, trial.passes), ""
    if not (rounds or plan.full_batches):
        how = 'with batch_size = "full" '
        rounds = _most_rounds(_with_batch_size(plan, plan.facts.rows), trial.passes)
    passes = f"{how}at most {rounds} rounds pass" if rounds else "not even one round passes"
    new = f"every gradient of a network tells something new, and on these rows {passes}"
    return new if plan.algorithm.own_components else f"{new}: train linear models"


def _fewer_columns(trial: _Trial, plan: Plan) -> str:
    columns = sum(trial.agreement.columns.values())
    whole = _with_batch_size(plan, plan.facts.rows)
    most = least(columns, 0, lambda each: not each or trial.of_columns(each).passes(whole))
    others = "more rows, or the rows and columns of an earlier job"
    what = "" if plan.full_batches else 'batch_size = "full" with '
    return (
        f"take {what}fewer columns (at most {most} of peers pass), {others}"
        if most
        else (f"no column of peers passes: take {others}")
    )


def least(fails: int, passes: int, test: Callable[[int], bool]) -> int:
    """The number that passes next to one that fails; the given two may lie either way round."""
    while abs(passes - fails) > 1:
        middle = (fails + passes) // 2
        if test(middle):
            passes = middle
        else:
            fails = middle
    return passes


def _with_batch_size(plan: Plan, size: int) -> Plan:
    """The same job with other batches; ConfigError where its exchange does not take them."""
    settings = plan.job.job
    other = replace(
        plan,
        job=plan.job.with_settings(batch_size=size),
        schedule=BatchSchedule(plan.facts.row_digests, size, settings.seed, settings.sampling),
    )
    plan.exchange.check(other)
    return other


def _smallest_batch(plan: Plan, passes: Callable[[Plan], bool]) -> int | None:
    """The smallest batch size above the plan's that passes; N where only all rows together do.

    None where not even these do.
    """
    rows = plan.facts.rows
    if plan.full_batches or plan.batch_size == "full":
        return None

    def test(size: int) -> bool:
        try:
            return passes(_with_batch_size(plan, size))
        except ConfigError:
            return False

    fails = size = plan.batch_size
    # Beyond half of the rows there is one batch, of all of them.
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


def _own_key(directory: Path) -> bytes:
    path = directory / "commitment.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(KEY_BYTES)
        replace_file(path, key, "commitment key")
    except OSError as error:
        raise DataError(f"commitment key {path} cannot be read: {error.strerror}") from error
    if len(key) != KEY_BYTES:
        raise DataError(f"commitment key {path}: {len(key)} bytes, expected {KEY_BYTES}")
    return key
