"""Many masked products in one Paillier plaintext, each in a slot of its own.

A slot holds Xᵀv + largest_product + r, r a mask 64 bits longer than a product: one bit more than a
mask, so no slot reaches into the next.
"""

from dataclasses import dataclass
from math import ceil

from securevfl.crypto.paillier_keys import mask_bits
from securevfl.crypto.scheme import ProductFormat

# A plaintext under another key is uniform below n, and stays out of so many upper bits
# once in 2^40; every slot's unused top bit halves that again.
_FREE_BITS = 40


@dataclass(frozen=True)
class Slots:
    """How products lie in plaintexts.

    Attributes:
        width: bits of a slot.
        count: slots of a plaintext.
    """

    width: int
    count: int

    @classmethod
    def of(cls, product_format: ProductFormat, key_bits: int) -> "Slots":
        """As many slots as a key of so many bits takes, at least one."""
        width = mask_bits(product_format) + 1
        return cls(width, max(1, (key_bits - 1 - _FREE_BITS) // width))

    def replies(self, columns: int) -> int:
        """Plaintexts for so many products."""
        return ceil(columns / self.count)

    def joined(self, values: list[int]) -> int:
        """The plaintext of one value a slot, the first lowest."""
        return sum(value << self.width * slot for slot, value in enumerate(values))

    def parted(self, plain: int) -> list[int]:
        """The slots of a plaintext; what lies above them goes to the last."""
        slot_mask = (1 << self.width) - 1
        slots = [plain >> self.width * slot & slot_mask for slot in range(self.count - 1)]
        return [*slots, plain >> self.width * (self.count - 1)]
