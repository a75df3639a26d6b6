"""How vectors and matrices lie in CKKS's slots, and what sums of slots stand for."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.fixed_point import to_ring
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.errors import ConfigError

DEGREE = 8192
SLOTS = DEGREE // 2
VALUE_SCALE_BITS = 56
MATRIX_SCALE_BITS = 31
# Slots are counted in 2^−26 of the largest product: 5 bits finer than the flooding.
QUANTUM_BITS = 26
FLOOD_BITS = 5


@dataclass(frozen=True)
class SlotLayout:
    """How a format's vectors and matrices lie in slots.

    Values are scaled by powers of two, so that every slot of a product is within ±1.

    Attributes:
        block: slots per column.
        inputs: ciphertexts per vector.
        value_exponent: ±2^value_exponent bounds the integers v.
        matrix_exponent: the same for X, with room for a sum over the inputs.
    """

    block: int
    inputs: int
    value_exponent: int
    matrix_exponent: int

    @classmethod
    def of(cls, product_format: ProductFormat) -> "SlotLayout":
        """The layout both ends derive from the format.

        Raises:
            RangeExceeded: products that do not fit 64 bits.
            ConfigError: so few bits that CKKS would round them away.
        """
        product_format.require_room(MODULUS_BITS)
        inputs = -(-product_format.rows // SLOTS)
        layout = cls(
            block=min(product_format.rows, SLOTS),
            inputs=inputs,
            value_exponent=(product_format.largest_value - 1).bit_length(),
            matrix_exponent=(product_format.largest_entry - 1).bit_length()
            + (inputs - 1).bit_length(),
        )
        if layout.exponent < QUANTUM_BITS:
            raise ConfigError(
                f"products x*v of {layout.exponent} bits, at least {QUANTUM_BITS} expected: ckks "
                "is approximate, use more fraction bits or another scheme"
            )
        return layout

    @property
    def exponent(self) -> int:
        """±2^exponent bounds x·v as an integer; a slot of 1 stands for it."""
        return self.value_exponent + self.matrix_exponent

    @property
    def columns(self) -> int:
        """Columns per reply ciphertext."""
        return SLOTS // self.block

    @property
    def flood_bits(self) -> int:
        """Flooding is uniform on ±2^flood_bits quanta; released sums are multiples of it."""
        return FLOOD_BITS + ((self.block - 1).bit_length() + 1) // 2

    def replies(self, columns: int) -> int:
        """Ciphertexts that carry so many columns."""
        return -(-columns // self.columns)

    def quanta(self, slots: NDArray[np.float64]) -> RingArray:
        """Sums of the blocks of (4096,) slots in quanta, modulo 2^64: shape (columns,)."""
        counted = to_ring(np.rint(np.ldexp(slots, QUANTUM_BITS)).astype(np.int64))
        blocks = counted[: self.columns * self.block].reshape(self.columns, self.block)
        sums: RingArray = np.add.reduce(blocks, axis=1, dtype=np.uint64)
        return sums

    def integers(self, quanta: RingArray) -> RingArray:
        """Quanta as integers with the format's fraction bits, modulo 2^64."""
        return np.left_shift(quanta, np.uint64(self.exponent - QUANTUM_BITS), dtype=np.uint64)


def slots_of(coefficients: NDArray[np.object_]) -> NDArray[np.float64]:
    """The real parts of the slots of a polynomial at a product's scale: m(ζ^(3^j)), j < 4096."""
    scaled = np.ldexp(coefficients.astype(np.float64), -VALUE_SCALE_BITS - MATRIX_SCALE_BITS)
    twist = np.exp(1j * np.pi * np.arange(DEGREE) / DEGREE)
    at_odd_powers = np.fft.ifft(scaled * twist, norm="forward")
    return at_odd_powers.real[_slot_order()]


@cache
def _slot_order() -> NDArray[np.int64]:
    powers = [pow(3, j, 2 * DEGREE) for j in range(SLOTS)]
    return (np.array(powers) - 1) // 2
