"""What a key owner reads off Paillier replies: nothing, whatever it encrypts; and exact shares.

An owner that encrypts oversized numbers puts entries of X where a mask as wide as a product does
not reach.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.crypto import paillier_slots
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.inspection import Oversized
from securevfl.crypto.paillier import (
    PaillierEvaluator,
    PaillierKeyOwner,
    PaillierKeyPeer,
    PaillierOwner,
)
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, FastPaillierOwner
from securevfl.crypto.paillier_slots import WRONG_BITS, Slots
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded
from tests.ciphertexts import is_uniform, numbers, product
from tests.small_keys import insecure
from tests.weakened import NarrowlyMasked, NarrowlyMaskedFast

KEY_BITS = 512  # breakable at once: for speed
WIDTH = 2 * KEY_BITS // 8
FORMAT = ProductFormat(rows=16, value_bound=1.0, matrix_bound=2.0, columns=15)
ENGINES: dict[str, tuple[type[PaillierKeyOwner], type[PaillierKeyPeer], type[PaillierKeyPeer]]] = {
    "phe": (PaillierOwner, PaillierEvaluator, NarrowlyMasked),
    "fast": (FastPaillierOwner, FastPaillierEvaluator, NarrowlyMaskedFast),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def owner(engine: str) -> PaillierKeyOwner:
    return insecure(ENGINES[engine][0], FORMAT, KEY_BITS)


@pytest.mark.parametrize("narrow", [True, False])
def test_oversized_plaintexts_read_entries_only_above_narrow_masks(
    engine: str, owner: PaillierKeyOwner, narrow: bool
) -> None:
    _, honest, weak = ENGINES[engine]
    evaluator = insecure(weak if narrow else honest, owner.public_bytes, FORMAT)
    crafted, largest = Oversized(owner), FORMAT.largest_entry
    entries = np.random.default_rng(1).integers(-largest, largest + 1, (10, 1, 1))
    each = map(evaluator.prepare, entries)
    replies = (evaluator.masked_product(crafted.encrypted(), one) for one in each)
    found = [crafted.entry(reply.ciphertext) for reply in replies]
    # By chance, one entry of ten in 2^17 times.
    assert np.count_nonzero(found == entries.ravel()) in ({10} if narrow else {0, 1})


Encryption = Callable[[PaillierKeyOwner], bytes]


@pytest.mark.parametrize(
    "encrypt",
    [
        lambda owner: owner.encrypt(np.array([FORMAT.largest_value])),
        lambda owner: Oversized(owner).encrypted(),
    ],
    ids=["honest", "oversized"],
)
def test_what_the_owner_decrypts_is_uniform_modulo_n_whatever_it_encrypted(
    engine: str, owner: PaillierKeyOwner, encrypt: Encryption
) -> None:
    encrypted = encrypt(owner)
    _, honest, weak = ENGINES[engine]
    matrix = np.full((1, FORMAT.columns), FORMAT.largest_entry)

    def plains(kind: type[PaillierKeyPeer]) -> NDArray[np.object_]:
        evaluator = insecure(kind, owner.public_bytes, FORMAT)
        prepared = evaluator.prepare(matrix)
        replies: list[int] = []
        while len(replies) < 300:
            replies += numbers(evaluator.masked_product(encrypted, prepared).ciphertext, WIDTH)
        return np.array([owner._private_key.raw_decrypt(number) for number in replies], object)

    n, seen = owner._private_key.public_key.n, plains(honest)
    assert is_uniform(seen * 16 // n, 16)
    assert is_uniform(seen % 16, 16)
    assert not is_uniform(plains(weak) * 16 // n, 16)


@pytest.mark.parametrize(("bits", "count"), [(5 * 90, 4), (5 * 90 + 1, 5)])
def test_slots_fill_a_key_to_its_last_bit(bits: int, count: int) -> None:
    # 46 bits of product, 40 + 4 for 15 products
    assert FORMAT.largest_product.bit_length() == 46
    assert Slots.of(FORMAT, bits, packed=True) == Slots(90, count)
    assert Slots.of(FORMAT, bits, packed=False) == Slots(90, 1)


def test_slots_widen_with_the_products_of_a_job_and_hold_a_word() -> None:
    def width(**changes: Any) -> int:  # noqa: ANN401
        return Slots.of(replace(FORMAT, **changes), 2048, packed=True).width

    assert width(rounds=1000) == 46 + WRONG_BITS + (15 * 1000).bit_length()
    assert width(rounds=10, vectors=10, evaluators=10) == width(rounds=1000)
    assert width(rows=1, value_fraction_bits=0, matrix_fraction_bits=0) == 64


def test_a_key_without_room_for_one_product_is_refused(engine: str) -> None:
    kind, evaluator, _ = ENGINES[engine]
    fmt = replace(FORMAT, columns=3)  # products of 46 + 40 + 2 bits
    with pytest.raises(RangeExceeded, match="need 89 bits, more than the 88 of the Paillier key"):
        insecure(kind, fmt, 88)
    owner = insecure(kind, fmt, 96)
    end = insecure(evaluator, owner.public_bytes, fmt)
    found = product(owner, end, np.array([3]), np.array([[1, -1, 5]]))
    assert found.tolist() == [3, -3, 15]


def test_the_largest_products_of_both_signs_are_exact(engine: str, owner: PaillierKeyOwner) -> None:
    evaluator = insecure(ENGINES[engine][1], owner.public_bytes, FORMAT)
    values = np.full(FORMAT.rows, FORMAT.largest_value)
    signs = np.tile([1, -1, 1, 1, 0, -1, -1, -1], 2)[: FORMAT.columns]
    matrix = np.full((FORMAT.rows, FORMAT.columns), FORMAT.largest_entry) * signs
    expected = [FORMAT.largest_product * sign for sign in signs.tolist()]
    for _ in range(5):
        assert product(owner, evaluator, values, matrix).tolist() == expected


def differences(slots: Slots, products: list[int], modulus: int, mask: int) -> list[int]:
    """What shares say of these products under a mask, centred."""
    packed = sum(each << slots.width * slot for slot, each in enumerate(products))
    both = slots.shares([(packed + mask) % modulus, mask], 2 * slots.count)
    return [int(each) for each in unmask(both[: slots.count], both[slots.count :])]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_mask_within_the_largest_product_of_a_carry_shows_it_and_no_other_does(sign: int) -> None:
    slots, modulus, largest = Slots(90, 3), (1 << 271) - 1, FORMAT.largest_product
    products = [sign * largest] * 3
    # A mask whose slots hold the largest product, or all but that; and one unit less.
    exact = largest + 1 if sign < 0 else (1 << 90) - largest - 2
    mask = sum(exact << 90 * slot for slot in range(3))
    assert differences(slots, products, modulus, mask) == products
    carried = [products[0], products[1] + sign, products[2] + sign]
    beyond = mask + sum(sign * 3 << 90 * slot for slot in range(2))
    assert differences(slots, products, modulus, beyond) == carried


def test_products_come_out_wrong_as_seldom_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier_slots, "WRONG_BITS", 4)
    fmt = ProductFormat(1, 1.9 * 2**60, 1.0, 1, 0, columns=3)  # 62 bits
    slots = Slots.of(fmt, 1 + 3 * 68, packed=True)
    assert slots == Slots(68, 3)
    modulus, draws, wrong = (1 << 204) + 1, np.random.default_rng(2), 0
    products = [fmt.largest_product, -fmt.largest_product, fmt.largest_product]
    for _ in range(4000):
        mask = int.from_bytes(draws.bytes(32), "big") % modulus
        found = differences(slots, products, modulus, mask)
        wrong += found != products
    # Any of a job's three products, with a probability of 2^-4 at most; here about 3 in 64.
    assert 0 < wrong < 4000 / 2**4
