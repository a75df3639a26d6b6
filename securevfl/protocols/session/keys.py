"""Homomorphic keys: making them, sending the public part, and checking a peer's."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import make_evaluator, make_owner
from securevfl.errors import CryptoError, KeyMismatch, PeerViolation
from securevfl.job import ExchangeSettings
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import SETUP
from securevfl.wire.codec import Message, message_kind

T = TypeVar("T")


@message_kind(1, stage="setup")
class PublicKey(Message):
    """Set-up: what a peer needs to compute under the sender's homomorphic key."""

    scheme: str
    material: bytes


class KeyMaker:
    """Makes both ends of a homomorphic key as a job asks for it; tests make small keys."""

    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        """A fresh key."""
        return make_owner(
            settings.scheme,
            product_format,
            key_bits=settings.key_bits,
            engine=settings.engine,
        )

    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        """A peer's end of another party's key."""
        return make_evaluator(
            settings.scheme,
            material,
            product_format,
            key_bits=settings.key_bits,
            engine=settings.engine,
            workers=settings.workers,
        )


async def exchange_keys(
    party: Party,
    settings: ExchangeSettings,
    fmt: ProductFormat,
    *,
    owners: Collection[str],
    keys: KeyMaker,
) -> tuple[KeyOwner | None, dict[str, Evaluator]]:
    """Make this party's key if it owns one, send its public part, and take the other owners'.

    Returns:
        Its own key, if any, and its ends of the others', by owner.

    Raises:
        PeerViolation: a key of another scheme, or one that is none.
        KeyMismatch: a key of another size or format.
    """
    own = None
    if party.name in owners:
        async with party.costs.compute(SETUP):
            own = keys.owner(settings, fmt)
        for name in party.others:
            await party.channel.send(name, PublicKey(settings.scheme, own.public_bytes))
    senders = [name for name in owners if name != party.name]
    received = await collect(party.channel, senders, PublicKey)
    peers = {}
    for name, message in received.items():
        make = partial(keys.evaluator, settings, product_format=fmt)
        peers[name] = await _peer_end(party, name, message, settings.scheme, make)
    return own, peers


async def take_key(party: Party, owner: str, scheme: str, make: Callable[[bytes], T]) -> T:
    """Receive one key of an owner's, of the scheme that is due, and make this party's end of it."""
    _, message = await party.channel.receive([owner], PublicKey)
    return await _peer_end(party, owner, message, scheme, make)


async def _peer_end(
    party: Party, owner: str, message: PublicKey, scheme: str, make: Callable[[bytes], T]
) -> T:
    if message.scheme != scheme:
        raise PeerViolation(f"{owner} sent a key of {message.scheme!r}, {scheme!r} is due")
    async with party.costs.compute(SETUP):
        try:
            return make(message.material)
        except KeyMismatch as error:
            raise KeyMismatch(f"key of {owner}: {error}") from error
        except CryptoError as error:
            raise PeerViolation(f"key of {owner}: {error}") from error
