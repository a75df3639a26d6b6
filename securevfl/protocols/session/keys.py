"""Homomorphic keys: generation, exchange of public parts, and checks of peers' keys."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from securevfl.crypto.scheme import KEY_SEED_BYTES, Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import SCHEMES, make_evaluator, make_owner
from securevfl.errors import CryptoError, KeyMismatch, PeerViolation
from securevfl.job import ExchangeSettings
from securevfl.lazy import Lazy
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import collect, tell
from securevfl.runtime.costs import SETUP
from securevfl.wire.codec import Message, message_kind

if TYPE_CHECKING:
    from securevfl.crypto import ring_products, slot_products
    from securevfl.crypto.ring_layout import RingProductFormat
    from securevfl.crypto.slot_parameters import SlotParameters
else:  # SEAL takes a second to load
    ring_products = Lazy("securevfl.crypto.ring_products")
    slot_products = Lazy("securevfl.crypto.slot_products")

T = TypeVar("T")


@message_kind(1, stage="setup")
class PublicKey(Message):
    """Set-up: the public part of the sender's homomorphic key."""

    scheme: str
    material: bytes


class KeyMaker:
    """Makes both ends of a homomorphic key with a job's settings; tests make small keys."""

    def owner(
        self, settings: ExchangeSettings, product_format: ProductFormat, seed: bytes
    ) -> KeyOwner:
        """A fresh key, with the seed that all parties drew if the scheme needs one."""
        size, engine = settings.key_bits, settings.engine
        return make_owner(settings.scheme, product_format, key_bits=size, engine=engine, seed=seed)

    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        """The public end of another party's key."""
        # Only Paillier's products take processes.
        workers = settings.workers if settings.scheme == "paillier" else None
        return make_evaluator(
            settings.scheme,
            material,
            product_format,
            key_bits=settings.key_bits,
            engine=settings.engine,
            workers=workers or 1,
        )

    def ring_owner(
        self, product_format: "RingProductFormat", seed: bytes
    ) -> "ring_products.RingProductOwner":
        """A fresh key for products in the ring."""
        return ring_products.RingProductOwner(product_format, seed)

    def ring_evaluator(
        self, material: bytes, product_format: "RingProductFormat"
    ) -> "ring_products.RingProductEvaluator":
        """This party's end of another party's key."""
        return ring_products.RingProductEvaluator(material, product_format)

    def slot_owner(self, parameters: "SlotParameters", seed: bytes) -> "slot_products.SlotOwner":
        """A fresh key for products in slots."""
        return slot_products.SlotOwner(parameters, seed)

    def slot_evaluator(
        self, material: bytes, parameters: "SlotParameters"
    ) -> "slot_products.SlotEvaluator":
        """This party's end of another party's key."""
        return slot_products.SlotEvaluator(material, parameters)


async def exchange_keys(
    party: Party,
    settings: ExchangeSettings,
    fmt: ProductFormat,
    *,
    owners: Collection[str],
    keys: KeyMaker,
    seed: bytes,
) -> tuple[KeyOwner | None, dict[str, Evaluator]]:
    """Make this party's key if it is among the `owners`, and exchange public parts.

    Public keys of lattice schemes depend on the `seed` that all parties drew, see seeded_keys.

    Returns:
        This party's own key, if any, and its ends of the other owners' keys.

    Raises:
        PeerViolation: a key of another scheme, or bytes that are no key.
        KeyMismatch: a key of another size, format or seed.
    """
    own = None
    if party.name in owners:
        async with party.costs.compute(SETUP):
            own = keys.owner(settings, fmt, seed)
        await tell(party.channel, party.others, PublicKey(settings.scheme, own.public_bytes))
    senders = [name for name in owners if name != party.name]
    received = await collect(party.channel, senders, PublicKey)
    peers, due = {}, seed if SCHEMES[settings.scheme].seeded else None
    for name, message in received.items():
        make = partial(keys.evaluator, settings, product_format=fmt)
        peers[name] = await _peer_end(party, name, message, settings.scheme, make, seed=due)
    return own, peers


async def take_key(
    party: Party, owner: str, scheme: str, make: Callable[[bytes], T], seed: bytes
) -> T:
    """Receive an owner's public key, which starts with the joint seed; make this party's end."""
    _, message = await party.channel.receive([owner], PublicKey)
    return await _peer_end(party, owner, message, scheme, make, seed=seed)


async def _peer_end(
    party: Party,
    owner: str,
    message: PublicKey,
    scheme: str,
    make: Callable[[bytes], T],
    *,
    seed: bytes | None,
) -> T:
    if message.scheme != scheme:
        raise PeerViolation(f"{owner} sent a key of {message.scheme!r}, expected {scheme!r}")
    if seed is not None and message.material[:KEY_SEED_BYTES] != seed:
        raise KeyMismatch(f"key of {owner}: its seed is not the one that all parties drew")
    async with party.costs.compute(SETUP):
        try:
            return make(message.material)
        except KeyMismatch as error:
            raise KeyMismatch(f"key of {owner}: {error}") from error
        except CryptoError as error:
            raise PeerViolation(f"key of {owner}: {error}") from error
