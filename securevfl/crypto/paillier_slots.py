"""Products in slots of one Paillier plaintext, and their two shares modulo 2^64.

A plaintext modulo n holds products m_j at bits width·j, negative ones too. With a mask r uniform
modulo n, the owner decrypts x = Σ m_j·2^(width·j) + r modulo n, which is uniform. The lowest 64
bits of slot j of x and of r differ by m_j modulo 2^64, unless
    - the sum wraps modulo n, or
    - a carry out of the slots below j reaches slot j.
With |m_j| < 2^b, each of these has a probability below 2^(b − width). Slots are so wide that any
product of a whole job comes out wrong, or tells more than itself, with a probability below
2^−WRONG_BITS. A plaintext that is not packed has one slot.
Source: the conversion of shares in Cheetah (Huang, Lu, Hong, Ding, USENIX Security 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import RingArray
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.errors import RangeExceeded

WRONG_BITS = 40
_WORD = (1 << MODULUS_BITS) - 1


@dataclass(frozen=True)
class Slots:
    """`count` slots of `width` bits, the first lowest."""

    width: int
    count: int

    @classmethod
    def of(cls, product_format: ProductFormat, key_bits: int, *, packed: bool) -> "Slots":
        """As many slots as fit below a modulus of this many bits, or one if not packed.

        Raises:
            RangeExceeded: products beyond 64 bits, or a key that has no room for one.
        """
        fmt = product_format
        fmt.require_room(MODULUS_BITS)
        products = fmt.rounds * fmt.vectors * fmt.columns * fmt.evaluators
        bits = fmt.largest_product.bit_length() + WRONG_BITS + products.bit_length()
        # Shares of 64 bits must not reach into the next slot.
        width = max(bits, MODULUS_BITS)
        count = (key_bits - 1) // width
        if not count:
            raise RangeExceeded(
                f"masked products need {width + 1} bits, more than the {key_bits} of the Paillier "
                "key"
            )
        return cls(width, count if packed else 1)

    def replies(self, columns: int) -> int:
        """Number of plaintexts for this many products."""
        return -(-columns // self.count)

    def shares(self, plains: Sequence[int], columns: int) -> RingArray:
        """The lowest 64 bits of every slot of these plaintexts, shape (columns,)."""
        slots = range(self.count)
        words = [plain >> self.width * slot & _WORD for plain in plains for slot in slots]
        return np.array(words[:columns], np.uint64)
