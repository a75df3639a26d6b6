"""Which pads this is about: those that all parties made ahead together, or new ones.

Learns:
    every party: whether the others hold pads that were made ahead, and the name of their batch.
"""

import hashlib
import secrets

from securevfl.errors import PeerViolation
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.wire.codec import Message, message_kind

NAME_BYTES = 16


@message_kind(79, stage="setup")
class NamePads(Message):
    """Set-up, everyone to everyone: which pads does the sender hold?

    `made` says that they were made ahead, and `name` is theirs; else `name` is fresh and random,
    and that of the pads to be made follows from all of them.
    """

    made: bool
    name: bytes


async def agree_on_pads(party: Party, held: str | None) -> str:
    """The name of a batch that all parties have halves of, or will make.

    Args:
        party: who it is.
        held: the name of the pads that this party made ahead, as hex; None where it has none.

    Returns:
        32 hex digits: `held` itself, or a new name.

    Raises:
        PeerViolation: a peer holds pads and this party has none, or the other way round, or others.
    """
    own = NamePads(
        held is not None, secrets.token_bytes(NAME_BYTES) if held is None else bytes.fromhex(held)
    )
    for name in party.others:
        await party.channel.send(name, own)
    said = {party.name: own, **await collect(party.channel, party.others, NamePads)}
    for name in party.others:
        _require_same(name, said[name], own)
    if held is not None:
        return held
    parts = (said[name].name for name in party.names)
    return hashlib.sha256(b"".join(parts)).digest()[:NAME_BYTES].hex()


def _require_same(peer: str, theirs: NamePads, ours: NamePads) -> None:
    if len(theirs.name) != NAME_BYTES:
        raise PeerViolation(f"{peer} names pads in {len(theirs.name)} bytes, expected {NAME_BYTES}")
    if theirs.made != ours.made:
        with_, without = (peer, "this party") if theirs.made else ("this party", peer)
        raise PeerViolation(
            f"{with_} holds pads made ahead and {without} none: all make them again, or nobody"
        )
    if ours.made and theirs.name != ours.name:
        raise PeerViolation(
            f"{peer} holds pads {theirs.name[:4].hex()}, made ahead, and this party "
            f"{ours.name[:4].hex()}: all make them again"
        )
