"""Paillier's modulus n as it is sent: with a proof that n and φ(n) have no common factor.

If so, every unit modulo n² is (1 + n)^m·ρⁿ for one m and one ρ, and a reply with m and ρ uniform is
a uniform unit, whatever it was computed from. If a prime p of n divides q − 1 for another prime q,
ρⁿ leaves the class of a unit of q modulo p-th powers as it is. An owner with such an n would read
its products with X there, past every mask.

The proof is an n-th root of each of ROOTS numbers that a hash draws for n. Where p > 2^16 divides n
and φ(n), at most one number in 2^15 has such a root: one n in 2^135 passes. Roots of uniform
numbers are uniform and tell nothing.
Source: Goldberg, Reyzin, Sagga, Baldimtsi, "Efficient Noninteractive Certification of RSA Moduli
and Beyond" (ASIACRYPT 2019).
"""

from collections.abc import Collection
from hashlib import shake_256

import gmpy2
from gmpy2 import mpz

from securevfl.errors import KeyMismatch

ROOTS = 9
_SMALL_PRIMES = gmpy2.primorial(1 << 16)


def with_roots(p: int, q: int) -> bytes:
    """The modulus n = p·q and its roots, big-endian."""
    n = mpz(p) * q
    size = (n.bit_length() + 7) // 8
    to_root = gmpy2.invert(n, (p - 1) * (q - 1))
    numbers = [n, *(gmpy2.powmod(drawn, to_root, n) for drawn in _drawn(n, size))]
    return b"".join(int(number).to_bytes(size, "big") for number in numbers)


def modulus_of(public_bytes: bytes, allowed: Collection[int]) -> int:
    """The modulus n, of as many bits as are allowed.

    Raises:
        KeyMismatch: n of another size, prime, a power or with a small factor, or false roots.
    """
    size = len(public_bytes) // (1 + ROOTS)
    if len(public_bytes) % (1 + ROOTS) or 8 * size not in allowed:
        sizes = " or ".join(map(str, allowed))
        raise KeyMismatch(f"Paillier key of {8 * size} bits, {sizes} expected")
    parts = [public_bytes[at : at + size] for at in range(0, len(public_bytes), size)]
    n, *roots = (mpz(int.from_bytes(part, "big")) for part in parts)
    if n.bit_length() != 8 * size:
        raise KeyMismatch(f"Paillier modulus of {n.bit_length()} bits in {size} bytes")
    if gmpy2.gcd(n, _SMALL_PRIMES) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
        raise KeyMismatch("Paillier modulus is a prime, a power or has a small factor")
    if [gmpy2.powmod(root, n, n) for root in roots] != _drawn(n, size):
        raise KeyMismatch("Paillier modulus comes without n-th roots: it may hide a way to X")
    return int(n)


def _drawn(n: mpz, size: int) -> list[mpz]:
    """ROOTS numbers below n, within 2^−128 of uniform."""
    width = size + 16
    stream = shake_256(b"n-th roots" + int(n).to_bytes(size, "big")).digest(ROOTS * width)
    parts = (stream[at : at + width] for at in range(0, len(stream), width))
    return [mpz(int.from_bytes(part, "big")) % n for part in parts]
