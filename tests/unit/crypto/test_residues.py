import operator
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.arrays import RingArray
from securevfl.crypto import native
from securevfl.crypto import residues as module
from securevfl.crypto.residues import (
    combined,
    exact_mask,
    pack,
    packed_size,
    scaled_message,
    uniform_mask,
    unpack,
    whole,
)
from securevfl.errors import CryptoError
from tests.ciphertexts import is_uniform

PRIMES = [4294828033, 281474976546817, 1152921504606830593]


@pytest.mark.parametrize("prime", PRIMES)
@given(data=st.data())
def test_sums_of_products_modulo_a_prime_are_exact(prime: int, data: st.DataObject) -> None:
    largest = (1 << 64) - 1
    edge = st.sampled_from([0, 1, (1 << 32) - 1, 1 << 32, largest])
    limbs = data.draw(st.lists(edge | st.integers(0, largest), min_size=1, max_size=5))
    # Those next to 0 and to the prime make quotients that float64 rounds to the wrong side.
    near = st.sampled_from(
        [0, 1, -1, prime // 2, *(pow(max(limb, 1), -1, prime) for limb in limbs)]
    )
    some = near | st.integers(-(1 << 200), 1 << 200)
    factors = data.draw(st.lists(some, min_size=len(limbs), max_size=len(limbs)))
    offset = data.draw(some)
    words = np.array(limbs, np.uint64)[:, None]
    expected = sum(map(operator.mul, limbs, factors)) + offset
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):  # in C, and by numpy
            assert combined(words, factors, offset, prime).tolist() == [expected % prime]
            patch.setattr(native, "found", lambda: native.Missing("not asked"))


@given(st.integers(20, 59), st.data())
def test_messages_are_scaled_to_the_nearest_integer(plain_bits: int, data: st.DataObject) -> None:
    half = 1 << (plain_bits - 1)
    values = data.draw(st.lists(st.integers(-half + 1, half - 1), min_size=1, max_size=20))
    modulus = prod(PRIMES)
    for prime in PRIMES:
        found = scaled_message(np.array(values).view(np.uint64), modulus, 1 << plain_bits, prime)
        expected = [((modulus * v << 1) + (1 << plain_bits)) >> (plain_bits + 1) for v in values]
        assert found.tolist() == [each % prime for each in expected]


@pytest.mark.parametrize("plain", [1 << 40, (1 << 47) + 5])
@pytest.mark.parametrize("edge", [0, 1 << 30])
def test_an_exact_mask_is_uniform_off_the_edges_and_its_share_is_rounded(
    plain: int, edge: int
) -> None:
    """Chi-square over 16 bins of the range and between edges, false alarm 1e-6."""
    residues, share = exact_mask(PRIMES, plain, edge, 4096)
    drawn, modulus = whole(residues, PRIMES), prod(PRIMES)
    found = share.astype(object)
    assert is_uniform(drawn * 16 // modulus, 16)
    assert is_uniform(found * 16 // plain, 16)
    nearest = ((2 * modulus * found + plain) // (2 * plain)) % modulus  # round(q·z/t)
    off = (drawn - nearest + modulus // 2) % modulus - modulus // 2
    reach = modulus // (2 * plain) - edge - 1
    assert np.all(abs(off) <= reach)
    assert is_uniform((off + reach) * 16 // (2 * reach + 1), 16)


def test_an_exact_mask_reaches_its_ends() -> None:
    """With few numbers between edges, each of them comes up, and those beyond never do."""
    prime = PRIMES[1]
    plain = prime // 14
    residues, share = exact_mask([prime], plain, 3, 4096)
    off = residues[0].astype(object) - (2 * prime * share.astype(object) + plain) // (2 * plain)
    assert set(off % prime) == {value % prime for value in range(-3, 4)}


@pytest.mark.parametrize(
    "bound", [7, (1 << 64) - 1, 1 << 64, (5 << 64) + 7, 5 << 64, (3 << 128) + (9 << 64) + 4]
)
def test_numbers_of_several_words_are_all_those_below_a_bound(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers beside the bound, word by word: those from it on are drawn again."""
    bits, rows = bound.bit_length(), -(-bound.bit_length() // 64)
    steps = [sign << 64 * word for word in range(rows) for sign in (1, -1)]
    near = [bound + a + b for a in (0, *steps) for b in (0, *steps)]
    first = [0, *(each for each in near if 0 <= each < 1 << bits)]
    left = iter([*first, *[1] * len(first)])

    def words(count: int) -> RingArray:
        drawn = [next(left) for _ in range(count // rows)]
        found = [[each >> 64 * word & (1 << 64) - 1 for each in drawn] for word in range(rows)]
        found[-1] = [each << -bits % 64 for each in found[-1]]  # unused bits are the lowest
        return np.array(found[::-1], np.uint64).reshape(-1)

    monkeypatch.setattr(module, "uniform_words", words)
    found = module._uniform_words(bound, len(first)).astype(object)
    numbers = sum(row << 64 * word for word, row in enumerate(reversed(found)))
    assert numbers.tolist() == [each if each < bound else 1 for each in first]


@pytest.mark.parametrize("rounded", ["in C", "by numbers"])
@pytest.mark.parametrize("plain_bits", [2, 49, 59])
@pytest.mark.parametrize("primes", [PRIMES, PRIMES[1:], PRIMES[:1]], ids=len)
def test_a_mask_is_uniform_modulo_all_primes_and_its_share_is_rounded(
    primes: list[int], plain_bits: int, rounded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square over 16 bins of the range and of the primes' own, false alarm 1e-6."""
    if rounded == "by numbers":
        monkeypatch.setattr(module, "_rounder", lambda *_: None)
    residues, share = uniform_mask(primes, plain_bits, 4096)
    drawn, modulus = whole(residues, primes), prod(primes)
    assert is_uniform(drawn * 16 // modulus, 16)
    for row, prime in zip(residues, primes, strict=True):
        assert is_uniform(row.astype(object) * 16 // prime, 16)
    off = ((share.astype(object) * modulus - (drawn << plain_bits)) << 1) % (modulus << plain_bits)
    off = np.where(off > modulus << (plain_bits - 1), off - (modulus << plain_bits), off)
    assert np.all(abs(off) <= modulus)
    assert share.max() < 1 << plain_bits


@pytest.mark.parametrize("bits", range(32, 61, 4))
def test_packing_and_unpacking_are_inverse_without_a_spare_bit(bits: int) -> None:
    generator = np.random.default_rng(bits)
    residues = generator.integers(0, 1 << bits, 100, np.uint64, endpoint=False)
    residues[:2] = 0, (1 << bits) - 1
    data = pack(residues, bits)
    assert len(data) == packed_size(100, bits) == 100 * bits // 8
    assert np.array_equal(unpack(data, 100, bits), residues)


@pytest.mark.parametrize("bits", [32, 44, 60])
def test_a_residue_that_would_be_cut_off_is_refused(bits: int) -> None:
    with pytest.raises(CryptoError, match=f"more than {bits} bits"):
        pack(np.array([0, 1 << bits], np.uint64), bits)


@pytest.mark.parametrize(("count", "bits"), [(0, 32), (3, 32), (2, 33), (2, 28), (2, 64), (2, 0)])
def test_what_does_not_pack_is_refused(count: int, bits: int) -> None:
    with pytest.raises(CryptoError):
        packed_size(count, bits)


@pytest.mark.parametrize("size", [0, 10, 12])
def test_another_number_of_bytes_is_refused(size: int) -> None:
    with pytest.raises(CryptoError, match="11 expected"):
        unpack(bytes(size), 2, 44)
