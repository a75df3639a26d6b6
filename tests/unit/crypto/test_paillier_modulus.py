"""Paillier's modulus: what an owner reads through a false one, and that a false one is refused."""

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from securevfl.crypto import paillier
from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.paillier_modulus import ROOTS, _drawn, modulus_of, with_roots
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import KeyMismatch
from tests.ciphertexts import numbers, wire
from tests.small_keys import insecure

KEY_BITS = 256
SIZE, WIDTH = KEY_BITS // 8, KEY_BITS // 4
FORMAT = ProductFormat(rows=2, value_bound=1.0, matrix_bound=2.0, columns=15)


def false_primes(p: int) -> tuple[mpz, mpz]:
    """The prime p, and a prime q that is 1 modulo p, of KEY_BITS together."""
    q = (mpz(3 << (KEY_BITS - 2)) // p // (2 * p)) * 2 * p + 1
    while not gmpy2.is_prime(q):
        q += 2 * p
    assert (p * q).bit_length() == KEY_BITS
    return mpz(p), q


def test_a_modulus_with_a_class_of_its_own_would_show_entries_past_every_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, q = false_primes(int(gmpy2.next_prime(1 << 40)))
    n = int(p * q)
    monkeypatch.setattr(paillier, "modulus_of", lambda *_: n)
    evaluator = PaillierEvaluator(b"", FORMAT)
    # Bases that differ by more than an entry, in a class that no n-th power leaves.
    base = next(mpz(b) for b in range(2, 99) if gmpy2.powmod(b, (q - 1) // p, q) != 1)
    first = 1 + p * (gmpy2.invert(p, q) * (base - 1) % q)
    encrypted = wire(WIDTH, *(int(gmpy2.powmod(first, power, n)) for power in (1, 32)))
    matrix = np.random.default_rng(4).integers(-15, 16, (2, 15))
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix)).ciphertext
    known = {
        int(gmpy2.powmod(base, (q - 1) // p * (a + 32 * b), q)): (a, b)
        for a in range(-15, 16)
        for b in range(-15, 16)
    }
    found = [known[int(gmpy2.powmod(each, (q - 1) // p, q))] for each in numbers(reply, WIDTH)]
    assert np.array_equal(np.array(found).T, matrix)
    monkeypatch.undo()
    with pytest.raises(KeyMismatch, match="without n-th roots"):
        modulus_of(n.to_bytes(SIZE, "big") * (1 + ROOTS), [KEY_BITS])


def test_numbers_have_no_roots_modulo_a_false_modulus() -> None:
    p, q = false_primes(int(gmpy2.next_prime(1 << 16)))
    drawn = _drawn(p * q, SIZE)
    assert len(drawn) == ROOTS
    # One number in 2^16 has one.
    assert not any(gmpy2.powmod(each, (q - 1) // p, q) == 1 for each in drawn)


def test_every_root_counts_and_roots_are_those_of_this_modulus() -> None:
    key = insecure(PaillierOwner, FORMAT, KEY_BITS)._private_key
    other = insecure(PaillierOwner, FORMAT, KEY_BITS)
    good = with_roots(key.p, key.q)
    assert modulus_of(good, [KEY_BITS]) == key.public_key.n
    for at in range(1, 1 + ROOTS):
        bad = bytearray(good)
        bad[(at + 1) * SIZE - 1] ^= 1
        with pytest.raises(KeyMismatch, match="without n-th roots"):
            modulus_of(bytes(bad), [KEY_BITS])
    with pytest.raises(KeyMismatch, match="without n-th roots"):
        modulus_of(good[:SIZE] + other.public_bytes[SIZE:], [KEY_BITS])
    for other_size in (b"", good[:-1], good + b"\0", good[:SIZE], good[SIZE:]):
        with pytest.raises(KeyMismatch, match="256 expected"):
            modulus_of(other_size, [KEY_BITS])
