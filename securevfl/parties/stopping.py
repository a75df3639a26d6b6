"""A job that a party has stopped for good: signed, told to all, and refused from then on."""

import datetime
from contextlib import suppress
from pathlib import Path

from securevfl.errors import PeerNotTrusted
from securevfl.files import content_if_there, reading, replace_file
from securevfl.parties.agreement import Agreement, folder_of
from securevfl.parties.identity import Identity, verify
from securevfl.parties.meeting import Stopped

SIGNED = "stop"
"""The context of signatures."""
STOPPED, TOLD = "stopped.json", "stopped.told"


def stop(state: Path, agreement: Agreement, name: str, identity: Identity) -> Stopped:
    """Stop a job in a party's name; what another party has stopped stays so."""
    if (known := read_stop(state, agreement)) is not None:
        return known
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    signature = identity.sign(SIGNED, _said(agreement, name, at)).hex()
    made = Stopped(by=name, at=at, signature=signature)
    keep_stop(state, agreement, made)
    return made


def keep_stop(state: Path, agreement: Agreement, stopped: Stopped) -> None:
    """Write down that a job is stopped; a PeerNotTrusted unless a party of it has signed that."""
    if stopped.by not in agreement.identities:
        raise PeerNotTrusted("the job is said to be stopped by somebody who is no party of it")
    said, signature = _said(agreement, stopped.by, stopped.at), bytes.fromhex(stopped.signature)
    verify(agreement.identities[stopped.by], SIGNED, said, signature, f"party {stopped.by!r}")
    path = folder_of(state, agreement) / STOPPED
    replace_file(path, stopped.model_dump_json().encode(), "stop")


def read_stop(state: Path, agreement: Agreement) -> Stopped | None:
    """What is written down of it; None of a job that nobody has stopped."""
    path = folder_of(state, agreement) / STOPPED
    data = content_if_there(path, "stop")
    with reading(f"stop {path}"):
        return None if data is None else Stopped.model_validate_json(data)


def all_know(state: Path, agreement: Agreement) -> bool:
    """Whether all peers have been told."""
    return (folder_of(state, agreement) / TOLD).exists()


def note_all_know(state: Path, agreement: Agreement) -> None:
    """Note that all peers have been told."""
    with suppress(OSError):  # then they are told again
        (folder_of(state, agreement) / TOLD).touch(0o600)


def _said(agreement: Agreement, name: str, at: str) -> bytes:
    return agreement.hash + f"{name} {at}".encode()
