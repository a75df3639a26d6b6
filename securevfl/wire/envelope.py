"""What travels around a message: whose it is, of which job, and what it took to get there.

A ledger counts the bytes of the message and not those of its envelope, so that what a job costs
does not depend on the length of its parties' names.

Layout: b"SVFE", version, job hash, then sender, number, hops, the phases of the path with their
seconds, and the message, as `wire.fields` has them. Bytes from a peer are hostile: `open_envelope`
accepts exactly what `seal` writes.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from securevfl.errors import MalformedMessage
from securevfl.wire import fields
from securevfl.wire.codec import MAX_MESSAGE_BYTES
from securevfl.wire.fields import Reader

ENVELOPE_VERSION = 1
JOB_HASH_BYTES = 32
MAX_ENVELOPE_BYTES = 1 << 16
"""Of an envelope without its message."""

_HEADER = struct.Struct(f"<4sB{JOB_HASH_BYTES}s")


@dataclass(frozen=True)
class Envelope:
    """A message's bytes on their way from one party to another.

    Attributes:
        job: the job's hash, 32 bytes.
        sender: its party.
        number: how many the sender had sent to this receiver before.
        hops: length of the longest chain of round messages that ends in this one, itself left out.
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
        ValueError: a job hash of another length.
    """
    if len(envelope.job) != JOB_HASH_BYTES:
        raise ValueError(f"job hash of {len(envelope.job)} bytes, expected {JOB_HASH_BYTES}")
    # Phases keep their order: sums of seconds come out the same to the bit at both ends.
    path = [
        piece
        for phase, seconds in envelope.path.items()
        for piece in (fields.blob(phase.encode()), fields.number(seconds))
    ]
    return b"".join(
        [
            _HEADER.pack(b"SVFE", ENVELOPE_VERSION, envelope.job),
            fields.blob(envelope.sender.encode()),
            fields.integer(envelope.number),
            fields.integer(envelope.hops),
            fields.integer(len(envelope.path)),
            *path,
            fields.blob(envelope.message),
        ]
    )


def open_envelope(data: bytes, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Envelope:
    """The envelope that `data` encodes; its message stays closed.

    Raises:
        MalformedMessage: anything but the exact bytes of one envelope.
    """
    most = MAX_ENVELOPE_BYTES + max_message_bytes
    if not _HEADER.size <= len(data) <= most:
        raise MalformedMessage(f"envelope of {len(data)} bytes, {_HEADER.size} to {most} accepted")
    magic, version, job = _HEADER.unpack_from(data)
    if magic != b"SVFE":
        raise MalformedMessage("not a securevfl envelope")
    if version != ENVELOPE_VERSION:
        raise MalformedMessage(f"envelope version {version}, this is {ENVELOPE_VERSION}")
    reader = Reader(data, _HEADER.size)
    sender, number, hops = reader.text(), reader.integer(), reader.integer()
    path = _path(reader)
    message = reader.blob()
    reader.finish()
    return Envelope(job, sender, number, hops, path, message)


def _path(reader: Reader) -> dict[str, float]:
    path: dict[str, float] = {}
    for _ in range(reader.integer()):
        phase, seconds = reader.text(), reader.number()
        if phase in path or seconds < 0:
            raise MalformedMessage(f"a path with {phase!r} twice, or negative: {seconds:g} s")
        path[phase] = seconds
        if reader.position > MAX_ENVELOPE_BYTES:
            raise MalformedMessage(f"envelope longer than {MAX_ENVELOPE_BYTES} bytes")
    if not isfinite(sum(path.values())):
        raise MalformedMessage("a path whose seconds have no finite sum")
    return path
