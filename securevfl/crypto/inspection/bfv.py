"""BFV: an owner knows its key, so the noise e of its own inputs and that of every reply."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import prod

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.bfv import BfvEvaluator
from securevfl.crypto.bfv_owner import BfvKeyHolder
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.bfv_wire import pack_reply, reply_bytes, unpack_input, unpack_reply
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.crypto.seal_codec import (
    SEED_BYTES,
    ciphertext_of,
    coefficients_of,
    from_seeded,
    plaintext,
    polynomials_of,
)


class Phases:
    """What follows from the secret key s and ciphertexts.

    Args:
        sizes: of the key.
        secret: coefficients of s, −1, 0 or 1, shape (DEGREE,).
    """

    def __init__(self, sizes: BfvSizes, secret: IntArray) -> None:
        self.sizes = sizes
        self.context = sizes.context()
        self.primes = sizes.primes()
        self._operations = seal.Evaluator(self.context)
        modulo_t = np.uint64((1 << sizes.plain_bits) - 1)
        self._secret = plaintext(self.context, secret.view(np.uint64) & modulo_t)

    def phase(self, ciphertext: seal.Ciphertext) -> tuple[NDArray[np.object_], int]:
        """c₀ + c₁·s modulo the product of the level's primes, shape (DEGREE,), and that product."""
        product = seal.Ciphertext()
        self._operations.multiply_plain(ciphertext, self._secret, product)
        parts = polynomials_of(ciphertext)[0].astype(object) + polynomials_of(product)[1]
        primes = self.primes[: len(parts)]
        modulus = prod(primes)
        phase = np.zeros(DEGREE, object)
        for part, prime in zip(parts, primes, strict=True):
            others = modulus // prime
            phase += part * (others * pow(others, -1, prime))
        return phase % modulus, modulus

    def noise(self, ciphertext: seal.Ciphertext) -> FloatArray:
        """Phase minus the nearest plaintext's, shape (DEGREE,)."""
        phase, modulus = self.phase(ciphertext)
        half = modulus >> 1
        off = ((phase << self.sizes.plain_bits) + half) % modulus - half
        return np.asarray(off.astype(np.float64) * 2.0**-self.sizes.plain_bits, np.float64)

    def inputs(self, encrypted: bytes) -> list[seal.Ciphertext]:
        """An encrypted vector's ciphertexts."""
        size = self.sizes.input_bytes + SEED_BYTES
        parts = [encrypted[at : at + size] for at in range(0, len(encrypted), size)]
        return [from_seeded(self.context, *unpack_input(self.sizes, part)) for part in parts]


