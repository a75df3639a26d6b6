"""Products Π cᵢ^xᵢ modulo n² for many vectors x of small signed exponents at once.

Straus's method on the non-adjacent form of width w (Möller, SAC 2001): each exponent is a sum of
odd digits |d| < 2^(w−1) times powers of two. Each base has a table of its odd powers, shared by all
vectors. The powers of two are applied at the end, together, by squaring (Horner). An exponent that
is a power of two therefore costs as much as 1. Packing a vector's product beside others in the
plaintext means a larger power of two in the same squarings.

Bases have half the size of n²: every unit c is a·(1 + n·term) with a = c mod n, and factors 1 +
n·term are multiplied by adding their terms. Only the a's are multiplied: 2.8 µs instead of 4.8 µs
for n of 2048 bits.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_all_start_methods, get_context

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securevfl.arrays import IntArray
from securevfl.errors import CryptoError

_WIDTHS = range(2, 10)
_POSITIONS = 64
# Cost of an odd power and its inverse, in multiplications of the main loop.
_POWER_COST = 1.75


@dataclass(frozen=True)
class Exponents:
    """X of shape (S, P) recoded: digit·2^position in one of the results, sorted by row.

    Row s has the odd, signed digits starts[s] to starts[s + 1]. Each is added to the accumulator of
    its index in `targets`, which are (result, position) pairs.
    """

    results: int
    starts: NDArray[np.int64]
    targets: list[list[int]]
    accumulators: NDArray[np.int64]
    digits: IntArray

    @classmethod
    def of(cls, matrix: IntArray, width: int, count: int) -> "Exponents":
        """Recode X so that column j is shifted by width·(j mod count) bits in result ⌊j/count⌋."""
        rows, columns, positions, digits = _cheapest(matrix)
        results, slots = np.divmod(columns, count)
        # Larger than any position, so that results are sorted first.
        stride = width * count + _POSITIONS
        places, accumulators = np.unique(
            results * stride + slots * width + positions, return_inverse=True
        )
        return cls(
            -(-matrix.shape[1] // count),
            np.searchsorted(rows, np.arange(len(matrix) + 1)),
            np.stack(np.divmod(places, stride), axis=1).tolist(),
            accumulators,
            digits,
        )

    @property
    def rows(self) -> int:
        """S."""
        return len(self.starts) - 1

    def share(self, first: int, end: int) -> "Exponents":
        """The exponents of the rows from `first` to before `end`."""
        starts = self.starts[first : end + 1]
        own = slice(int(starts[0]), int(starts[-1]))
        return replace(
            self,
            starts=starts - starts[0],
            accumulators=self.accumulators[own],
            digits=self.digits[own],
        )


def products(
    ciphertexts: Sequence[int],
    exponents: Exponents,
    n: mpz,
    accumulate: "Accumulate | None" = None,
) -> list[tuple[mpz, mpz]]:
    """Every result as (unit, term), meaning unit·(1 + n·term) modulo n².

    `ciphertexts` are the S bases, units modulo n². `accumulate` is `accumulated` or an equivalent.
    """
    units, sums = (accumulate or accumulated)(ciphertexts, exponents, n)
    found: list[list[tuple[int, mpz, mpz]]] = [[] for _ in range(exponents.results)]
    for (result, position), unit, total in zip(exponents.targets, units, sums, strict=True):
        found[result].append((position, unit, total))
    modulus = n * n
    return [
        (_horner(parts, modulus), sum((total << at for at, _, total in parts), mpz(0)) % n)
        for parts in found
    ]


def accumulated(
    ciphertexts: Sequence[int], exponents: Exponents, n: mpz
) -> tuple[list[mpz], list[mpz]]:
    """(unit, term) of every accumulator, before powers of two."""
    modulus = n * n
    units = [mpz(1)] * len(exponents.targets)
    sums = [mpz(0)] * len(exponents.targets)
    bases = _with_inverses(ciphertexts, n)
    for (base, inverse), ciphertext, first, end in zip(
        bases, ciphertexts, exponents.starts[:-1], exponents.starts[1:], strict=True
    ):
        if first == end:
            continue
        digits = exponents.digits[first:end]
        powers, terms = _odd_powers(
            base, inverse, (ciphertext - base) // n * inverse, int(abs(digits).max()), n
        )
        accumulators = exponents.accumulators[first:end].tolist()
        # −1 >> 1 is −1: negative powers are at the end of the table.
        for at, index in zip(accumulators, (digits >> 1).tolist(), strict=True):
            units[at] = units[at] * powers[index] % modulus
            sums[at] += terms[index]
    return units, sums


Accumulate = Callable[[Sequence[int], Exponents, mpz], tuple[list[mpz], list[mpz]]]


class Workers:
    """A pool of at least 2 processes including this one; the others start at first use.

    They receive only public data and their own party's X: ciphertexts, exponents, n. Threads would
    not help: big-integer arithmetic holds the interpreter's lock (two threads took 1.15 times as
    long as one, two processes 0.63 to 0.73).
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # A forked child would share locks and files of this process.
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        self._pool = ProcessPoolExecutor(count - 1, mp_context=get_context(method))
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def accumulated(
        self, ciphertexts: Sequence[int], exponents: Exponents, n: mpz
    ) -> tuple[list[mpz], list[mpz]]:
        """As the function `accumulated`, rows divided evenly; a CryptoError if a worker died."""
        edges = [exponents.rows * share // self._count for share in range(self._count + 1)]
        shares = [
            (ciphertexts[first:end], exponents.share(first, end), n)
            for first, end in pairwise(edges)
        ]
        try:
            waiting = [self._pool.submit(accumulated, *share) for share in shares[1:]]
            units, sums = accumulated(*shares[0])
            found = [each.result() for each in waiting]
        except BrokenProcessPool as error:
            raise CryptoError(
                "a worker process died; scripts that use workers need if __name__ == '__main__'"
            ) from error
        modulus = n * n
        for more_units, more_sums in found:
            units = [a * b % modulus for a, b in zip(units, more_units, strict=True)]
            sums = [a + b for a, b in zip(sums, more_sums, strict=True)]
        return units, sums


def _cheapest(matrix: IntArray) -> tuple[IntArray, ...]:
    """(row, column, position, digit) for the width that takes fewest multiplications."""
    best: tuple[IntArray, ...] = ()
    least = np.inf
    for width in _WIDTHS:
        recoded = _recoded(matrix, width)
        cost = len(recoded[0]) + _POWER_COST * _table_entries(recoded[0], recoded[3])
        if cost >= least:
            break
        best, least = recoded, cost
    return best


def _recoded(matrix: IntArray, width: int) -> tuple[IntArray, ...]:
    half, left, planes = 1 << (width - 1), matrix, []
    while left.any():
        digits = np.where(left & 1, ((left + half) & (2 * half - 1)) - half, 0)
        planes.append(digits)
        left = (left - digits) >> 1
    stacked = np.stack(planes or [matrix], axis=-1)
    rows, columns, positions = np.nonzero(stacked)
    return rows, columns, positions, stacked[rows, columns, positions]


def _table_entries(rows: IntArray, digits: IntArray) -> int:
    largest = np.zeros(int(rows.max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, rows, np.abs(digits))
    return int((largest // 2).sum())


def _with_inverses(ciphertexts: Sequence[int], n: mpz) -> list[tuple[mpz, mpz]]:
    """Each base modulo n and its inverse: one inversion for all (Montgomery 1987)."""
    bases = [ciphertext % n for ciphertext in ciphertexts]
    before = [mpz(1)]
    for base in bases:
        before.append(before[-1] * base % n)
    inverse = gmpy2.invert(before.pop(), n)
    inverses = []
    for base, product in zip(reversed(bases), reversed(before), strict=True):
        inverses.append(inverse * product % n)
        inverse = inverse * base % n
    return list(zip(bases, reversed(inverses), strict=True))


def _odd_powers(
    base: mpz, inverse: mpz, term: mpz, largest: int, n: mpz
) -> tuple[list[mpz], list[mpz]]:
    """The a and the term of the powers 1, 3, …, largest, −largest, …, −3, −1 of base·(1 + n·term).

    A product of two a's is r + q·n, and that is r·(1 + n·q/r).
    """
    powers, inverses, terms = [base], [inverse], [term]
    if largest > 1:
        quotient, square = gmpy2.f_divmod(base * base, n)
        inverse_square = inverse * inverse % n
        term_square = 2 * term + quotient * inverse_square
        for _ in range(largest // 2):
            quotient, power = gmpy2.f_divmod(powers[-1] * square, n)
            powers.append(power)
            inverses.append(inverses[-1] * inverse_square % n)
            terms.append(terms[-1] + term_square + quotient * inverses[-1])
    inverse_terms = [
        -term - power * inverse // n
        for power, inverse, term in zip(powers, inverses, terms, strict=True)
    ]
    return powers + inverses[::-1], terms + inverse_terms[::-1]


def _horner(parts: list[tuple[int, mpz, mpz]], modulus: mpz) -> mpz:
    """The product of unit^(2^position), positions ascending."""
    result, at = mpz(1), 0
    for position, unit, _ in reversed(parts):
        for _ in range(at - position):
            result = result * result % modulus
        result = result * unit % modulus
        at = position
    for _ in range(at):
        result = result * result % modulus
    return result
