"""What BFV products share whose replies are masked modulo t and flooded.

Guarantees for semi-honest parties:
    - Every coefficient of a reply has a mask that is uniform modulo t. This also hides partial sums
      of a matrix in unused coefficients.
    - A reply's noise contains M·e, and the owner knows e. Flooding hides it within a statistical
      distance of 2^−40 over all coefficients that the job reveals.
    - Replies under another key, and invalid bytes, have too much noise and are refused. This is no
      checksum: most single-bit errors, and 3 of 8 single-word errors, change numbers without adding
      noise.
Not protected: an owner that adds noise of its own to its inputs reads M in a reply's noise, above
the flooding; see SECURITY.md. Products that bfv computes are sealed against this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import RingArray
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.flooded_sizes import FloodedSizes
from securevfl.crypto.residues import uniform_noise
from securevfl.crypto.seal_codec import coefficient_ciphertext
from securevfl.errors import KeyMismatch

_CHECKED_TOGETHER = 4


class FloodedKeyHolder(BfvKeyHolder):
    """The end with the secret key, which tests the noise of replies."""

    @override
    def _decrypted(self, replies: Iterator[RingArray], positions: NDArray[np.int64]) -> RingArray:
        values = []
        while together := list(islice(replies, _CHECKED_TOGETHER)):
            values.append(super()._decrypted(iter(together), positions))
            self._require_little_noise(together, values[-1], positions)
        return np.concatenate(values)

    def _require_little_noise(
        self, replies: list[RingArray], values: RingArray, positions: NDArray[np.int64]
    ) -> None:
        """Check that a few replies decrypt with little noise, by their sum.

        The sum is shifted by 5/16 of the distance between two plaintexts, alternately up and down.
        Honest values do not change, since the noise of four replies plus rounding is below 1/16 of
        it. A uniform value changes with probability 5/16 at each position.
        """
        primes = self._primes[: self._sizes.reply_primes]
        shift = prod(primes) * 5 // 16 >> self._sizes.plain_bits
        total: RingArray = np.sum(replies, axis=0, dtype=np.uint64)
        for row, prime in enumerate(primes):
            moved = total[0, row, positions]
            moved[::2] += np.uint64(shift % prime)
            moved[1::2] += np.uint64(-shift % prime)
            total[0, row, positions] = moved
            total[:, row] %= np.uint64(prime)
        plain_mask = np.uint64((1 << self._sizes.plain_bits) - 1)
        expected = values.sum(axis=0, dtype=np.uint64) & plain_mask
        if not np.array_equal(self._coefficients(total, positions), expected):
            raise KeyMismatch("a reply is damaged, or was made under another key")


@dataclass(frozen=True)
class Blinder:
    """An encrypted mask under the public key, with flooding noise; used once."""

    ciphertext: seal.Ciphertext
    mask: RingArray


class FloodedMultiplier(BfvMultiplier):
    """The end with the public key, which floods replies."""

    _sizes: FloodedSizes

    def _flooded(self, plain: seal.Plaintext) -> seal.Ciphertext:
        encrypted = seal.Ciphertext()
        self._encryptor.encrypt(plain, encrypted)
        flood = coefficient_ciphertext(self._context, self._flooding())
        self._evaluator.add_inplace(encrypted, flood)
        return encrypted

    def _flooding(self) -> RingArray:
        """Noise that hides a product's noise, shape (primes, DEGREE)."""
        return uniform_noise(self._sizes.flood_bits, DEGREE, self._primes)
