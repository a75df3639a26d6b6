"""Entrywise products of two parties' complex integers in additive shares: BFV in slots.

The *owner* of a key sends Enc(x), Enc(y) for x + iy. The *evaluator*, who has u + iv, replies
Enc(ux − vy − r) and Enc(uy + vx − r′) with uniform r, r′. Both then hold shares of the product's
two parts modulo the prime p. A share modulo p becomes one modulo 2^64 without a message: the
evaluator keeps r as an integer, and the owner subtracts p from what it decrypted. This is wrong if
r ≤ the part, which has probability |part|/p as r < p is uniform.

The wire format is that of all BFV products (bfv_core), but a reply contains all of c₀, without the
lowest bits.

Learns, with semi-honest parties:
    owner: nothing. It decrypts the product minus a number that is uniform modulo p in every
        coefficient; re-randomizing and flooding hide c₁ and the noise of a reply.
    evaluator: nothing, by BFV's security.
Source: Brakerski, Gentry, Vaikuntanathan, "Fully homomorphic encryption without bootstrapping",
section 5.1; Smart, Vercauteren 2014 (slots); sizes: slot_parameters.
"""

import numpy as np
import tenseal.sealapi as seal

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_core import BfvKeyHolder, pack_reply
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.flooded_ends import FloodedMultiplier
from securevfl.crypto.residues import pack, packed_size, uniform_below
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.crypto.seal_codec import ciphertext_of, seal_errors, seeded_parts
from securevfl.crypto.slot_parameters import PLAIN_BITS, REPLY_BITS, SlotParameters
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded

REPLY_BYTES = packed_size(DEGREE, REPLY_BITS) + packed_size(
    DEGREE, REPLY_BITS - SlotParameters.dropped_bits
)
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
        if len(replies) != 2 or any(len(reply) != REPLY_BYTES for reply in replies):  # noqa: PLR2004
            raise CryptoError(f"two replies of {REPLY_BYTES} bytes expected")
        found = np.array([self._read(reply)[:count] for reply in replies], np.uint64)
        return found - np.uint64(self._parameters.plain_modulus)

    def _read(self, data: bytes) -> list[int]:
        reply = ciphertext_of(self._context, self._reply_level, self._reply(data, _ALL))
        plain = seal.Plaintext()
        with seal_errors("a reply"):
            # Under another key noise is uniform, and hardly ever small in all slots.
            if self._decryptor.invariant_noise_budget(reply) < 1:
                raise KeyMismatch("a reply is damaged, or was made under another key")
            self._decryptor.decrypt(reply, plain)
        values: list[int] = self._encoder.decode_uint64(plain)
        return values


class SlotEvaluator(FloodedMultiplier):
    """A party that multiplies under another party's key."""

    def __init__(self, public_bytes: bytes, parameters: SlotParameters) -> None:
        super().__init__(public_bytes, parameters, inputs=1)
        self._parameters = parameters
        self._encoder = seal.BatchEncoder(self._context)

    def multiply(
        self, encrypted: tuple[bytes, ...], parts: IntArray
    ) -> tuple[tuple[bytes, bytes], RingArray]:
        """Multiply the owner's complex integers by this party's, shape (2, count).

        Returns the replies, re-randomized and flooded, and this party's shares of the products'
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
        masks = self._masks()
        with seal_errors("an encrypted input"):
            real, imaginary = self._product(x, u), self._product(y, u)
            self._evaluator.sub_inplace(real, self._product(y, v))
            self._evaluator.add_inplace(imaginary, self._product(x, v))
        replies = self._masked(real, masks[0]), self._masked(imaginary, masks[1])
        return replies, masks[:, : parts.shape[1]]

    def _masks(self) -> RingArray:
        return uniform_below(self._parameters.plain_modulus, 2 * DEGREE).reshape(2, DEGREE)

    def _masked(self, product: seal.Ciphertext, mask: RingArray) -> bytes:
        modulus = np.uint64(self._parameters.plain_modulus)
        blinder = self._flooded(_encoded(self._encoder, (modulus - mask) % modulus))
        return pack_reply(self._parameters, self._finished(product, blinder), _ALL)


def _encoded(encoder: seal.BatchEncoder, residues: RingArray) -> seal.Plaintext:
    plain = seal.Plaintext()
    encoder.encode(residues.tolist(), plain)
    return plain


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
