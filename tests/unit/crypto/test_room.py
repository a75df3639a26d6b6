"""Products that just fit are computed exactly, and one more is refused, by every scheme."""

from collections.abc import Callable

import gmpy2
import numpy as np
import pytest

from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.paillier import PaillierEvaluator, PaillierKeyPeer, PaillierOwner, mask_bits
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, FastPaillierOwner
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.errors import RangeExceeded

KEY_BITS = 384


def product_of(value: int, entry: int, summands: int = 1) -> ProductFormat:
    """A format of one row whose largest product is value·entry·summands."""
    fmt = ProductFormat(1, value, entry, 0, 0, summands=summands, columns=2)
    assert fmt.largest_product == value * entry * summands
    return fmt


# 2^63 − 1 and 2^58 − 1 as products of factors that float64 holds, and one more.
FITS = {
    64: product_of(92737 * 649657, (2**63 - 1) // (92737 * 649657)),
    59: product_of((2**58 - 1) // 177, 177),
}
TOO_LARGE = {64: product_of(2**32, 2**31), 59: product_of(2**30, 2**28)}
SUMMED = {64: product_of(2**31, 2**31, summands=2), 59: product_of(2**29, 2**28, summands=2)}


@pytest.mark.parametrize("bits", [64, 59])
def test_the_largest_product_stays_under_half_the_plaintext_space(bits: int) -> None:
    assert FITS[bits].largest_product == 2 ** (bits - 1) - 1
    FITS[bits].require_room(bits)
    for fmt in (TOO_LARGE[bits], SUMMED[bits]):
        assert fmt.largest_product == 2 ** (bits - 1)
        with pytest.raises(RangeExceeded, match=f"needs {bits + 1} bits, more than the {bits} "):
            fmt.require_room(bits)
        fmt.require_room(bits + 1)


Ends = tuple[Callable[[ProductFormat], KeyOwner], Callable[[bytes, ProductFormat], Evaluator], int]
SCHEMES: dict[str, Ends] = {
    "bfv": (BfvOwner, BfvEvaluator, 59),
    "ckks": (CkksOwner, CkksEvaluator, 64),
    "paillier": (
        lambda fmt: FastPaillierOwner.insecure_for_tests(fmt, KEY_BITS),
        FastPaillierEvaluator.insecure_for_tests,
        64,
    ),
    "phe": (
        lambda fmt: PaillierOwner.insecure_for_tests(fmt, KEY_BITS),
        PaillierEvaluator.insecure_for_tests,
        64,
    ),
}


@pytest.mark.parametrize("scheme", ["bfv", "paillier", "phe"])
def test_the_largest_products_that_fit_come_out_right(scheme: str) -> None:
    make_owner, make_evaluator, bits = SCHEMES[scheme]
    fmt = FITS[bits]
    owner = make_owner(fmt)
    evaluator = make_evaluator(owner.public_bytes, fmt)
    prepared = evaluator.prepare(np.array([[fmt.largest_entry, -fmt.largest_entry]]))
    for value in (fmt.largest_value, -fmt.largest_value):
        reply = evaluator.masked_product(owner.encrypt(np.array([value])), prepared)
        found = unmask(owner.decrypt(reply.ciphertext, 2), reply.mask, evaluator.modulus_bits)
        assert found.tolist() == [value * fmt.largest_entry, -value * fmt.largest_entry]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_both_ends_refuse_products_that_just_do_not_fit(scheme: str) -> None:
    make_owner, make_evaluator, bits = SCHEMES[scheme]
    public = make_owner(FITS[bits]).public_bytes
    make_evaluator(public, FITS[bits])
    for fmt in (TOO_LARGE[bits], SUMMED[bits]):
        with pytest.raises(RangeExceeded, match=f"more than the {bits} of the plaintext space"):
            make_owner(fmt)
        with pytest.raises(RangeExceeded, match=f"more than the {bits} of the plaintext space"):
            make_evaluator(public, fmt)


def test_a_paillier_key_holds_twice_the_largest_masked_product() -> None:
    fmt = product_of(2**31, 2**30)
    # Xᵀv + largest_product + r, r below 2^mask_bits.
    largest = 2 * fmt.largest_product + 2 ** mask_bits(fmt) - 1
    too_small, enough = nearest_modulus(2 * largest, -1), nearest_modulus(2 * largest, 1)
    assert 2 * largest - 10_000 < too_small < 2 * largest < enough < 2 * largest + 10_000
    PaillierKeyPeer.insecure_for_tests(enough.to_bytes(16, "big"), fmt)
    with pytest.raises(RangeExceeded, match="more than the 128 of the Paillier key"):
        PaillierKeyPeer.insecure_for_tests(too_small.to_bytes(16, "big"), fmt)


def nearest_modulus(start: int, direction: int) -> int:
    """The nearest odd number that passes for n: composite, without small factors."""
    primes = gmpy2.primorial(1 << 16)
    n = start + direction
    while gmpy2.gcd(n, primes) != 1 or gmpy2.is_prime(n) or gmpy2.is_power(n):
        n += 2 * direction
    return n
