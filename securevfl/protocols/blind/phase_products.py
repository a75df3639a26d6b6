"""Ahead of rounds: shares of cos(mρ), sin(mρ), where each of two parties knows a part of ρ.

The *second* party, who owns a key, sends Enc(cos(mρ₂)), Enc(sin(mρ₂)) for every row and odd m; the
*first* replies with the encrypted products by its own cos(mρ₁) + i·sin(mρ₁), minus uniform masks.

Learns: nobody anything; see slot_products.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.session.keys import PublicKey, take_key
from securevfl.protocols.session.party import Party
from securevfl.runtime.costs import AHEAD, SETUP
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner

SCHEME = "bfv-slots"
_IN_FLIGHT = 16


@message_kind(65, stage="ahead", carries="ciphertexts", shows="pads")
class EncryptedPhases(StepMessage):
    """Enc(cos(mρ₂)), Enc(sin(mρ₂)) of the next angles, up to 8192; `step` counts such pairs."""

    parts: Blobs


@message_kind(66, stage="ahead", carries="ciphertexts", shows="pads")
class EncryptedPhaseProducts(StepMessage):
    """Their products by e^{imρ₁}, masked, under the receiver's key."""

    parts: Blobs


async def own_slot_key(party: Party, peer: str, parameters: SlotParameters) -> "SlotOwner":
    """The second party: make a key, send its public part."""
    from securevfl.crypto.slot_products import SlotOwner  # noqa: PLC0415

    async with party.costs.compute(SETUP):
        owner = SlotOwner(parameters)
    await party.channel.send(peer, PublicKey(SCHEME, owner.public_bytes))
    return owner


async def peer_slot_key(party: Party, peer: str, parameters: SlotParameters) -> "SlotEvaluator":
    """The first party: take the second's key.

    Raises:
        PeerViolation: a key of another scheme, or one that is none.
        KeyMismatch: a key of other parameters.
    """
    from securevfl.crypto.slot_products import SlotEvaluator  # noqa: PLC0415

    return await take_key(party, peer, SCHEME, partial(SlotEvaluator, parameters=parameters))


async def products_of_first(
    party: Party, peer: str, evaluator: "SlotEvaluator", parts: IntArray
) -> RingArray:
    """The first party's shares of the products' parts modulo 2^64, shape (2, count).

    Args:
        party: who it is.
        peer: the second party.
        evaluator: its end of the second party's key.
        parts: of its own complex integers, shape (2, count).

    Raises:
        MalformedMessage: bytes that are no ciphertexts of the key.
    """
    shares = np.empty(parts.shape, np.uint64)
    for step, block in enumerate(_blocks(parts.shape[1])):
        _, message = await party.channel.receive([peer], EncryptedPhases, step)
        async with party.costs.compute(AHEAD):
            replies, shares[:, block] = checked(
                peer, evaluator.multiply, message.parts, parts[:, block]
            )
        party.costs.count("products", 2 * (block.stop - block.start))
        await party.channel.send(peer, EncryptedPhaseProducts(step, replies))
    return shares


async def products_of_second(
    party: Party, peer: str, owner: "SlotOwner", parts: IntArray
) -> RingArray:
    """The second party's shares; see `products_of_first`."""
    shares = np.empty(parts.shape, np.uint64)
    blocks = list(_blocks(parts.shape[1]))
    # The first party works while further pairs travel, and nobody holds all of them.
    for step in range(len(blocks) + _IN_FLIGHT):
        if step < len(blocks):
            async with party.costs.compute(AHEAD):
                encrypted = owner.encrypt(np.ascontiguousarray(parts[:, blocks[step]]))
            party.costs.count("encryptions", 2 * (blocks[step].stop - blocks[step].start))
            await party.channel.send(peer, EncryptedPhases(step, encrypted))
        if 0 <= (due := step - _IN_FLIGHT) < len(blocks):
            shares[:, blocks[due]] = await _decrypted(party, peer, owner, due, blocks[due])
    return shares


async def _decrypted(
    party: Party, peer: str, owner: "SlotOwner", step: int, block: slice
) -> RingArray:
    _, message = await party.channel.receive([peer], EncryptedPhaseProducts, step)
    async with party.costs.compute(AHEAD):
        values = checked(peer, owner.decrypt, message.parts, block.stop - block.start)
    party.costs.count("decryptions", values.size)
    record(party.channel, Decrypted(peer, step, values))
    return values


def _blocks(count: int) -> Iterator[slice]:
    for at in range(0, count, DEGREE):
        yield slice(at, min(at + DEGREE, count))
