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
from securevfl.crypto import native, native_products
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.native_products import Layout
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.crypto.seal_codec import coefficients_of, plaintext, seal_errors
from securevfl.crypto.slot_parameters import PLAIN_BITS, SlotParameters
from securevfl.errors import CryptoError, RangeExceeded

_LARGEST_PART_BITS = PLAIN_BITS // 2 - 2  # ux − vy is far below p
_ALL = np.arange(DEGREE)
_PAIR = Layout(DEGREE, 1, 2, wide=True)  # inputs x and y


class _Slots:
    """Polynomials modulo p and their values, the slots, both (DEGREE,), in SEAL's order."""

    def __init__(self, parameters: SlotParameters, *, by_seal: bool) -> None:
        self._native = not by_seal and native_products.fills_slots()
        self._context = parameters.context()
        self._encoder = None if self._native else seal.BatchEncoder(self._context)

    def polynomial(self, slots: RingArray) -> RingArray:
        if self._encoder is None:
            return native.of_slots(slots, vector=native_products.uses_vector())
        plain = seal.Plaintext()
        self._encoder.encode(slots.tolist(), plain)
        return coefficients_of(plain, _ALL)

    def values(self, polynomial: RingArray) -> RingArray:
        if self._encoder is None:
            return native.to_slots(polynomial, vector=native_products.uses_vector())
        return np.array(
            self._encoder.decode_uint64(plaintext(self._context, polynomial)), np.uint64
        )


class SlotOwner(BfvKeyHolder):
    """The party with the secret key."""

    def __init__(
        self, parameters: SlotParameters, seed: bytes | None = None, *, native: bool = True
    ) -> None:
        super().__init__(parameters, extent=DEGREE, capacity=0, seed=seed, native=native)
        self._parameters = parameters
        self._slots = _Slots(parameters, by_seal=self._native is None)

    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        """Encrypt complex integers, (2, up to DEGREE); a RangeExceeded if p cannot hold them."""
        x, y = (
            self._input(self._slots.polynomial(residues).view(np.int64))
            for residues in _slots(parts, self._parameters.plain_modulus)
        )
        return x, y

    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        """This party's shares of the parts modulo 2^64, (2, count); a CryptoError if invalid."""
        if len(replies) != 2:  # noqa: PLR2004
            raise CryptoError(f"{len(replies)} replies, 2 of a complex number expected")
        found = np.concatenate([self._opened(reply, 1, _ALL) for reply in replies])
        slots = np.stack([self._slots.values(each)[:count] for each in found])
        return slots - np.uint64(self._parameters.plain_modulus)


class SlotEvaluator(BfvMultiplier):
    """A party that multiplies under another party's key."""

    def __init__(
        self, public_bytes: bytes, parameters: SlotParameters, *, native: bool = True
    ) -> None:
        super().__init__(
            public_bytes, parameters, inputs=1, layout=_PAIR if native else None,
            largest_entry=1 << (PLAIN_BITS - 1),
        )  # fmt: skip
        self._parameters = parameters
        self._slots = _Slots(parameters, by_seal=self._native is None)

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
        for each in encrypted:
            self._require_size(each)
        modulus = np.uint64(self._parameters.plain_modulus)
        u, v = (
            self._slots.polynomial(residues)
            for residues in _slots(parts, self._parameters.plain_modulus)
        )
        if self._native is None:
            made = self._made_by_seal(encrypted, u, v)
        else:
            both = np.stack([u, (modulus - v) % modulus, v, u]).view(np.int64)
            both -= int(modulus) * (both > int(modulus) // 2)
            blinders = [self._blinder(), self._blinder()]
            made = self._native.combinations(
                b"".join(encrypted), both.reshape(2, 2, DEGREE), blinders, self._mask
            )
        (first, of_first), (second, of_second) = made
        added = np.stack([self._slots.values(each) for each in (of_first, of_second)])
        # The owner has the product plus z: this party's share is −z, modulo p.
        shares = (modulus - added) % modulus
        return (first, second), shares[:, : parts.shape[1]]

    def _made_by_seal(
        self, encrypted: tuple[bytes, ...], *polynomials: RingArray
    ) -> list[tuple[bytes, RingArray]]:
        (x,), (y,) = map(self._take_in, encrypted)
        with seal_errors("an encrypted input"):
            u, v = (self._transformed(plaintext(self._context, each)) for each in polynomials)
            real, imaginary = self._product(x, u), self._product(y, u)
            self._evaluator.sub_inplace(real, self._product(y, v))
            self._evaluator.add_inplace(imaginary, self._product(x, v))
            return [self._sealed(each, self._blinder(), _ALL) for each in (real, imaginary)]


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
