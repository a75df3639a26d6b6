"""Evaluators without one protection: what must not be done, and what the attacks then read.

They live in tests alone; no job file and nothing in the package reaches them.
"""

import secrets
from math import prod

import numpy as np
import tenseal.sealapi as seal
from gmpy2 import mpz
from typing_extensions import override

from securevfl.arrays import RingArray
from securevfl.crypto.bfv import BfvEvaluator
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.flooded_ends import Blinder
from securevfl.crypto.paillier import PaillierEvaluator, PaillierKeyPeer
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, ShortExponentResidues
from securevfl.crypto.residues import scaled_message, uniform_words
from securevfl.crypto.ring_products import RingProductEvaluator
from securevfl.crypto.scheme import BlinderPool, ProductFormat
from securevfl.crypto.seal_codec import coefficient_ciphertext


class EncryptsNothing(BfvEvaluator):
    """Masks, but its blinders are no encryptions: c₁ = 0."""

    def __init__(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        super().__init__(public_bytes, product_format)
        self._pool = BlinderPool(self._nothing, product_format.columns)

    def _nothing(self) -> seal.Ciphertext:
        nothing = np.zeros((len(self._primes), DEGREE), np.uint64)
        return coefficient_ciphertext(self._context, nothing)


class MasksModuloT(BfvEvaluator):
    """Its masks are multiples of q'/t, rounded: what lies between is the product's noise."""

    @override
    def _mask(self, count: int) -> tuple[RingArray, RingArray]:
        bits = self._parameters.plain_bits
        primes = self._primes[: self._parameters.reply_primes]
        share = uniform_words(count) & np.uint64((1 << bits) - 1)
        whole = share.view(np.int64)
        residues = [scaled_message(whole, prod(primes), bits, prime) for prime in primes]
        return np.stack(residues), share


class ShortBlinders(FastPaillierEvaluator):
    """Blinds with short exponents, as the owner does with its own encryptions."""

    residues: ShortExponentResidues

    @override
    def _blinder(self) -> mpz:
        return self.residues.draw()


class RingEncryptsNothing(RingProductEvaluator):
    """Masks and floods, but its blinders are no encryptions: c₁ = 0."""

    @override
    def _blinder(self) -> Blinder:
        mask, residues = self._mask_and_flooding()
        return Blinder(coefficient_ciphertext(self._context, residues), mask)


class _NarrowMasks(PaillierKeyPeer):
    """Masks 2^40 times as large as any product, but not uniform modulo n."""

    @override
    def _fresh_mask(self) -> int:
        return secrets.randbits(self._slots.width * self._slots.count)


class NarrowlyMasked(_NarrowMasks, PaillierEvaluator):
    """Of phe's engine."""


class NarrowlyMaskedFast(_NarrowMasks, FastPaillierEvaluator):
    """Of the fast engine."""
