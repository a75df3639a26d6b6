"""The key owner's end of BFV; scheme and guarantees: bfv."""

from dataclasses import dataclass
from math import prod

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.bfv_wire import reply_bytes, unpack_reply
from securevfl.crypto.bit_packing import pack
from securevfl.crypto.fixed_point import require_values
from securevfl.crypto.keys import fingerprint
from securevfl.crypto.pool import BlinderPool
from securevfl.crypto.residues import scaled_message
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    coefficients_of,
    seal_errors,
    seeded_parts,
    to_bytes,
)
from securevfl.errors import CryptoError, KeyMismatch

_CHECKED_TOGETHER = 4


@dataclass(frozen=True)
class _EncryptedZero:
    """A fresh encryption of zero under the secret key; used once.

    Attributes:
        heads: the first coefficients of c₀, those that a message adds to, by prime.
        tails: the others, packed.
        seed: of c₁.
    """

    heads: RingArray
    tails: tuple[bytes, ...]
    seed: bytes


class BfvKeyHolder:
    """The secret key: polynomials into inputs, replies into coefficients.

    Args:
        sizes: of the job.
        extent: how many of an input's coefficients, from the first on, hold values.
        capacity: inputs made ahead at most.
    """

    def __init__(self, sizes: BfvSizes, extent: int, capacity: int) -> None:
        self._sizes = sizes
        self._extent = extent
        self._context = sizes.context()
        generator = seal.KeyGenerator(self._context)
        public_key = seal.PublicKey()
        generator.create_public_key(public_key)
        self._public_bytes = to_bytes(public_key)
        # Under the secret key, so that c₁ is a seed.
        self._encryptor = seal.Encryptor(self._context, generator.secret_key())
        self._decryptor = seal.Decryptor(self._context, generator.secret_key())
        self._reply_level = sizes.reply_level()
        self._primes = sizes.primes()
        self._modulus = prod(self._primes)
        self._pool = BlinderPool(self._encrypted_zero, capacity)

    @property
    def public_bytes(self) -> bytes:
        """A SEAL public key, by its type without any secret; parameters follow from the format."""
        return self._public_bytes

    @property
    def fingerprint(self) -> str:
        """Names the key in results."""
        return fingerprint(self._public_bytes)

    @property
    def key_bits(self) -> None:
        """None: the parameters are at 128 bits."""
        return

    @property
    def modulus_bits(self) -> int:
        """`plain_bits`, of t = 2^plain_bits."""
        return self._sizes.plain_bits

    def make_blinder(self) -> bool:
        """Make one encryption of zero ahead; False where a round's worth is in stock."""
        return self._pool.make_one()

    def _encrypted_zero(self) -> _EncryptedZero:
        fresh = self._encryptor.encrypt_zero_symmetric()
        c0, seed = seeded_parts(fresh, len(self._primes), DEGREE)
        end = self._extent + self._extent % 2  # pairs pack
        tails = [
            pack(row[end:], bits) if end < DEGREE else b""
            for row, bits in zip(c0, self._sizes.prime_bits, strict=True)
        ]
        return _EncryptedZero(c0[:, :end].copy(), tuple(tails), seed)

    def _input(self, values: IntArray) -> bytes:
        """One input: an encryption of zero, plus round(q·v/t) in c₀."""
        zero = self._pool.take()
        pieces = []
        for head, tail, bits, prime in zip(
            zero.heads, zero.tails, self._sizes.prime_bits, self._primes, strict=True
        ):
            scaled = scaled_message(values, self._modulus, self._sizes.plain_bits, prime)
            head[: len(scaled)] = (head[: len(scaled)] + scaled) % np.uint64(prime)
            pieces += [pack(head, bits), tail]
        return b"".join([*pieces, zero.seed])

    def _opened(self, data: bytes, replies: int, positions: NDArray[np.int64]) -> RingArray:
        """The revealed coefficients modulo t, shape (replies, positions).

        Raises:
            CryptoError: bytes that are not so many replies of this key.
        """
        size = reply_bytes(self._sizes, len(positions))
        if len(data) != replies * size:
            raise CryptoError(f"{len(data)} bytes, {replies} bfv replies of {size} expected")
        values = np.empty((replies, len(positions)), np.uint64)
        for first in range(0, replies, _CHECKED_TOGETHER):
            together = slice(first, min(first + _CHECKED_TOGETHER, replies))
            polynomials = np.stack(
                [
                    unpack_reply(self._sizes, data[at * size : (at + 1) * size], positions)
                    for at in range(together.start, together.stop)
                ]
            )
            if not polynomials[:, 1].any(axis=(1, 2)).all():
                raise KeyMismatch("a reply has no c1: it is no ciphertext of any key")
            values[together] = [self._coefficients(reply, positions) for reply in polynomials]
            self._require_little_noise(polynomials, values[together], positions)
        return values

    def _require_little_noise(
        self, replies: RingArray, values: RingArray, positions: NDArray[np.int64]
    ) -> None:
        """Check that a few replies decrypt with little noise, by their sum.

        The sum is moved by 5/16 of what lies between two plaintexts, up and down in turns. What
        is rightly there stays, since four replies' noise is under 1/16 and rounding; what is
        uniform moves 5 times in 16 at every position.

        Raises:
            KeyMismatch: replies of another key, or damaged ones.
        """
        primes = self._primes[: self._sizes.reply_primes]
        shift = prod(primes) * 5 // 16 >> self._sizes.plain_bits
        total: RingArray = replies.sum(axis=0, dtype=np.uint64)
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

    def _coefficients(self, polynomials: RingArray, positions: NDArray[np.int64]) -> RingArray:
        plain = seal.Plaintext()
        reply = ciphertext_of(self._context, self._reply_level, polynomials)
        with seal_errors("a reply"):
            self._decryptor.decrypt(reply, plain)
        return coefficients_of(plain, positions)


class BfvOwner(BfvKeyHolder):
    """The party that holds the secret key.

    Args:
        product_format: fixed point, bounds and size of the job.

    Raises:
        RangeExceeded: products or flooding for which no 128-bit set has room.
    """

    def __init__(self, product_format: ProductFormat) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        super().__init__(parameters, parameters.chunk, parameters.inputs * product_format.vectors)

    def lacks_blinders(self) -> bool:
        """Whether the next vector would have to make some."""
        return len(self._pool) < self._parameters.inputs

    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): for each input its packed c₀ and its seed.

        Raises:
            RangeExceeded: a value beyond the format's bound, or too many rows.
        """
        require_values(values, self._format)
        parameters = self._parameters
        padded = np.zeros(parameters.inputs * parameters.chunk, np.int64)
        padded[: len(values)] = values
        return b"".join(self._input(part) for part in np.split(padded, parameters.inputs))

    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        """Decrypt a masked product: (columns,) integers modulo t, times 2^64/t.

        Raises:
            CryptoError: bytes that are no reply of this key with so many columns.
        """
        if columns < 1:
            raise CryptoError(f"{columns} columns, at least 1 expected")
        parameters = self._parameters
        positions = parameters.positions(columns)
        values = self._opened(ciphertext, parameters.replies(columns), positions)
        found = values[:, : min(parameters.columns_per_reply, columns)].reshape(-1)[:columns]
        return np.left_shift(found, np.uint64(MODULUS_BITS - parameters.plain_bits))
