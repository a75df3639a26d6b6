"""The label guard before a job starts: what its rounds would tell, with what earlier ones did."""

import hashlib
import secrets
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import numpy as np

from securevfl.arrays import FloatArray, Labels, is_real
from securevfl.errors import DataError, PeerViolation
from securevfl.files import only_one, replace_file
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import COMMITMENT_BYTES, Agreement
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.person_record import (
    MODEL_LIMIT,
    OTHERS_LIMIT,
    PersonRecord,
    Told,
    label_variance,
)

KEY_BYTES = 32
# Of a value that is no label, as predictions are where both sides are hidden.
NO_LABELS = 1.0


def commitments(plan: Plan, party: str, inputs: FloatArray, directory: Path | None) -> bytes:
    """Keyed hashes of a party's scaled columns of every fixed batch, 16 bytes each.

    They say to those who decrypt its gradients whether its columns are those of an earlier job. The
    key is the party's own, kept in its directory, so that nobody can try rows. Without one there is
    no commitment, and every visit counts. A commitment holds a semi-honest party only.

    Raises:
        DataError: the key cannot be read or written.
    """
    decrypted = party != plan.facts.label_party or plan.job.exchange.hide == "both"
    encrypted = plan.exchange.encrypts and decrypted
    repeats = plan.schedule.repeats and party not in plan.networks
    if directory is None or not (encrypted and repeats):
        return b""
    key, hashes = _own_key(directory / party), []
    for batch in plan.schedule.fixed:
        people = plan.facts.row_digests[batch]
        rows = inputs[batch[np.argsort(people)]]
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
        record = PersonRecord.load(path)
        places, before = record.welcome(plan.facts.row_digests), record.history.copy()
        record.add(_told(party, plan, agreement, labels, resumes=resumes), places)
        if not plan.job.job.allow_label_leak:
            columns = sum(agreement.columns.values())
            variance = NO_LABELS if labels is None else label_variance(labels)
            record.require_within_limits(places, variance, _remedy(plan, columns, variance))
            record.require_company(before, columns, variance)
        record.save(path)


def _told(
    party: Party, plan: Plan, agreement: Agreement, labels: Labels | None, *, resumes: bool
) -> Iterator[Told]:
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
                    yield Told(peer, values, rows, once, model, may_repeat=resumes)
            continue
        for key in keys:
            rows = plan.schedule.fixed[key]
            kind = "<f8" if labels is not None and is_real(labels) else "<i8"
            what = hashlib.sha256(committed[COMMITMENT_BYTES * key :][:COMMITMENT_BYTES])
            if labels is not None:
                people = plan.facts.row_digests[rows]
                what.update(labels[rows[np.argsort(people)]].astype(kind).tobytes())
            yield Told(peer, values, rows, what.hexdigest()[:32], model)


def _remedy(plan: Plan, columns: int, variance: float) -> str:
    """What would tell less than a job that is refused."""
    rows = plan.facts.rows
    if plan.products > 1:
        return (
            f"he_per_step makes {plan.products} products a visit and all count: drop it, as one "
            "serves all local steps"
        )
    least = ceil(columns / (OTHERS_LIMIT * variance))
    if plan.networks:
        rounds = int(rows * variance * OTHERS_LIMIT / columns)
        passes = f"at most {rounds} rounds pass" if rounds else "not even one round passes"
        new = f"every gradient of a network tells something new, and on these rows {passes}"
        return new if plan.algorithm.own_components else f"{new}: train linear models"
    if plan.full_batches and plan.job.job.label_guard == "visits":
        rounds = int(rows * variance * MODEL_LIMIT / columns)
        return f"at most {rounds} rounds pass here, of all jobs together"
    if plan.full_batches:
        return "take fewer columns or more rows, or the rows and columns of an earlier job"
    if 2 * least <= rows:
        return f"batches of {least} rows or more tell little enough, as long as they stay the same"
    return (
        f"batches would have to have {least} rows and there are {rows}: take batch_size = "
        '"full", with local_steps = "exact" for few rounds'
    )


def _own_key(directory: Path) -> bytes:
    """The party's key of commitments, made when first asked for."""
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
