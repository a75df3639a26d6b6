"""Evaluators without one protection: what must not be done, and what the attacks then read.

They live in tests alone; no job file and nothing in the package reaches them.
"""

from math import prod

import numpy as np
from gmpy2 import mpz
from typing_extensions import override

from securevfl.crypto.bfv import BfvEvaluator
from securevfl.crypto.bfv_core import Blinder
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, ShortExponentResidues
from securevfl.crypto.residues import scaled_message, uniform_words
from securevfl.crypto.ring_products import RingProductEvaluator
from securevfl.crypto.seal_codec import coefficient_ciphertext


class EncryptsNothing(BfvEvaluator):
    """Masks and floods, but its blinders are no encryptions: c₁ = 0."""

    @override
    def _blinder(self) -> Blinder:
        mask = uniform_words(DEGREE) & self._plain_mask
        residues, bits = self._flooding(), self._parameters.plain_bits
        for row, prime in zip(residues, self._primes, strict=True):
            scaled = scaled_message(mask.astype(np.int64), prod(self._primes), bits, prime)
            row[:] = (row + scaled) % np.uint64(prime)
        return Blinder(coefficient_ciphertext(self._context, residues), mask)


class ShortBlinders(FastPaillierEvaluator):
    """Blinds with short exponents, as the owner does with its own encryptions."""

    residues: ShortExponentResidues

    @override
    def _blinder(self) -> mpz:
        return self.residues.draw()


class RingEncryptsNothing(RingProductEvaluator):
    """The same of products in the ring."""

    @override
    def _blinder(self) -> Blinder:
        mask, residues = self._mask_and_flooding()
        return Blinder(coefficient_ciphertext(self._context, residues), mask)
