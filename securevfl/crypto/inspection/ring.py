"""Products in the ring: what their owner can compute from its key and from replies."""

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.bfv_wire import reply_bytes, unpack_reply
from securevfl.crypto.inspection.bfv import Phases, owner_secret
from securevfl.crypto.ring_layout import RingLayout
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.seal_codec import ciphertext_of, polynomials_of


class RingOpening(Phases):
    """What follows from an owner's secret key and public bytes; products of one input.

    Args:
        owner: of the key.
    """

    def __init__(self, owner: RingProductOwner) -> None:
        self.layout = RingLayout.of(owner.product_format)
        super().__init__(self.layout.sizes, owner_secret(owner))

    def replies(self, data: bytes) -> list[RingArray]:
        """(c₀, c₁) of every reply, each of shape (2, reply primes, DEGREE)."""
        positions = self.layout.positions()
        size = reply_bytes(self.sizes, len(positions))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        return [unpack_reply(self.sizes, part, positions) for part in parts]

    def noise_of_reply(self, data: bytes) -> FloatArray:
        """The noise of the first reply at the coefficients that were sent, shape (revealed,)."""
        level = self.sizes.reply_level()
        first = ciphertext_of(self.context, level, self.replies(data)[0])
        return self.noise(first)[self.layout.positions()]

    def noise_equations(self, encrypted: bytes) -> FloatArray:
        """What noise a unit of every entry of the reply's rows of M adds, by row.

        Shape (revealed, side · inner).
        """
        (own,) = [self.noise(each) for each in self.inputs(encrypted)]
        chunk, inner = self.layout.chunk, self.layout.product_format.inner
        row, entry = np.divmod(np.arange(self.layout.side * inner), inner)
        places = row * chunk + chunk - 1 - entry
        shifts = self.layout.positions()[:, None] - places[None, :]
        equations: FloatArray = np.where(shifts < 0, -1, 1) * own[shifts % DEGREE]
        return equations


def c1_without_protection(
    evaluator: RingProductEvaluator, encrypted: bytes, matrix: IntArray
) -> RingArray:
    """C₁ of the first reply, were it neither re-randomized nor masked; shape (primes, DEGREE)."""
    total = next(evaluator._sums(encrypted, matrix))
    level = evaluator._reply_level
    assert total is not None  # noqa: S101
    evaluator._evaluator.transform_from_ntt_inplace(total)
    evaluator._evaluator.mod_switch_to_inplace(total, level)
    found: RingArray = polynomials_of(total)[1]
    return found
