"""What travels around a message: whose it is, of which job, and what it took to get there.

A ledger counts the bytes of the message and not those of its envelope, so that what a job costs
does not depend on the length of its parties' names.

Layout: a header of one size (b"SVFE", version, job hash, number, hops, bytes of the sender's name,
bytes of the phases' names), these names in UTF-8, the phases' with a zero byte between two, then as
many doubles as there are phases, then the message up to the end. All little-endian. Bytes from a
peer are hostile: `open_envelope` accepts exactly what `seal` writes.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from securevfl.errors import MalformedMessage
from securevfl.wire.codec import MAX_MESSAGE_BYTES

ENVELOPE_VERSION = 1
JOB_HASH_BYTES = 32
KEPT_NAMES = 64

# Names have 16 bits for their length: an envelope is short however long its message is.
_HEADER = struct.Struct(f"<4sB{JOB_HASH_BYTES}sQQHH")


@dataclass(frozen=True)
class Envelope:
    """A message's bytes on their way from one party to another.

    Attributes:
        job: the job's hash, 32 bytes.
        sender: its party.
        number: how many the sender had sent to this receiver before.
        hops: length of the longest chain of round messages that ends at the sender.
        path: the sender's seconds by phase, see `runtime.costs`; its own word and no more.
        message: the bytes of one message; nothing here looks into them.
    """

    job: bytes
    sender: str
    number: int
    hops: int
    path: Mapping[str, float]
    message: bytes


def seal(envelope: Envelope) -> bytes:
    """The bytes of an envelope with its message.

    Raises:
        ValueError: a job hash of another length, or a phase without a name.
    """
    if len(envelope.job) != JOB_HASH_BYTES:
        raise ValueError(f"job hash of {len(envelope.job)} bytes, expected {JOB_HASH_BYTES}")
    sender, path = envelope.sender.encode(), envelope.path
    names = _names(tuple(path))
    header = _HEADER.pack(
        b"SVFE",
        ENVELOPE_VERSION,
        envelope.job,
        envelope.number,
        envelope.hops,
        len(sender),
        len(names),
    )
    # Phases keep their order: sums of seconds come out the same to the bit at both ends.
    seconds = struct.pack(f"<{len(path)}d", *path.values())
    return b"".join((header, sender, names, seconds, envelope.message))


def open_envelope(data: bytes, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Envelope:
    """The envelope that `data` encodes; its message stays closed.

    Raises:
        MalformedMessage: anything but the exact bytes of one envelope.
    """
    if len(data) < _HEADER.size:
        raise MalformedMessage(f"envelope of {len(data)} bytes is shorter than its header")
    magic, version, job, number, hops, sender_bytes, names_bytes = _HEADER.unpack_from(data)
    if magic != b"SVFE":
        raise MalformedMessage("not a securevfl envelope")
    if version != ENVELOPE_VERSION:
        raise MalformedMessage(f"envelope version {version}, this is {ENVELOPE_VERSION}")
    names_at = _HEADER.size + sender_bytes
    path_at = names_at + names_bytes
    try:
        sender = data[_HEADER.size : names_at].decode()
        phases = _phases(data[names_at:path_at])
    except UnicodeDecodeError as error:
        raise MalformedMessage("a name in an envelope is not UTF-8") from error
    message_at = path_at + 8 * len(phases)
    if message_at > len(data):
        raise MalformedMessage(f"envelope of {len(data)} bytes is shorter than it says")
    if len(data) - message_at > max_message_bytes:
        raise MalformedMessage(
            f"message of {len(data) - message_at} bytes, at most {max_message_bytes} accepted"
        )
    seconds = struct.unpack_from(f"<{len(phases)}d", data, path_at)
    if min(seconds, default=0.0) < 0 or not isfinite(sum(seconds)):
        raise MalformedMessage("a path whose seconds are negative, or have no finite sum")
    path = dict(zip(phases, seconds, strict=True))
    return Envelope(job, sender, number, hops, path, data[message_at:])


# A party's phases hardly ever change from one message to the next.
@lru_cache(maxsize=KEPT_NAMES)
def _names(phases: tuple[str, ...]) -> bytes:
    if "" in phases:
        raise ValueError("a phase without a name")
    return "\0".join(phases).encode()


@lru_cache(maxsize=KEPT_NAMES)
def _phases(names: bytes) -> tuple[str, ...]:
    phases = tuple(names.decode().split("\0")) if names else ()
    if len(set(phases)) < len(phases) or "" in phases:
        raise MalformedMessage("a path with a phase twice, or without a name")
    return phases
