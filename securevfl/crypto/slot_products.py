"""Products of two parties' complex integers, entry by entry, in additive shares: BFV in slots.

The *owner* of a key sends Enc(x), Enc(y) of x + iy; the *evaluator*, who has u + iv, replies
Enc(ux − vy − r) and Enc(uy + vx − r′) with uniform r, r′: both then hold shares of the product's
two parts modulo the prime p. A share modulo p becomes one modulo 2^64 without a message: the
evaluator keeps r as an integer, the owner takes p off what it decrypted. It goes wrong where
r ≤ the part (as r < p, and uniform): with probability |part|/p.

On the wire: an input is its c₀, bit-packed, and the seed of its c₁; a reply is its c₁ modulo the
first prime and its c₀ there without the last bits, bit-packed.

Learns, with semi-honest parties:
    owner: nothing. It decrypts the product minus what is uniform modulo p in every coefficient; a
        reply's c₁ is that of a fresh public-key encryption plus a·u, and its noise, which holds
        e·u for e known to the owner, is flooded within a statistical distance of 2^−40 over the
        job.
    evaluator: nothing, by BFV's security.
Replies of another key, and bytes that are none, have too much noise and are refused; that is no
checksum.
Source: Brakerski, Gentry, Vaikuntanathan, "Fully homomorphic encryption without bootstrapping",
section 5.1; Smart, Vercauteren 2014 (slots); sizes: slot_parameters.
"""

import numpy as np
import tenseal.sealapi as seal

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.bit_packing import pack, packed_size, unpack
from securevfl.crypto.residues import uniform_below, uniform_noise
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    coefficient_ciphertext,
    from_bytes,
    from_seeded,
    polynomials_of,
    seal_errors,
    seeded_parts,
    split,
    to_bytes,
)
from securevfl.crypto.slot_parameters import (
    DROPPED_BITS,
    PLAIN_BITS,
    REPLY_BITS,
    SlotParameters,
)
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded

REPLY_BYTES = packed_size(DEGREE, REPLY_BITS) + packed_size(DEGREE, REPLY_BITS - DROPPED_BITS)
_LARGEST_KEY = 1 << 20
_LARGEST_PART_BITS = PLAIN_BITS // 2 - 2  # ux − vy is far below p


class SlotOwner:
    """The party that holds the secret key.

    Args:
        parameters: of the job.
    """

    def __init__(self, parameters: SlotParameters) -> None:
        self._parameters = parameters
        self._context = parameters.context
        generator = seal.KeyGenerator(self._context)
        public_key = seal.PublicKey()
        generator.create_public_key(public_key)
        self.public_bytes = to_bytes(public_key)
        # Under the secret key, so that c₁ is a seed.
        self._encryptor = seal.Encryptor(self._context, generator.secret_key())
        self._decryptor = seal.Decryptor(self._context, generator.secret_key())
        self._encoder = seal.BatchEncoder(self._context)

    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        """Encrypt complex integers, shape (2, up to DEGREE).

        Raises:
            RangeExceeded: a part whose products p could not hold, or another shape.
        """
        first, second = _slots(parts, self._parameters.plain_modulus)
        return self._input(first), self._input(second)

    def _input(self, residues: RingArray) -> bytes:
        plain = seal.Plaintext()
        self._encoder.encode(residues.tolist(), plain)
        fresh = self._encryptor.encrypt_symmetric(plain)
        c0, seed = seeded_parts(fresh, len(self._parameters.primes), DEGREE)
        packed = map(pack, c0, self._parameters.prime_bits)
        return b"".join([*packed, seed])

    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        """This party's shares of the products' parts modulo 2^64, shape (2, count).

        Raises:
            CryptoError: bytes that are no reply of this key.
        """
        if len(replies) != 2 or any(len(reply) != REPLY_BYTES for reply in replies):  # noqa: PLR2004
            raise CryptoError(f"two replies of {REPLY_BYTES} bytes expected")
        found = np.array([self._opened(reply)[:count] for reply in replies], np.uint64)
        return found - np.uint64(self._parameters.plain_modulus)

    def _opened(self, reply: bytes) -> list[int]:
        prime = self._parameters.primes[0]
        end = packed_size(DEGREE, REPLY_BITS)
        c1 = unpack(reply[:end], DEGREE, REPLY_BITS)
        if not c1.any():
            raise KeyMismatch("a reply has no c1: it is no ciphertext of any key")
        c0 = unpack(reply[end:], DEGREE, REPLY_BITS - DROPPED_BITS) << np.uint64(DROPPED_BITS)
        c0 = (c0 + np.uint64(1 << (DROPPED_BITS - 1))) % np.uint64(prime)
        both = np.stack([c0, c1])[:, None]
        ciphertext = ciphertext_of(self._context, self._parameters.reply_level, both)
        plain = seal.Plaintext()
        with seal_errors("a reply"):
            # Noise of a foreign reply is uniform: below a quarter of the gap in no slot of 2^8192.
            if self._decryptor.invariant_noise_budget(ciphertext) < 1:
                raise KeyMismatch("a reply is damaged, or was made under another key")
            self._decryptor.decrypt(ciphertext, plain)
        values: list[int] = self._encoder.decode_uint64(plain)
        return values


