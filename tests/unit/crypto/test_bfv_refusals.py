"""What the ends of every product under BFV refuse: inputs, replies and keys of others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto import ring
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_core import reply_bytes
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.seal_codec import SEED_BYTES, _body, _framed, to_bytes
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.errors import CryptoError, KeyMismatch
from tests.ciphertexts import format_of

BFV = format_of(100, 3000, 4.0, (18, 12), latency_ms=20.0)
RING = RingProductFormat(900, 60, 20, 1 << 12, products=1000)
SLOTS = SlotParameters.of(100_000)
GENERATOR = np.random.default_rng(1)


@dataclass(frozen=True)
class Product:
    """One use of BFV: how its ends are made, and what goes there and back, in one piece."""

    owner: Callable[[], Any]
    evaluator: Callable[[bytes], Any]
    other_key: Callable[[], Any]
    encrypt: Callable[[Any], bytes]
    answer: Callable[[Any, bytes], bytes]
    decrypt: Callable[[Any, bytes], object]
    replies: int
    revealed: int


def halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


MATRIX = GENERATOR.integers(-4096, 4096, (100, 3000))
RING_MATRIX = GENERATOR.integers(-4096, 4096, (60, 900))
PARTS = GENERATOR.integers(-200, 200, (2, 9))
SIZES = BfvOwner(BFV)._parameters
LAYOUT = RingProductOwner(RING)._layout
PRODUCTS = {
    "bfv": Product(
        lambda: BfvOwner(BFV),
        lambda material: BfvEvaluator(material, BFV),
        lambda: BfvOwner(replace(BFV, value_fraction_bits=24, columns=10)),
        lambda owner: owner.encrypt(np.arange(100)),
        lambda evaluator, data: (
            evaluator.masked_product(data, evaluator.prepare(MATRIX)).ciphertext
        ),
        lambda owner, data: owner.decrypt(data, 3000),
        SIZES.replies(3000),
        len(SIZES.positions(3000)),
    ),
    "ring": Product(
        lambda: RingProductOwner(RING),
        lambda material: RingProductEvaluator(material, RING),
        lambda: RingProductOwner(replace(RING, matrix_bound=1 << 30)),
        lambda owner: owner.encrypt(ring.uniform(900, 20)),
        lambda evaluator, data: evaluator.product(data, RING_MATRIX)[0],
        lambda owner, data: owner.decrypt(data),
        LAYOUT.replies,
        len(LAYOUT.positions()),
    ),
    "slots": Product(
        lambda: SlotOwner(SLOTS),
        lambda material: SlotEvaluator(material, SLOTS),
        lambda: SlotOwner(SlotParameters.of(10_000_000)),
        lambda owner: b"".join(owner.encrypt(PARTS)),
        lambda evaluator, data: b"".join(evaluator.multiply(halves(data), PARTS)[0]),
        lambda owner, data: owner.decrypt(halves(data), 9),
        2,
        DEGREE,
    ),
}


@dataclass(frozen=True)
class Ends:
    """Both ends of a key, an input, and the reply to it."""

    product: Product
    owner: Any
    evaluator: Any
    encrypted: bytes
    reply: bytes


@pytest.fixture(scope="module", params=PRODUCTS)
def ends(request: pytest.FixtureRequest) -> Ends:
    product = PRODUCTS[request.param]
    owner = product.owner()
    evaluator = product.evaluator(owner.public_bytes)
    encrypted = product.encrypt(owner)
    reply = product.answer(evaluator, encrypted)
    product.decrypt(owner, reply)
    return Ends(product, owner, evaluator, encrypted, reply)


def test_bytes_are_what_the_sizes_say(ends: Ends) -> None:
    sizes = ends.owner._sizes
    assert len(ends.reply) == ends.product.replies * reply_bytes(sizes, ends.product.revealed)
    assert len(ends.encrypted) % (sizes.input_bytes + SEED_BYTES) == 0


@pytest.mark.parametrize("cut", [slice(0, -2), slice(0, 0), slice(2, None)])
def test_inputs_and_replies_of_another_length_are_refused(ends: Ends, cut: slice) -> None:
    with pytest.raises(CryptoError, match="bfv inputs of"):
        ends.product.answer(ends.evaluator, ends.encrypted[cut])
    with pytest.raises(CryptoError, match=r"replies of \d+"):
        ends.product.decrypt(ends.owner, ends.reply[cut])


@pytest.mark.parametrize(
    "at",
    [
        slice(0, 100),
        slice(-SEED_BYTES, None),
        *(slice(at - SEED_BYTES, at - SEED_BYTES + 1) for at in (0, 1, 2, 3, 4, 5, 9, 15)),
    ],
)
def test_words_of_an_input_that_are_no_residues_or_no_seed_are_refused(
    ends: Ends, at: slice
) -> None:
    damaged = bytearray(ends.encrypted)
    damaged[at] = b"\xff" * len(damaged[at])
    with pytest.raises(KeyMismatch):
        ends.product.answer(ends.evaluator, bytes(damaged))


def test_replies_under_another_key_and_damaged_ones_are_uniform_numbers(ends: Ends) -> None:
    """A reply is no checksum: connections are authenticated, keys known by their fingerprint."""
    foreign = ends.product.owner()
    damaged = bytearray(ends.reply)
    damaged[100:400] = bytes(300)
    true = np.asarray(ends.product.decrypt(ends.owner, ends.reply))
    of_another = np.asarray(ends.product.decrypt(foreign, ends.reply))
    assert not np.any(of_another == true)
    wrong = np.asarray(ends.product.decrypt(ends.owner, bytes(damaged))) != true
    assert np.count_nonzero(wrong) >= true.size // ends.product.replies // 2  # other replies' hold


def test_replies_without_c1_are_refused_although_they_have_no_noise(ends: Ends) -> None:
    with pytest.raises(KeyMismatch, match="c1 = 0"):
        ends.product.decrypt(ends.owner, bytes(len(ends.reply)))


@pytest.mark.parametrize(
    "material", [b"", b"no key", bytes(1000), b"\x5e\xa1\x10\x04\x03\x02\0\0" + bytes(100)]
)
def test_material_that_is_no_public_key_is_refused(ends: Ends, material: bytes) -> None:
    with pytest.raises(CryptoError):
        ends.product.evaluator(material)


def test_other_keys_and_keys_with_more_or_less_of_them_are_refused(ends: Ends) -> None:
    key = ends.owner.public_bytes
    secret = to_bytes(seal.KeyGenerator(ends.owner._context).secret_key())
    for material in (secret, key + b"\0", key[:-1], ends.product.other_key().public_bytes):
        with pytest.raises(CryptoError):
            ends.product.evaluator(material)


def test_a_public_key_of_numbers_that_are_no_residues_is_refused(ends: Ends) -> None:
    seed, key = ends.owner.public_bytes[:KEY_SEED_BYTES], ends.owner.public_bytes[KEY_SEED_BYTES:]
    words = DEGREE * (len(ends.owner._primes) + 1)
    body = bytearray(_body(key))
    body[-8 * words :] = np.full(words, (1 << 64) - 1, "<u8").tobytes()
    with pytest.raises(KeyMismatch, match="PublicKey"):
        ends.product.evaluator(b"".join([seed, *map(bytes, _framed([bytes(body)]))]))
