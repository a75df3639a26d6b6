"""A seed that all parties of a job draw together, so that no one chooses it (Blum 1981).

Each party's Hello commits to 32 bytes. With the Hellos of all others there, it opens them; the seed
is a hash of all openings. No party knows another's bytes when it commits to its own, so the seed is
uniform to every party that draws its bytes honestly, whatever all others do.

A party may leave once it knows the seed, and hope for another in a job that starts anew; or it may
open different bytes to different peers, whose seeds then differ: they refuse each other's keys.
"""

import os
from collections.abc import Mapping
from hashlib import sha256

from securevfl.errors import PeerViolation
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import exchange_with
from securevfl.wire.codec import Message, message_kind

OPENING_BYTES = 32


@message_kind(15, stage="setup")
class SeedOpening(Message):
    """Set-up, every party to every other: the bytes to which the sender's Hello commits."""

    opening: bytes


def fresh_opening() -> bytes:
    """A party's bytes, from the operating system."""
    return os.urandom(OPENING_BYTES)


def commitment(name: str, job_hash: bytes, opening: bytes) -> bytes:
    """The hash of a party's bytes, which hides them; bound to the party and the job."""
    return _hash(b"commitment", job_hash, name.encode(), opening)


async def draw_seed(
    party: Party, job_hash: bytes, own: bytes, commitments: Mapping[str, bytes]
) -> bytes:
    """Open this party's bytes to all others, whose commitments are here; the seed of 32 bytes.

    Raises:
        PeerViolation: a peer opens other bytes than it committed to.
    """
    received = await exchange_with(party.channel, party.others, SeedOpening(own))
    for name, message in received.items():
        if commitment(name, job_hash, message.opening) != commitments[name]:
            raise PeerViolation(f"{name} opens another seed than the one it committed to")
    openings = {party.name: own} | {name: each.opening for name, each in received.items()}
    return _hash(b"seed", job_hash, *(openings[name] for name in party.names))


def _hash(label: bytes, *fields: bytes) -> bytes:
    parts = (b"securevfl joint seed", label, *fields)
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
