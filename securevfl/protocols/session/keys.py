"""Homomorphic keys: making them, sending the public part, and checking a peer's."""

from collections.abc import Collection
from typing import Protocol

from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import make_evaluator, make_owner
from securevfl.errors import CryptoError, KeyMismatch, PeerViolation
from securevfl.job import ExchangeSettings
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import SETUP
from securevfl.wire.codec import Message, message_kind


@message_kind(1, stage="setup")
class PublicKey(Message):
    """Set-up: what a peer needs to compute under the sender's homomorphic key."""

    scheme: str
    material: bytes


class KeyMaker(Protocol):
    """Makes both ends of a homomorphic key; tests pass one that makes small keys."""

    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        """A fresh key."""

    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        """A peer's end of another party's key."""


class SchemeKeys:
    """Keys as the job file asks for them."""

    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        """A fresh key of the job's scheme."""
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
    """Make this party's key if it owns one, send its public part, and take the others'.

    Args:
        party: who it is.
        settings: the job's exchange.
        fmt: what the keys are for.
        owners: who owns a key.
        keys: makes them.

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
        if message.scheme != settings.scheme:
            raise PeerViolation(
                f"{name} sent a key of {message.scheme!r}, the job says {settings.scheme!r}"
            )
        async with party.costs.compute(SETUP):
            peers[name] = _peer_evaluator(name, settings, message.material, fmt, keys)
    return own, peers


def _peer_evaluator(
    peer: str, settings: ExchangeSettings, material: bytes, fmt: ProductFormat, keys: KeyMaker
) -> Evaluator:
    try:
        return keys.evaluator(settings, material, fmt)
    except KeyMismatch as error:
        raise KeyMismatch(f"key of {peer}: {error}") from error
    except CryptoError as error:
        raise PeerViolation(f"key of {peer}: {error}") from error
