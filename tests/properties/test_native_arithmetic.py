"""Products and decryption in C against integers, at sizes that no parameters of a job have."""

from math import prod

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.arrays import RingArray
from securevfl.crypto import native
from securevfl.crypto.native import DEGREE, LARGEST_ENTRY, LARGEST_WIDE, Arithmetic
from securevfl.crypto.residues import pack, unpack, whole

missing = isinstance(native.found(), native.Missing)
pytestmark = pytest.mark.skipif(missing, reason=f"not compiled: {native.found()}")
PATHS = [False] if missing or not native.library().has_vector else [False, True]
PLACES = np.array([0, 1, 4095, 4096, DEGREE - 2, DEGREE - 1])


@st.composite
def prime_sets(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Up to three primes and their bits: the least and the largest ones of each size."""
    primes: list[int] = []
    sizes = draw(st.lists(st.sampled_from(range(32, 61, 4)), min_size=1, max_size=3))
    for bits in sizes:
        up = draw(st.booleans())
        prime = gmpy2.mpz(1 << (bits - 1) if up else 1 << bits)
        while prime in primes or prime.bit_count() == 1:
            prime = gmpy2.next_prime(prime) if up else gmpy2.prev_prime(prime)
        primes.append(int(prime))
    return primes, sizes


def words_of(data: st.DataObject, primes: list[int]) -> RingArray:
    """A polynomial modulo each prime, (primes, DEGREE), of any residues or of extreme ones."""
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    words = np.stack([generator.integers(0, p, DEGREE, np.uint64) for p in primes])
    largest = np.array(primes, np.uint64)[:, None] - np.uint64(1)
    extreme = data.draw(st.sampled_from([0.0, 0.5, 1.0]))  # share of words that are p − 1
    return np.where(generator.random(words.shape) < extreme, largest, words)


def times(sparse: dict[int, int], words: RingArray, primes: list[int]) -> list[int]:
    """The product with a polynomial of few terms modulo q, at `PLACES`."""
    total = [0] * len(PLACES)
    for power, factor in sparse.items():
        at = PLACES - power
        signs = np.where(at < 0, -1, 1)
        found = whole(words[:, at % DEGREE], primes)
        total = [a + factor * int(s) * int(x) for a, s, x in zip(total, signs, found, strict=True)]
    return [each % prod(primes) for each in total]


def with_fewer_primes(x: int, primes: list[int], kept: int) -> int:
    """SEAL's rounded division by the last primes, one after the other."""
    for last in range(len(primes) - 1, kept - 1, -1):
        half = primes[last] >> 1
        x = (x + half - (x + half) % primes[last]) // primes[last] % prod(primes[:last])
    return x


def residues_of(numbers: list[int], primes: list[int]) -> RingArray:
    return np.array([[each % p for each in numbers] for p in primes], np.uint64)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_replies_are_products_of_integers_on_every_path(data: st.DataObject) -> None:
    primes, sizes = data.draw(prime_sets())
    kept = data.draw(st.integers(1, len(primes)))
    wide = data.draw(st.booleans())
    most = LARGEST_WIDE if wide else LARGEST_ENTRY
    entries = st.sampled_from([most, -most, 1, -1]) | st.integers(-most, most)
    terms = data.draw(st.dictionaries(st.integers(0, DEGREE - 1), entries, min_size=1, max_size=4))
    c0, c1 = words_of(data, primes), words_of(data, primes)
    noise = np.full((2, DEGREE), data.draw(st.sampled_from([0, 21, -21])), np.int32)
    expected, polynomial = [], np.zeros((1, DEGREE), np.int64)
    polynomial[0, list(terms)] = list(terms.values())
    for words in (c0, c1):
        exact = [x + int(noise[0, 0]) for x in times(terms, words, primes)]
        expected.append([with_fewer_primes(x % prod(primes), primes, kept) for x in exact])
    mask = residues_of([prod(primes[:kept]) - 1] * len(PLACES), primes[:kept])
    masked = [x - 1 for x in expected[0]]
    for vector in PATHS:
        largest = len(terms) * most * max(primes)
        arithmetic = Arithmetic(primes, kept, sizes, largest, vector=vector)
        inputs, sums = arithmetic.inputs(1), arithmetic.sums(1)
        arithmetic.take_words(np.stack([c0, c1]), inputs[0])
        if wide:
            arithmetic.add(polynomial, inputs, sums[0])
        else:
            rows = np.ascontiguousarray(polynomial[:, ::-1], np.int32)
            arithmetic.multiply(rows, DEGREE, inputs[:, None], sums)
        reply, at = arithmetic.reply(sums[0], noise, mask, PLACES), 0
        for row, bits in enumerate(sizes[:kept]):
            of_c1 = unpack(reply[at : (end := at + DEGREE * bits // 8)], DEGREE, bits)[PLACES]
            at = end + len(PLACES) * bits // 8
            of_c0 = unpack(reply[end:at], len(PLACES), bits)
            assert of_c1.tolist() == [x % primes[row] for x in expected[1]]
            assert of_c0.tolist() == [x % primes[row] for x in masked]
        assert at == len(reply)


PLAINS = st.sampled_from([1, 2, 3, 1 << 31, (1 << 47) + 5, (1 << 59) - 55, 1 << 59])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_replies_decrypt_to_the_nearest_integers_on_every_path(data: st.DataObject) -> None:
    """Whatever their words, t also beyond the primes; c₀ puts numbers beside rounding edges."""
    primes, sizes = data.draw(prime_sets())
    plain = data.draw(PLAINS | st.integers(1, 1 << 59))
    q, c1 = prod(primes), words_of(data, primes)
    signs = st.sampled_from([1, -1])
    terms = data.draw(st.dictionaries(st.integers(0, DEGREE - 1), signs, min_size=1, max_size=4))
    secret = np.zeros(DEGREE, np.int32)
    secret[list(terms)] = list(terms.values())
    unit = st.integers(0, plain - 1)
    # Fractions have 64 bits: numbers nearer to an edge than 2^-62 may go either way.
    off = st.integers((q >> 61) // plain + 1, (q >> 50) // plain + 2)
    edges = st.builds(lambda z, f, s: (2 * z + 1) * q // (2 * plain) + s * f, unit, off, signs)
    wanted = [data.draw(st.integers(0, q - 1) | edges) % q for _ in PLACES]
    # Random ones are no nearer to an edge, but with so small a q that it has few numbers a unit.
    far = [abs(2 * plain * x % (2 * q) - q) << 61 >= q for x in wanted]
    numbers = [x - y for x, y in zip(wanted, times(terms, c1, primes), strict=True)]
    c0 = residues_of(numbers, primes)
    reply = b"".join(pack(c1[row], bits) + pack(c0[row], bits) for row, bits in enumerate(sizes))
    expected = [(2 * plain * x + q) // (2 * q) % plain for x in wanted]
    for vector in PATHS:
        arithmetic = Arithmetic(
            primes, len(primes), sizes, DEGREE * max(primes), vector=vector, plain=plain
        )
        found = arithmetic.opened(arithmetic.key(secret), reply, PLACES)
        assert found is not None
        for each, right, sure in zip(found.tolist(), expected, far, strict=True):
            assert each == right or (not sure and (each - right) % plain in {1, plain - 1})
            assert each < plain
