"""What all BFV products share (Fan, Vercauteren 2012): both ends of a key, on TenSEAL's SEAL.

Wire format, without spare bits: an input is its c₀ modulo each prime and the seed of its c₁. A
reply is, for each remaining prime, its c₁ and the c₀ coefficients that the owner needs.

A reply's c₁ is that of a fresh public-key encryption plus a·X. Without this encryption the owner,
who knows a, could divide it out (200 of 200 coefficients of X), and so it could if it chose p₁ of
its public key (seeded_keys). Every coefficient of c₀ that is sent has a mask modulo the reply's
modulus q': a uniform one (bfv), or one that leaves exact shares (ring_products, slot_products).

A reply is no checksum: most changes of its bytes change numbers. Connections must be authenticated.
Not protected: an evaluator that has a crafted ciphertext decrypted; see SECURITY.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvSizes
from securevfl.crypto.fixed_point import to_ring
from securevfl.crypto.native_key import fresh_blinder
from securevfl.crypto.native_products import (
    ByBlock,
    Layout,
    NativeProducts,
    chosen,
    chosen_key,
)
from securevfl.crypto.residues import (
    pack,
    packed_size,
    scaled_message,
    unpack,
)
from securevfl.crypto.scheme import BlinderPool
from securevfl.crypto.seal_codec import (
    SEED_BYTES,
    ciphertext_of,
    coefficients_of,
    from_seeded,
    plaintext,
    polynomials_of,
    public_key_of,
    seal_errors,
    seeded_parts,
)
from securevfl.crypto.seeded_keys import (
    coefficients,
    make_public_bytes,
    public_words,
    ternary_of,
)
from securevfl.errors import CryptoError, KeyMismatch
from securevfl.threads import by_block


def inputs_of(
    sizes: BfvSizes, context: seal.SEALContext, encrypted: bytes
) -> Iterator[seal.Ciphertext]:
    """The ciphertexts of an encrypted vector."""
    residues = np.empty((len(sizes.prime_bits), DEGREE), np.uint64)
    at = 0
    while at < len(encrypted):
        for row, bits in enumerate(sizes.prime_bits):
            end = at + packed_size(DEGREE, bits)
            residues[row] = unpack(encrypted[at:end], DEGREE, bits)
            at = end
        end = at + SEED_BYTES
        yield from_seeded(context, residues, encrypted[at:end])
        at = end


def reply_bytes(sizes: BfvSizes, revealed: int) -> int:
    """Size in bytes of a reply that reveals this many coefficients."""
    return sum(packed_size(DEGREE, bits) + packed_size(revealed, bits) for bits in sizes.reply_bits)


def pack_reply(sizes: BfvSizes, polynomials: RingArray, positions: NDArray[np.int64]) -> bytes:
    """Pack (c₀, c₁) of shape (2, reply primes, DEGREE): all of c₁, and c₀ at the positions."""
    return b"".join(
        pack(c1, bits) + pack(c0[positions], bits)
        for c0, c1, bits in zip(*polynomials, sizes.reply_bits, strict=True)
    )


def unpack_reply(sizes: BfvSizes, data: bytes, positions: NDArray[np.int64]) -> RingArray:
    """(c₀, c₁), shape (2, reply primes, DEGREE); c₀ is 0 where it was not sent."""
    polynomials, at = np.zeros((2, sizes.reply_primes, DEGREE), np.uint64), 0
    for row, bits in enumerate(sizes.reply_bits):
        end = at + packed_size(DEGREE, bits)
        polynomials[1, row] = unpack(data[at:end], DEGREE, bits)
        at = end + packed_size(len(positions), bits)
        polynomials[0, row, positions] = unpack(data[end:at], len(positions), bits)
    return polynomials


@dataclass(frozen=True)
class _EncryptedZero:
    """An encryption of zero under the secret key, used once; messages are added to `heads`."""

    heads: RingArray
    tails: tuple[bytes, ...]
    seed: bytes


class BfvKeyHolder:
    """The end with the secret key: encrypts inputs and decrypts replies.

    The first `extent` coefficients of an input hold values; up to `capacity` encryptions of zero
    are made offline. With `native`, C encrypts and decrypts where this machine can (native_key).
    """

    def __init__(
        self,
        sizes: BfvSizes,
        extent: int,
        capacity: int,
        seed: bytes | None = None,
        *,
        native: bool = True,
    ) -> None:
        self._sizes = sizes
        self._extent = extent
        self._context = sizes.context()
        generator = seal.KeyGenerator(self._context)
        secret = generator.secret_key()
        self._public_bytes = make_public_bytes(self._context, secret, seed)
        # Encrypting with the secret key allows c₁ to be sent as a seed.
        self._encryptor = seal.Encryptor(self._context, secret)
        self._decryptor = seal.Decryptor(self._context, secret)
        self._native = (
            chosen_key(sizes, lambda: ternary_of(self._context, secret)) if native else None
        )
        self._reply_level = sizes.reply_level()
        self._primes = sizes.primes()
        self._modulus = prod(self._primes)
        self._pool = BlinderPool(self._encrypted_zero, capacity)

    @property
    def public_bytes(self) -> bytes:
        """The public key, see seeded_keys."""
        return self._public_bytes

    def make_blinder(self) -> bool:
        """Make an encryption of zero offline; False if the stock is full."""
        return self._pool.make_one()

    def _encrypted_zero(self) -> _EncryptedZero:
        if self._native is not None:
            c0, seed = self._native.zero()
        else:
            fresh = self._encryptor.encrypt_zero_symmetric()
            c0, seed = seeded_parts(fresh, len(self._primes), DEGREE)
        end = self._extent + self._extent % 2  # coefficients are packed in pairs
        tails = [
            pack(row[end:], bits) if end < DEGREE else b""
            for row, bits in zip(c0, self._sizes.prime_bits, strict=True)
        ]
        return _EncryptedZero(c0[:, :end].copy(), tuple(tails), seed)

    def _input(self, values: IntArray) -> bytes:
        """One input: an encryption of zero, plus round(q·v/t) in c₀."""
        zero, plain = self._pool.take(), self._sizes.plain_modulus
        pieces = []
        for head, tail, bits, prime in zip(
            zero.heads, zero.tails, self._sizes.prime_bits, self._primes, strict=True
        ):
            scaled = scaled_message(to_ring(values), self._modulus, plain, prime)
            head[: len(scaled)] = (head[: len(scaled)] + scaled) % np.uint64(prime)
            pieces += [pack(head, bits), tail]
        return b"".join([*pieces, zero.seed])

    def _opened(self, data: bytes, replies: int, positions: NDArray[np.int64]) -> RingArray:
        """Revealed coefficients modulo t, (replies, positions); a CryptoError if invalid."""
        size = reply_bytes(self._sizes, len(positions))
        if len(data) != replies * size:
            raise CryptoError(f"{len(data)} bytes, {replies} bfv replies of {size} expected")
        found, view = np.empty((replies, len(positions)), np.uint64), memoryview(data)

        def decrypt(part: slice) -> None:
            reply = view[part.start * size : part.stop * size]
            opened = None if self._native is None else self._native.opened(reply, positions)
            if opened is None:  # without C, or for SEAL's error
                opened = self._coefficients(self._reply(bytes(reply), positions), positions)
            found[part.start] = opened

        by_block(decrypt, replies, 1)
        return found

    def _reply(self, data: bytes, positions: NDArray[np.int64]) -> RingArray:
        """A reply's polynomials; a KeyMismatch if c₁ is 0, whose c₀ would be in clear."""
        polynomials = unpack_reply(self._sizes, data, positions)
        if not polynomials[1].any():
            raise KeyMismatch("a reply has c1 = 0: no key encrypts like this")
        return polynomials

    def _coefficients(self, polynomials: RingArray, positions: NDArray[np.int64]) -> RingArray:
        plain = seal.Plaintext()
        reply = ciphertext_of(self._context, self._reply_level, polynomials)
        with seal_errors("a reply"):
            self._decryptor.decrypt(reply, plain)
        return coefficients_of(plain, positions)