class SlotEvaluator:
    """A party that multiplies under another party's key.

    Args:
        public_bytes: the owner's public key.
        parameters: of the job.

    Raises:
        KeyMismatch: bytes that are no public key of these parameters.
    """

    def __init__(self, public_bytes: bytes, parameters: SlotParameters) -> None:
        self._parameters = parameters
        self._context = parameters.context
        self._evaluator = seal.Evaluator(self._context)
        self._encoder = seal.BatchEncoder(self._context)
        (piece,) = split(public_bytes, 1, _LARGEST_KEY)
        public_key = from_bytes(self._context, seal.PublicKey(), piece)
        self._encryptor = seal.Encryptor(self._context, public_key)
        trial = seal.Ciphertext()
        self._encryptor.encrypt_zero(trial)
        if trial.is_transparent():
            raise KeyMismatch("the BFV public key would encrypt nothing")

    def multiply(
        self, encrypted: tuple[bytes, ...], parts: IntArray
    ) -> tuple[tuple[bytes, bytes], RingArray]:
        """Multiply the owner's complex integers by this party's, shape (2, count).

        Returns:
            What goes back, re-randomized and flooded, and this party's shares of the products'
            parts modulo 2^64, shape (2, count).

        Raises:
            RangeExceeded: a part whose products p could not hold, or another shape.
            CryptoError: bytes that are no encryption of these parameters.
        """
        if len(encrypted) != 2:  # noqa: PLR2004
            raise CryptoError(f"{len(encrypted)} ciphertexts, 2 of a complex number expected")
        u, v = map(self._transformed, _slots(parts, self._parameters.plain_modulus))
        x, y = map(self._take_in, encrypted)
        masks = self._masks()
        with seal_errors("an encrypted input"):
            real, imaginary = self._times(x, u), self._times(y, u)
            self._evaluator.sub_inplace(real, self._times(y, v))
            self._evaluator.add_inplace(imaginary, self._times(x, v))
        replies = self._reply(real, masks[0]), self._reply(imaginary, masks[1])
        return replies, masks[:, : parts.shape[1]]

    def _masks(self) -> RingArray:
        """Uniform residues modulo p, shape (2, DEGREE)."""
        return uniform_below(self._parameters.plain_modulus, 2 * DEGREE).reshape(2, DEGREE)

    def _flood(self) -> RingArray:
        """Noise that hides that of the product, shape (primes, DEGREE)."""
        return uniform_noise(self._parameters.flood_bits, DEGREE, self._parameters.primes)

    def _encoded(self, residues: RingArray) -> seal.Plaintext:
        plain = seal.Plaintext()
        self._encoder.encode(residues.tolist(), plain)
        return plain

    def _transformed(self, residues: RingArray) -> seal.Plaintext:
        transformed = seal.Plaintext()
        level = self._context.first_parms_id()
        self._evaluator.transform_to_ntt(self._encoded(residues), level, transformed)
        return transformed

    def _take_in(self, encrypted: bytes) -> seal.Ciphertext:
        """One input, in NTT form."""
        widths = self._parameters.prime_bits
        edges = np.cumsum([0, *(packed_size(DEGREE, bits) for bits in widths)]).tolist()
        pieces = zip(edges[:-1], edges[1:], widths, strict=True)
        c0 = np.stack([unpack(encrypted[at:end], DEGREE, bits) for at, end, bits in pieces])
        ciphertext = from_seeded(self._context, c0, encrypted[edges[-1] :])
        self._evaluator.transform_to_ntt_inplace(ciphertext)
        return ciphertext

    def _times(self, ciphertext: seal.Ciphertext, plain: seal.Plaintext) -> seal.Ciphertext:
        product = seal.Ciphertext()
        self._evaluator.multiply_plain(ciphertext, plain, product)
        return product

    def _blinder(self, mask: RingArray) -> seal.Ciphertext:
        """Enc(−mask) under the public key, with flooding noise."""
        modulus = np.uint64(self._parameters.plain_modulus)
        blinder = seal.Ciphertext()
        self._encryptor.encrypt(self._encoded((modulus - mask) % modulus), blinder)
        flood = coefficient_ciphertext(self._context, self._flood())
        self._evaluator.add_inplace(blinder, flood)
        return blinder

    def _reply(self, product: seal.Ciphertext, mask: RingArray) -> bytes:
        self._evaluator.transform_from_ntt_inplace(product)
        self._evaluator.add_inplace(product, self._blinder(mask))
        self._evaluator.mod_switch_to_inplace(product, self._parameters.reply_level)
        c0, c1 = polynomials_of(product)[:, 0]
        shortened = c0 >> np.uint64(DROPPED_BITS)
        return pack(c1, REPLY_BITS) + pack(shortened, REPLY_BITS - DROPPED_BITS)


def _slots(parts: IntArray, modulus: int) -> RingArray:
    """Residues that fill all slots, shape (2, DEGREE).

    Raises:
        RangeExceeded: a part whose products p could not hold, or another shape.
    """
    fits = parts.dtype == np.int64 and parts.ndim == 2 and len(parts) == 2  # noqa: PLR2004
    if not (fits and 1 <= parts.shape[1] <= DEGREE):
        raise RangeExceeded(
            f"complex integers of shape {parts.shape}, {parts.dtype}: int64 of (2, up to "
            f"{DEGREE}) expected"
        )
    if np.any(parts >> _LARGEST_PART_BITS != parts >> (MODULUS_BITS - 1)):
        raise RangeExceeded(f"a complex integer's part of more than {_LARGEST_PART_BITS} bits")
    # Not zeros: SEAL multiplies by no plaintext that is zero altogether.
    padded = np.ones((2, DEGREE), np.int64)
    padded[:, : parts.shape[1]] = parts
    return (padded % modulus).view(np.uint64)
