"""Evaluators without one protection: what must not be done, and what the attacks then read.

They live in tests alone; no job file and nothing in the package reaches them.
"""

import os
import secrets
from math import prod
from typing import Any

import numpy as np
from gmpy2 import mpz
from typing_extensions import override

from securevfl.arrays import RingArray
from securevfl.crypto.bfv import BfvEvaluator
from securevfl.crypto.bfv_core import BfvMultiplier
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.paillier import PaillierEvaluator, PaillierKeyPeer
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, ShortExponentResidues
from securevfl.crypto.residues import scaled_message, share_of, uniform_below
from securevfl.crypto.ring_products import RingProductEvaluator
from securevfl.crypto.seal_codec import coefficient_ciphertext
from securevfl.crypto.slot_products import SlotEvaluator


class _EncryptsNothing(BfvMultiplier):
    """Masks, but its blinders are no encryptions: c₁ = 0."""

    @override
    def _blinder(self) -> Any:
        if self.engine == "native":
            return np.zeros(DEGREE, np.int32), np.zeros((2, DEGREE), np.int32)
        nothing = np.zeros((len(self._primes), DEGREE), np.uint64)
        return coefficient_ciphertext(self._context, nothing)


class _MasksModuloT(BfvMultiplier):
    """Its masks are multiples of q'/t, rounded: what lies between is the product's noise."""

    @override
    def _mask(self, count: int) -> tuple[RingArray, RingArray]:
        sizes, primes = self._sizes, self._primes[: self._sizes.reply_primes]
        share = uniform_below(sizes.plain_modulus, count)
        modulus, plain = prod(primes), sizes.plain_modulus
        residues = [scaled_message(share, modulus, plain, prime) for prime in primes]
        return np.stack(residues), share


class EncryptsNothing(_EncryptsNothing, BfvEvaluator):
    """See above, for the products of bfv."""


class MasksModuloT(_MasksModuloT, BfvEvaluator):
    """See above, for the products of bfv."""


class RingEncryptsNothing(_EncryptsNothing, RingProductEvaluator):
    """See above, for products in the ring."""


class RingMasksModuloT(_MasksModuloT, RingProductEvaluator):
    """See above, for products in the ring."""


class SlotsEncryptNothing(_EncryptsNothing, SlotEvaluator):
    """See above, for products in slots."""


class SlotMasksModuloT(_MasksModuloT, SlotEvaluator):
    """See above, for products in slots."""


class ShortBlinders(FastPaillierEvaluator):
    """Blinds with short exponents, as the owner does with its own encryptions."""

    residues: ShortExponentResidues

    @override
    def _blinder(self) -> mpz:
        return self.residues.draw()


class _NarrowMasks(PaillierKeyPeer):
    """Masks 2^40 times as large as any product, but not uniform modulo n."""

    @override
    def _fresh_mask(self) -> int:
        return secrets.randbits(self._slots.width * self._slots.count)


class NarrowlyMasked(_NarrowMasks, PaillierEvaluator):
    """Of phe's engine."""


class NarrowlyMaskedFast(_NarrowMasks, FastPaillierEvaluator):
    """Of the fast engine."""


def narrow_ckks_mask(primes: list[int], plain_bits: int, count: int) -> tuple[RingArray, RingArray]:
    """2^25 times as wide as a product, in place of the whole modulus."""
    low, high = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(2, count).astype(object)
    mask = (high << 64 | low) % (1 << 113) - (1 << 112)
    residues = np.stack([(mask % prime).astype(np.uint64) for prime in primes])
    return residues, share_of(mask, prod(primes), plain_bits)
