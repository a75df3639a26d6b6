"""Layout and sizes of BFV for products M·V modulo 2^59 of uniform V; both ends derive the same.

Layout: an input polynomial holds `chunk` rows of `together` columns of V; a plaintext holds as many
entries of `side` rows of M. With stride = side·chunk, entry i of column j is coefficient j·stride +
i of the input, and entry i of row o is coefficient o·chunk + chunk − 1 − i of the plaintext.
Coefficient j·stride + (o + 1)·chunk − 1 of their product is row o times column j. stride times
`together` is at most DEGREE. More rows of V need several inputs, whose products are added; more
columns need several groups of inputs; more rows of M need several replies per group.

Both ends compute the layout and primes with the least estimated time on the job's network.
Source: docs/decisions/0033-products-in-the-ring.md; sizes: bfv_parameters.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.bfv_parameters import (
    DEGREE,
    LARGEST_MODULUS_BITS,
    ExactSizes,
    positions,
    revealed,
)
from securevfl.crypto.ring import RING_BITS
from securevfl.errors import RangeExceeded

# Milliseconds by data prime of products in C, measured: an input, from an encryption of zero to its
# transform at the other end; a plaintext; one product; a reply, from its blinder to numbers, and
# what it takes if all coefficients are masked and sent. They need not be exact.
_INPUT_MS, _PLAIN_MS, _PRODUCT_MS, _REPLY_MS, _SENT_MS = 0.52, 0.017, 0.008, 0.45, 0.6


@dataclass(frozen=True)
class RingProductFormat:
    """Public sizes and bounds of a job's products M·V modulo 2^59.

    M has shape (outputs, inner) and integers within ±matrix_bound, V has shape (inner, columns).
    `products` is how many the job computes; the distance of masks from uniform covers all of them.
    """

    inner: int
    outputs: int
    columns: int
    matrix_bound: int
    products: int = 1
    bandwidth_mbit: float = 1000.0

    @property
    def matrix_bits(self) -> int:
        """2^matrix_bits residues can represent −matrix_bound to matrix_bound."""
        return max(self.matrix_bound.bit_length() + 1, 2)


@dataclass(frozen=True)
class RingLayout:
    """A layout: `chunk` rows and `together` columns of V per input, `side` rows of M per reply."""

    product_format: RingProductFormat
    sizes: ExactSizes
    chunk: int
    side: int
    together: int

    @classmethod
    def of(cls, product_format: RingProductFormat) -> "RingLayout":
        """The layout for a format, the same at both ends; a RangeExceeded if none has room."""
        return _layout(product_format)

    @property
    def chunks(self) -> int:
        """Number of inputs per group of columns."""
        return -(-self.product_format.inner // self.chunk)

    @property
    def sides(self) -> int:
        """Number of replies per group of columns."""
        return -(-self.product_format.outputs // self.side)

    @property
    def groups(self) -> int:
        """Number of groups of columns."""
        return -(-self.product_format.columns // self.together)

    @property
    def inputs(self) -> int:
        """Number of ciphertexts of V."""
        return self.chunks * self.groups

    @property
    def replies(self) -> int:
        """Number of ciphertexts of M·V."""
        return self.sides * self.groups

    @property
    def extent(self) -> int:
        """Number of coefficients of an input that hold values, from the first on."""
        return (self.together - 1) * self.side * self.chunk + self.chunk

    def positions(self) -> NDArray[np.int64]:
        """Coefficients of every reply that are revealed.

        Row o of column j is at j·side + o; fillers follow, masked like all.
        """
        return positions(self.chunk, self.side * self.together)

    @property
    def seconds(self) -> float:
        """Estimated time of one product: transfers without latency, and both ends' computation."""
        inputs, replies, plaintexts = self.inputs, self.replies, self.sides * self.chunks
        sent = revealed(self.side * self.together)
        down = replies * (DEGREE + sent) * sum(self.sizes.reply_bits) // 8
        size = inputs * self.sizes.input_bytes + down
        by_prime_ms = (
            inputs * _INPUT_MS
            + plaintexts * (_PLAIN_MS + self.groups * _PRODUCT_MS)
            + replies * (_REPLY_MS + sent / DEGREE * _SENT_MS)
        )
        transfer_ms = size * 8e-3 / self.product_format.bandwidth_mbit
        return (transfer_ms + len(self.sizes.prime_bits) * by_prime_ms) * 1e-3


@cache
def _layout(fmt: RingProductFormat) -> RingLayout:
    if min(fmt.inner, fmt.outputs, fmt.columns, fmt.products) < 1 or fmt.matrix_bound < 0:
        raise RangeExceeded(f"{fmt}: positive sizes expected")
    if fmt.matrix_bits > RING_BITS:
        raise RangeExceeded(f"entries up to {fmt.matrix_bound}, below 2^{RING_BITS - 1} expected")
    layouts = {
        RingLayout(fmt, sizes, chunk, side, together)
        for chunk, side, together in _packings(fmt)
        for sizes in _sizes(fmt, chunk, side, together)
    }
    if not layouts:
        raise RangeExceeded(
            f"bfv: {fmt.products} products of {fmt.outputs} x {fmt.inner} entries within "
            f"{fmt.matrix_bound} and {fmt.inner} x {fmt.columns} residues of {RING_BITS} bits "
            f"with masks that hide them do not fit the {LARGEST_MODULUS_BITS} bits that 128-bit "
            f"security leaves at degree {DEGREE}; use fewer fraction bits, rounds or rows"
        )
    # Sizes break ties, in the same way at both ends.
    return min(layouts, key=lambda each: (each.seconds, each.chunk, each.side, str(each.sizes)))


def _packings(fmt: RingProductFormat) -> Iterator[tuple[int, int, int]]:
    """(chunk, side, together) with the longest chunk that DEGREE leaves."""
    for together in _shares(fmt.columns):
        for side in _shares(fmt.outputs):
            if together * side <= DEGREE:
                chunks = -(-fmt.inner // (DEGREE // (together * side)))
                yield -(-fmt.inner // chunks), side, together


def _shares(total: int) -> list[int]:
    """Sizes of parts that divide a total evenly, in steps of an eighth."""
    found, size = [], total
    while size:
        found.append(-(-total // -(-total // size)))
        size = min(found[-1] - 1, found[-1] * 7 // 8)
    return found


def _sizes(fmt: RingProductFormat, chunk: int, side: int, together: int) -> list[ExactSizes]:
    terms = side * -(-fmt.inner // chunk) * chunk
    replies = -(-fmt.outputs // side) * -(-fmt.columns // together)
    shown = replies * revealed(side * together) * fmt.products
    return ExactSizes.fitting(RING_BITS, terms, fmt.matrix_bound, shown)
