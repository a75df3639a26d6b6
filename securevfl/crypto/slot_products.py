"""Entrywise products of two parties' complex integers in additive shares: BFV in slots.

The *owner* of a key sends Enc(x), Enc(y) for x + iy. The *evaluator*, who has u + iv, replies
Enc(ux − vy − r) and Enc(uy + vx − r′) with uniform r, r′. Both then hold shares of the product's
two parts modulo the prime p. A share modulo p becomes one modulo 2^64 without a message: the
evaluator keeps r as an integer, and the owner subtracts p from what it decrypted. This is wrong if
r ≤ the part, which has probability |part|/p as r < p is uniform.

The wire format is that of all BFV products (bfv_core); a reply contains all of c₀.

Learns:
    owner: nothing, whatever it encrypts. A reply is re-randomized, and every coefficient has a mask
        modulo the reply's modulus, within 2^−40 of uniform over the job (`ExactSizes`).
    evaluator: nothing, by BFV's security, if it replies with products. A cheat's replies change the
        owner's shares by numbers that depend on its key.
Source: Brakerski, Gentry, Vaikuntanathan, "Fully homomorphic encryption without bootstrapping",
section 5.1; Smart, Vercauteren 2014 (slots); sizes: slot_parameters.
"""

import numpy as np
import tenseal.sealapi as seal

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.residues import pack
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.crypto.seal_codec import plaintext, seal_errors, seeded_parts
from securevfl.crypto.slot_parameters import PLAIN_BITS, SlotParameters
from securevfl.errors import CryptoError, RangeExceeded

_LARGEST_PART_BITS = PLAIN_BITS // 2 - 2  # ux − vy is far below p
_ALL = np.arange(DEGREE)


class SlotOwner(BfvKeyHolder):
    """The party with the secret key."""

    def __init__(self, parameters: SlotParameters, seed: bytes | None = None) -> None:
        super().__init__(parameters, extent=DEGREE, capacity=0, seed=seed)
        self._parameters = parameters
        self._encoder = seal.BatchEncoder(self._context)

    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        """Encrypt complex integers, (2, up to DEGREE); a RangeExceeded if p cannot hold them."""
        first, second = _slots(parts, self._parameters.plain_modulus)
        return self._of_slots(first), self._of_slots(second)

    def _of_slots(self, residues: RingArray) -> bytes:
        fresh = self._encryptor.encrypt_symmetric(_encoded(self._encoder, residues))
        c0, seed = seeded_parts(fresh, len(self._primes), DEGREE)
        return b"".join([*map(pack, c0, self._parameters.prime_bits), seed])

    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        """This party's shares of the parts modulo 2^64, (2, count); a CryptoError if invalid."""
        if len(replies) != 2:  # noqa: PLR2004
            raise CryptoError(f"{len(replies)} replies, 2 of a complex number expected")
        found = np.concatenate([self._opened(reply, 1, _ALL) for reply in replies])
        slots = [_decoded(self._context, self._encoder, each)[:count] for each in found]
        return np.array(slots, np.uint64) - np.uint64(self._parameters.plain_modulus)


class SlotEvaluator(BfvMultiplier):
    """A party that multiplies under another party's key."""

    def __init__(self, public_bytes: bytes, parameters: SlotParameters) -> None:
        super().__init__(public_bytes, parameters, inputs=1)
        self._parameters = parameters
        self._encoder = seal.BatchEncoder(self._context)

    def multiply(
        self, encrypted: tuple[bytes, ...], parts: IntArray
    ) -> tuple[tuple[bytes, bytes], RingArray]:
        """Multiply the owner's complex integers by this party's, shape (2, count).

        Returns the replies, re-randomized and masked, and this party's shares of the products'
        parts modulo 2^64, shape (2, count).

        Raises:
            RangeExceeded: see `SlotOwner.encrypt`.
            CryptoError: bytes that are not an encryption with these parameters.
        """
        if len(encrypted) != 2:  # noqa: PLR2004
            raise CryptoError(f"{len(encrypted)} ciphertexts, 2 of a complex number expected")
        u, v = (
            self._transformed(_encoded(self._encoder, residues))
            for residues in _slots(parts, self._parameters.plain_modulus)
        )
        (x,), (y,) = map(self._take_in, encrypted)
        with seal_errors("an encrypted input"):
            real, imaginary = self._product(x, u), self._product(y, u)
            self._evaluator.sub_inplace(real, self._product(y, v))
            self._evaluator.add_inplace(imaginary, self._product(x, v))
            sealed = [self._sealed(each, self._zero(), _ALL) for each in (real, imaginary)]
        (first, of_first), (second, of_second) = sealed
        added = [_decoded(self._context, self._encoder, each) for each in (of_first, of_second)]
        modulus = np.uint64(self._parameters.plain_modulus)
        # The owner has the product plus z: this party's share is −z, modulo p.
        shares = (modulus - np.array(added, np.uint64)) % modulus
        return (first, second), shares[:, : parts.shape[1]]


def _encoded(encoder: seal.BatchEncoder, residues: RingArray) -> seal.Plaintext:
    plain = seal.Plaintext()
    encoder.encode(residues.tolist(), plain)
    return plain


def _decoded(
    context: seal.SEALContext, encoder: seal.BatchEncoder, coefficients: RingArray
) -> list[int]:
    """The slots of a polynomial with these coefficients."""
    values: list[int] = encoder.decode_uint64(plaintext(context, coefficients))
    return values


def _slots(parts: IntArray, modulus: int) -> RingArray:
    """Residues that fill all slots, shape (2, DEGREE); a RangeExceeded if p could not hold them."""
    fits = parts.dtype == np.int64 and parts.ndim == 2 and len(parts) == 2  # noqa: PLR2004
    if not (fits and 1 <= parts.shape[1] <= DEGREE):
        raise RangeExceeded(
            f"complex integers of shape {parts.shape}, {parts.dtype}: int64 of (2, up to "
            f"{DEGREE}) expected"
        )
    if np.any(parts >> _LARGEST_PART_BITS != parts >> (MODULUS_BITS - 1)):
        raise RangeExceeded(f"a complex integer's part of more than {_LARGEST_PART_BITS} bits")
    # Not zeros: SEAL refuses to multiply by a plaintext that is zero.
    padded = np.ones((2, DEGREE), np.int64)
    padded[:, : parts.shape[1]] = parts
    return (padded % modulus).view(np.uint64)
