"""Fixed-point numbers as int64, and the ring of integers modulo 2^64 as uint64.

NumPy's uint64 arithmetic *is* arithmetic modulo 2^64. Conversions reinterpret bits (two's
complement): a value in [−2^63, 2^63) and its residue have the same eight bytes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.errors import RangeExceeded


def encode(values: ArrayLike, fraction_bits: int, bound: float, what: str) -> IntArray:
    """The integers nearest to values·2^fraction_bits, any shape; `what` names them in errors.

    Raises:
        RangeExceeded: NaN, infinity, a value beyond ±bound, or a bound that int64 cannot hold.
    """
    numbers = np.asarray(values, np.float64)
    require_within(numbers, bound, what)
    # 2^63 itself does not fit, and a bound just below may round up to it.
    if bound * 2.0**fraction_bits >= 2.0**63:
        raise RangeExceeded(
            f"{what}: bound {bound:g} with {fraction_bits} fraction bits does not fit 64 bits"
        )
    scaled: FloatArray = np.asarray(numbers * 2.0**fraction_bits)
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int64)


def require_within(numbers: FloatArray, bound: float, what: str) -> None:
    """Refuse NaN, infinity and values beyond ±bound; `what` names them in errors."""
    # Avoid copying a matrix that may be half a gigabyte.
    largest = float(max(-np.min(numbers, initial=0.0), np.max(numbers, initial=0.0)))
    if not largest <= bound:  # NaN compares false
        raise RangeExceeded(f"{what}: largest |value| is {largest:g}, at most {bound:g} allowed")


def decode(encoded: IntArray, fraction_bits: int) -> NDArray[np.float64]:
    """The numbers encoded / 2^fraction_bits in float64."""
    return np.ldexp(np.asarray(encoded).astype(np.float64), -fraction_bits)


def to_ring(integers: IntArray) -> RingArray:
    """Residues modulo 2^64 of integers in [−2^63, 2^63)."""
    return np.asarray(integers, np.int64).view(np.uint64)


def from_ring(residues: RingArray) -> IntArray:
    """The representatives in [−2^63, 2^63) of residues modulo 2^64."""
    return np.asarray(residues, np.uint64).view(np.int64)


def shifted(integers: IntArray, modulus_bits: int) -> RingArray:
    """Residues modulo 2^64 of integers·2^(64 − modulus_bits), which `unmask` returns."""
    return np.left_shift(to_ring(integers), np.uint64(MODULUS_BITS - modulus_bits))


def unmask(masked: RingArray, mask: RingArray, modulus_bits: int = MODULUS_BITS) -> IntArray:
    """The integers nearest to (masked − mask)/2^(64 − modulus_bits), modulo 2^modulus_bits.

    Centred: exact while |result| < 2^(modulus_bits − 1). What lies below the unit 2^(64 −
    modulus_bits) rounds off, the error of shares that were rounded.
    """
    unused = MODULUS_BITS - modulus_bits
    with np.errstate(over="ignore"):  # wrapping is intended; NumPy warns for 0-d operands
        half = np.uint64(1 << unused >> 1)
        difference = from_ring(np.subtract(masked, mask, dtype=np.uint64) + half)
    return np.right_shift(difference, unused)  # arithmetic: keeps the sign


def require_values(values: IntArray, product_format: ProductFormat) -> None:
    """Refuse, before encryption, anything but 1 to `rows` int64 values within ±largest_value."""
    if values.ndim != 1:
        raise RangeExceeded(f"values have shape {values.shape}, (S,) expected")
    _require_rows(len(values), product_format)
    _require_range(values, product_format.largest_value, "value")


def require_shape(shape: tuple[int, ...], product_format: ProductFormat) -> None:
    """Refuse anything but 1 to `rows` rows with a column."""
    if len(shape) != 2 or shape[1] < 1:  # noqa: PLR2004
        raise RangeExceeded(f"matrix has shape {shape}, (S, P) with P >= 1 expected")
    _require_rows(shape[0], product_format)


def require_matrix(matrix: IntArray, product_format: ProductFormat) -> None:
    """Refuse anything but 1 to `rows` rows of int64 within ±largest_entry, with a column."""
    require_shape(matrix.shape, product_format)
    _require_range(matrix, product_format.largest_entry, "matrix entry")


def _require_rows(rows: int, product_format: ProductFormat) -> None:
    if not 1 <= rows <= product_format.rows:
        raise RangeExceeded(f"{rows} rows, 1 to {product_format.rows} expected")


def _require_range(integers: IntArray, bound: int, what: str) -> None:
    if integers.dtype != np.int64:
        raise RangeExceeded(f"{what}s have type {integers.dtype}, int64 expected")
    lowest, highest = int(integers.min()), int(integers.max())
    if lowest < -bound or highest > bound:
        raise RangeExceeded(
            f"largest |{what}| is {max(-lowest, highest)} as an integer, at most {bound} allowed"
        )
