"""Peers whose encrypted replies failed a check: on record until a person says otherwise.

A failed check tells the peer a bit about this party's key, and with 1/2^κ a cheat passes. Tried all
day it would pass, so no job with this peer starts until somebody has looked into it.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from securevfl.errors import CheckFailed, ConfigError, DataError
from securevfl.files import only_one, replace_file
from securevfl.protocols.guards.people import CountedJob
from securevfl.protocols.plan import Plan

NAME, _RECORD = "failed_checks.json", "record of failed checks"


class Failure(BaseModel):
    """One failed check."""

    model_config = ConfigDict(extra="forbid", strict=True)

    peer: str
    job: CountedJob


_FAILURES = TypeAdapter(list[Failure])


def failures(directory: Path) -> list[Failure]:
    """All on record; a DataError if the file cannot be read."""
    path = directory / NAME
    try:
        return _FAILURES.validate_json(path.read_bytes()) if path.exists() else []
    except (OSError, ValidationError) as error:
        raise DataError(f"{_RECORD} {path} cannot be read: {error}") from error


def failed_check(directory: Path | None, plan: Plan, peer: str) -> CheckFailed:
    """Record that a peer's replies failed; the error that ends the job."""
    told = ""
    if directory is not None:
        with only_one(directory / NAME, _RECORD):
            failure = Failure(peer=peer, job=CountedJob.of(plan.job, plan.hash))
            found = [*failures(directory), failure]
            replace_file(directory / NAME, _FAILURES.dump_json(found), _RECORD)
        told = f"; no job with {peer!r} starts until `securevfl guard trust {peer}`"
    return CheckFailed(
        f"encrypted replies of {peer!r} are no products of one matrix, or it left when they were "
        f"checked: it tried to read this party's key, or its machine or connection is broken; the "
        f"job ends and its keys are gone{told}"
    )


def require_trust(directory: Path | None, peers: Iterable[str]) -> None:
    """Refuse to start with a peer on record.

    Raises:
        ConfigError: a check of this peer's replies failed before.
        DataError: the record cannot be read.
    """
    for each in [] if directory is None else failures(directory):
        if each.peer in peers:
            raise ConfigError(
                f"encrypted replies of {each.peer!r} failed a check in job {each.job.name!r} of "
                f"{each.job.day} ({each.job.hash}): find out why, then say `securevfl guard trust "
                f"{each.peer}`"
            )


def trust(directory: Path, peer: str) -> list[Failure]:
    """Take a peer off the record; returns its failures."""
    with only_one(directory / NAME, _RECORD):
        found = failures(directory)
        staying = [each for each in found if each.peer != peer]
        replace_file(directory / NAME, _FAILURES.dump_json(staying), _RECORD)
    return [each for each in found if each.peer == peer]
