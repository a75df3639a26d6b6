"""Peers that failed a check of encrypted replies: on record until a person says otherwise.

A failed check tells the peer a bit, and a cheat passes one check in 2^κ. Tried all day it would
pass, so no job with this peer starts until somebody has looked into it. A check that the peer left
is on record too: it may have seen that it would fail. A connection can break in this moment, so a
few of these pass.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from securevfl.errors import CheckFailed, ConfigError
from securevfl.files import content_if_there, only_one, reading, replace_file
from securevfl.protocols.guards.people import CountedJob
from securevfl.protocols.plan import Plan

NAME, _RECORD = "failed_checks.json", "record of failed checks"
MOST_LEFT = 3


class Check(BaseModel):
    """A check that failed, or that was not finished."""

    model_config = ConfigDict(extra="forbid", strict=True)

    peer: str
    job: CountedJob
    failed: bool = False


_CHECKS = TypeAdapter(list[Check])


def checks(directory: Path) -> list[Check]:
    """All on record; a DataError if the file cannot be read."""
    path = directory / NAME
    data = content_if_there(path, _RECORD)
    with reading(f"{_RECORD} {path}"):
        return [] if data is None else _CHECKS.validate_json(data)


@contextmanager
def on_record(directory: Path | None, plan: Plan, peers: Collection[str]) -> Iterator[list[str]]:
    """Note checks with peers; those that end without an error are struck out again.

    Yields:
        A list for the names of peers that fail. They are recorded even if another peer then leaves.

    Raises:
        CheckFailed: the list is not empty at the end.
    """
    job, failed, finished = CountedJob.of(plan.job, plan.hash), list[str](), list[Check]()
    begun = [Check(peer=peer, job=job) for peer in peers]
    _change(directory, add=begun)
    try:
        yield failed
        finished = begun
    finally:
        lost = [Check(peer=peer, job=job, failed=True) for peer in failed]
        _change(directory, add=lost, strike=finished)
    if failed:
        names = ", ".join(map(repr, failed))
        kept = f"; no job with it starts before `securevfl guard trust {failed[0]}`"
        raise CheckFailed(
            f"encrypted replies or requests of {names} are not what the protocol computes: a party "
            "tried to read what is another's, or its machine is broken; the job ends, and its keys "
            f"are gone{kept if directory else ''}"
        )


def require_trust(directory: Path | None, peers: Collection[str]) -> None:
    """Refuse to start with a peer on record.

    Raises:
        ConfigError: it failed a check, or left several.
        DataError: the record cannot be read.
    """
    recorded = [] if directory is None else checks(directory)
    for peer in peers:
        of_peer = [each for each in recorded if each.peer == peer]
        failed = [each for each in of_peer if each.failed]
        if failed or len(of_peer) > MOST_LEFT:
            (last, what) = (
                (failed[-1], "failed a check of encrypted replies")
                if failed
                else (of_peer[-1], f"left {len(of_peer)} jobs when encrypted replies were checked")
            )
            raise ConfigError(
                f"{peer!r} {what}, the last time in job {last.job.name!r} of {last.job.day} "
                f"({last.job.hash}): find out why, then say `securevfl guard trust {peer}`"
            )


def trust(directory: Path, peer: str) -> None:
    """Take a peer off the record."""
    _change(directory, strike=[each for each in checks(directory) if each.peer == peer])


def _change(
    directory: Path | None, add: Collection[Check] = (), strike: Collection[Check] = ()
) -> None:
    if directory is None:
        return
    with only_one(directory / NAME, _RECORD):
        found = checks(directory)
        for each in strike:
            if each in found:
                found.remove(each)
        replace_file(directory / NAME, _CHECKS.dump_json([*found, *add]), _RECORD)