class BfvMultiplier:
    """The end with the public key: reads inputs and multiplies.

    A vector is `inputs` ciphertexts. With `matrix_bits` this end computes modulo 2^matrix_bits
    instead of the key's t. In NTT form t plays no part, and SEAL lifts plaintexts of a small t
    without multiple precision, in half the time.

    With a `layout`, products are made in C where this machine can (native_products), for entries
    up to `largest_entry`; the replies are the same.

    Raises:
        KeyMismatch: the key is one of other sizes.
        CryptoError: the bytes are no public key.
    """

    def __init__(
        self,
        public_bytes: bytes,
        sizes: BfvSizes,
        inputs: int,
        matrix_bits: int | None = None,
        *,
        layout: Layout | None = None,
        largest_entry: int = 0,
    ) -> None:
        self._sizes = sizes
        self._inputs = inputs
        self._context = sizes.context(matrix_bits)
        self._evaluator = seal.Evaluator(self._context)
        self._primes = sizes.primes()
        self._entry_mask = np.uint64((1 << (matrix_bits or sizes.plain_bits)) - 1)
        self._reply_level = sizes.reply_level(matrix_bits)
        self._pool: BlinderPool[Any]
        self._native: NativeProducts | None = None
        key = public_words(sizes.context(), public_bytes)
        if layout is not None:
            self._native = chosen(
                sizes,
                layout,
                largest_entry,
                lambda: coefficients(self._context, key[:, : len(self._primes)]),
                self._by_seal,
            )
        if self._native is None:
            self._encryptor = seal.Encryptor(self._context, public_key_of(self._context, key))

    @property
    def engine(self) -> str:
        """What makes the products: native, or seal."""
        return "seal" if self._native is None else "native"

    def _by_seal(self, piece: bytes) -> seal.Ciphertext:
        """One input, or SEAL's error."""
        return next(inputs_of(self._sizes, self._context, piece))

    def _require_size(self, encrypted: bytes) -> None:
        size = self._sizes.input_bytes + SEED_BYTES
        if len(encrypted) != self._inputs * size:
            raise CryptoError(
                f"{len(encrypted)} bytes, {self._inputs} bfv inputs of {size} bytes expected"
            )

    def _take_in(self, encrypted: bytes) -> Iterator[seal.Ciphertext]:
        self._require_size(encrypted)
        for vector in inputs_of(self._sizes, self._context, encrypted):
            self._evaluator.transform_to_ntt_inplace(vector)
            yield vector

    def _part(self, block: IntArray, chunk: int) -> seal.Plaintext | None:
        """Rows of a matrix, up to `chunk` entries each, as a plaintext in NTT form; None for zeros.

        Each row is reversed and stored at the end of its own chunk.
        """
        if not block.any():
            return None
        rows, columns = block.shape
        coefficients = np.zeros((rows, chunk), np.uint64)
        coefficients[:, chunk - columns :] = to_ring(block[:, ::-1]) & self._entry_mask
        return self._transformed(plaintext(self._context, coefficients.reshape(-1)))

    def _transformed(self, plain: seal.Plaintext) -> seal.Plaintext:
        transformed = seal.Plaintext()
        self._evaluator.transform_to_ntt(plain, self._context.first_parms_id(), transformed)
        return transformed

    def _product(self, vector: seal.Ciphertext, plain: seal.Plaintext) -> seal.Ciphertext:
        product = seal.Ciphertext()
        self._evaluator.multiply_plain(vector, plain, product)
        return product

    def _added(
        self, total: seal.Ciphertext | None, vector: seal.Ciphertext, plain: seal.Plaintext
    ) -> seal.Ciphertext:
        """Add vector·plain to a sum in NTT form; None is 0."""
        product = self._product(vector, plain)
        if total is None:
            return product
        self._evaluator.add_inplace(total, product)
        return total

    def _blinder(self) -> Any:  # noqa: ANN401
        """A fresh encryption of zero for one reply, or the samples that C makes one of."""
        if self._native is not None:
            return fresh_blinder()
        encrypted = seal.Ciphertext()
        self._encryptor.encrypt_zero(encrypted)
        return encrypted

    def _made_natively(
        self, encrypted: bytes, matrix: NDArray[Any] | ByBlock, positions: NDArray[np.int64]
    ) -> Iterator[tuple[bytes, RingArray]]:
        """As `_sealed`, for every reply of M, (outputs, inner)."""
        self._require_size(encrypted)
        if self._native is None:
            raise CryptoError("these products are SEAL's")
        return self._native.replies(encrypted, matrix, self._pool.take, self._mask, positions)

    def _sealed(
        self, total: seal.Ciphertext | None, blinder: seal.Ciphertext, positions: NDArray[np.int64]
    ) -> tuple[bytes, RingArray]:
        """The reply with a sum in NTT form, None for 0, plus a blinder, an encryption of zero.

        Also returns this end's share of the mask modulo t, (positions,).
        """
        if total is not None:
            self._evaluator.transform_from_ntt_inplace(total)
            self._evaluator.add_inplace(blinder, total)
        self._evaluator.mod_switch_to_inplace(blinder, self._reply_level)
        polynomials = polynomials_of(blinder)
        residues, share = self._mask(len(positions))
        for c0, part, prime in zip(polynomials[0], residues, self._primes, strict=False):
            c0[positions] = (c0[positions] + part) % np.uint64(prime)
        return pack_reply(self._sizes, polynomials, positions), share

    def _mask(self, count: int) -> tuple[RingArray, RingArray]:
        return self._sizes.mask(self._primes[: self._sizes.reply_primes], count)