class BfvOpening(Phases):
    """What follows from the secret key s and public bytes.

    Args:
        product_format: of the job.
        secret: coefficients of s, −1, 0 or 1, shape (DEGREE,).
    """

    def __init__(self, product_format: ProductFormat, secret: IntArray) -> None:
        self.parameters = BfvParameters.of(product_format)
        super().__init__(self.parameters, secret)

    def decrypted(self, encrypted: bytes) -> IntArray:
        """The vector, chunk by chunk: what only the owner should read."""
        found = []
        for each in self.inputs(encrypted):
            phase, modulus = self.phase(each)
            scaled = (phase << self.parameters.plain_bits) + (modulus >> 1)
            plain = (scaled // modulus)[: self.parameters.chunk]
            low = (plain % (1 << self.parameters.plain_bits)).astype(np.uint64)
            unused = np.uint64(MODULUS_BITS - self.parameters.plain_bits)
            found.append((low << unused).view(np.int64) >> unused.astype(np.int64))
        return np.concatenate(found)

    def replies(self, data: bytes, columns: int) -> list[RingArray]:
        """(c₀, c₁) of every reply, each of shape (2, reply primes, DEGREE)."""
        positions = self.parameters.positions(columns)
        size = reply_bytes(self.parameters, len(positions))
        return [
            unpack_reply(self.parameters, data[at : at + size], positions)
            for at in range(0, len(data), size)
        ]

    def reply_noise(self, data: bytes, columns: int) -> FloatArray:
        """The noise at the coefficients that were sent, shape (replies, revealed)."""
        positions, level = self.parameters.positions(columns), self.parameters.reply_level()
        return np.stack(
            [
                self.noise(ciphertext_of(self.context, level, polynomials))[positions]
                for polynomials in self.replies(data, columns)
            ]
        )

    def noise_equations(self, encrypted: bytes, rows: int, columns: int) -> FloatArray:
        """What noise X·e each unit of an entry of X would add: one input, one reply's columns.

        Shape (revealed, columns · rows), the entries of X by column.
        """
        (own,) = [self.noise(each) for each in self.inputs(encrypted)]
        chunk, positions = self.parameters.chunk, self.parameters.positions(columns)
        column, row = np.divmod(np.arange(columns * rows), rows)
        places = column * chunk + chunk - 1 - row
        shifts = positions[:, None] - places[None, :]
        equations: FloatArray = np.where(shifts < 0, -1, 1) * own[shifts % DEGREE]
        return equations

    def expected_c1(
        self, encrypted: bytes, matrix: IntArray, evaluator: BfvEvaluator
    ) -> list[RingArray]:
        """The c₁ of replies that were neither re-randomized nor masked, were X this matrix."""
        vectors = self.inputs(encrypted)
        expected = []
        primes = self.parameters.reply_primes
        for row in evaluator.prepare(matrix).plaintexts:
            total: seal.Ciphertext | None = None
            for vector, plain in zip(vectors, row, strict=True):
                if plain is None:
                    continue
                transformed, product = seal.Ciphertext(), seal.Ciphertext()
                self._operations.transform_to_ntt(vector, transformed)
                self._operations.multiply_plain(transformed, plain, product)
                if total is None:
                    total = product
                else:
                    self._operations.add_inplace(total, product)
            if total is None:
                expected.append(np.zeros((primes, DEGREE), np.uint64))
                continue
            self._operations.transform_from_ntt_inplace(total)
            self._operations.mod_switch_to_inplace(total, self.parameters.reply_level())
            expected.append(polynomials_of(total)[1])
        return expected


def owner_secret(owner: BfvKeyHolder) -> IntArray:
    """An owner's own secret key, coefficients −1, 0 and 1, shape (DEGREE,)."""
    context, primes = owner._context, owner._primes
    bits, modulus = owner._sizes.plain_bits, owner._modulus
    crafted = np.zeros((2, len(primes), DEGREE), np.uint64)
    crafted[1, :, 0] = [(modulus >> bits) % prime for prime in primes]
    plain = seal.Plaintext()
    query = ciphertext_of(context, context.first_parms_id(), crafted)
    owner._decryptor.decrypt(query, plain)
    words = coefficients_of(plain, np.arange(DEGREE)).view(np.int64)
    return np.where(words == (1 << bits) - 1, -1, words)


def crafted_replies(
    product_format: ProductFormat, columns: Sequence[int]
) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
    """Replies of every key that decrypt to the secret, W of its ternary digits a value.

    c₀ = 0 and c₁ = Σᵢ round(q·3^i/t)·x^shiftᵢ decrypt to Σᵢ 3^i·s·x^shiftᵢ, which stays below t/2
    for 3^W < t, with less noise than any honest reply: W/2 units of rounding a coefficient of s.

    Args:
        product_format: of the job.
        columns: P of every evaluator that takes part, in turns.

    Yields:
        A reply, and which coefficients of s its values hold, digit by digit, shape (P, W), up to
        the sign that x^DEGREE = −1 gives those of wrapped indices (≥ DEGREE).
    """
    parameters = BfvParameters.of(product_format)
    primes = parameters.primes()[: parameters.reply_primes]
    modulus, side = prod(primes), parameters.columns_per_reply
    half = 1 << (parameters.plain_bits - 1)
    scales: list[int] = []
    while 3 ** (len(scales) + 1) < 2 * half:
        scales.append((modulus * 3 ** len(scales) + half) >> parameters.plain_bits)
    unread, target = np.ones(DEGREE, dtype=np.bool_), 0
    for width in cycle(columns):
        if not unread.any():
            return
        positions = parameters.positions(width)
        pieces, places = [], np.empty((width, len(scales)), np.int64)
        for first in range(0, width, side):
            read = positions[: min(side, width - first)]
            polynomials = np.zeros((2, len(primes), DEGREE), np.uint64)
            for digit, scale in enumerate(scales):
                target = int(unread.argmax()) if unread.any() else target + 1
                # x^shift moves coefficient i of s to i + shift.
                shift = int((read[0] - target) % DEGREE)
                polynomials[1, :, shift] = [scale % prime for prime in primes]
                places[first : first + side, digit] = (read - shift) % (2 * DEGREE)
                unread[places[first : first + side, digit] % DEGREE] = False
            pieces.append(pack_reply(parameters, polynomials, positions))
        yield b"".join(pieces), places
