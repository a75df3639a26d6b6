"""What a party that cheats can send: for the audit, never for protocols.

An evaluator crafts replies, which bring its peer's key into what the peer decrypts. A key owner
crafts inputs, which bring the other side's matrix to where a mask as wide as a product ends: noise
of its choice under lattice schemes, oversized plaintexts under Paillier.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import prod

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ckks
from securevfl.crypto.bfv_core import pack_reply, reply_bytes, unpack_reply
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.paillier import PaillierKeyOwner, ciphertext_bytes, split_ciphertexts
from securevfl.crypto.residues import pack, packed_size, unpack
from securevfl.crypto.ring import RING_BITS
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import _of_replies
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.seal_codec import coefficient_ciphertext, split, to_bytes


def crafted_replies(
    product_format: ProductFormat, columns: Sequence[int]
) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
    """Replies, valid under every key, that decrypt to the secret, W ternary digits per value.

    c₀ = 0 and c₁ = Σᵢ round(q·3^i/t)·x^shiftᵢ decrypt to Σᵢ 3^i·s·x^shiftᵢ, which stays below t/2
    for 3^W < t; t is that of products, without guard bits.
    `columns` are the P of all evaluators that take part, in turns.

    Yields:
        A reply, and which coefficients of s its values contain, digit by digit, shape (P, W), up to
        the sign that x^DEGREE = −1 gives those of wrapped indices (≥ DEGREE).
    """
    parameters = BfvParameters.of(product_format)
    side = parameters.columns_per_reply
    digits = _Digits(parameters, parameters.product_bits)
    for width in cycle(columns):
        if not digits.unread.any():
            return
        positions = parameters.positions(width)
        pieces, places = [], []
        for first in range(0, width, side):
            c1, read = digits.next(positions[: min(side, width - first)])
            places.append(read)
            pieces.append(pack_reply(parameters, np.stack([np.zeros_like(c1), c1]), positions))
        yield b"".join(pieces), np.concatenate(places)


class _Digits:
    """Polynomials c₁ that bring the secret s, W ternary digits a value, into what is decrypted."""

    def __init__(self, sizes: BfvSizes, bits: int) -> None:
        self._primes = sizes.primes()[: sizes.reply_primes]
        self.unread, self._target = np.ones(DEGREE, dtype=np.bool_), 0
        modulus, half = prod(self._primes), 1 << (bits - 1)
        self._scales: list[int] = []
        while 3 ** (len(self._scales) + 1) < 2 * half:
            self._scales.append((modulus * 3 ** len(self._scales) + half) >> bits)

    def next(self, read: NDArray[np.int64]) -> tuple[RingArray, NDArray[np.int64]]:
        """c₁, (primes, DEGREE), and the coefficients of s in values at `read`, (values, W)."""
        c1 = np.zeros((len(self._primes), DEGREE), np.uint64)
        places = np.empty((len(read), len(self._scales)), np.int64)
        for digit, scale in enumerate(self._scales):
            self._target = int(self.unread.argmax()) if self.unread.any() else self._target + 1
            # x^shift moves coefficient i of s to i + shift.
            shift = int((read[0] - self._target) % DEGREE)
            c1[:, shift] = [scale % prime for prime in self._primes]
            places[:, digit] = (read - shift) % (2 * DEGREE)
            self.unread[places[:, digit] % DEGREE] = False
        return c1, places


def with_digits(product_format: RingProductFormat, reply: bytes) -> tuple[bytes, IntArray]:
    """A product's reply with its owner's secret added, and which coefficients each word then has.

    As of `crafted_replies`: shape (outputs · columns, W).
    """
    layout = RingLayout.of(product_format)
    sizes, positions = layout.sizes, layout.positions()
    digits, size = _Digits(sizes, RING_BITS), reply_bytes(sizes, len(positions))
    primes = np.array(sizes.primes()[: sizes.reply_primes], np.uint64)[:, None]
    pieces, places = [], []
    for at in range(0, len(reply), size):
        polynomials = unpack_reply(sizes, reply[at : at + size], positions)
        c1, read = digits.next(positions[: layout.side * layout.together])
        polynomials[1] = (polynomials[1] + c1) % primes
        pieces.append(pack_reply(sizes, polynomials, positions))
        places.append(read)
    by_digit = np.stack(places).transpose(2, 0, 1)
    ordered = [_of_replies(layout, each).ravel() for each in by_digit]
    return b"".join(pieces), np.stack(ordered, axis=1)


def with_noise(sizes: BfvSizes, encrypted: bytes, at: int, noise: int) -> bytes:
    """A BFV input with a word of its owner's choice added to one coefficient of c₀."""
    changed, start = bytearray(encrypted), 0
    for bits, prime in zip(sizes.prime_bits, sizes.primes(), strict=True):
        part = slice(start, start + packed_size(DEGREE, bits))
        residues = unpack(encrypted[part], DEGREE, bits)
        residues[at] = (int(residues[at]) + noise) % prime
        changed[part] = pack(residues, bits)
        start = part.stop
    return bytes(changed)


def readable_noise(sizes: BfvSizes, largest: int) -> int:
    """A word for `with_noise` whose products with entries up to `largest` stay between plaintexts.

    It leaves room for 2^17 such units at least, of which a mask on all of it shows one at random.
    """
    return 9 * prod(sizes.primes()) // (20 * max(largest, 1 << 16)) >> sizes.plain_bits


def ckks_with_noise(owner: ckks.CkksOwner, encrypted: bytes, noise: int) -> bytes:
    """A CKKS vector with a word of its owner's choice added to the first coefficient of c₀."""
    context, _ = ckks._context()
    first, *others = split(encrypted, owner._layout.inputs, ckks._LARGEST_CIPHERTEXT)
    operations, vector = seal.Evaluator(context), ckks._load(first, ckks.VALUE_SCALE_BITS)
    residues = np.zeros((ckks._DATA_PRIMES, ckks.DEGREE), np.uint64)
    residues[:, 0] = [noise % prime for prime in ckks._data_primes()]
    operations.transform_from_ntt_inplace(vector)
    vector.scale = 1.0
    operations.add_inplace(vector, coefficient_ciphertext(context, residues))
    operations.transform_to_ntt_inplace(vector)
    vector.scale = 2.0**ckks.VALUE_SCALE_BITS
    return b"".join([to_bytes(vector), *others])


class Oversized:
    """A Paillier plaintext that puts entries of X into the top bits of what its owner decrypts.

    In packed replies these are entries of the last slot in use. To have full replies, only
    `columns` of X's columns may be multiplied; every `side`-th from `top` on is read.
    """

    def __init__(self, owner: PaillierKeyOwner, columns: int) -> None:
        slots, self._owner, self._n = owner._slots, owner, owner._public_key.n
        self.side, self.top = slots.count, min(slots.count, columns) - 1
        self.columns = columns if columns < slots.count else columns // slots.count * slots.count
        # At least 20 bits, of which a mask on all of them shows one number at random.
        bits = max(owner._format.largest_entry.bit_length() + 2, 20)
        self._first = self._n.bit_length() - 2 - bits
        self._below = slots.width * self.top

    def encrypted(self) -> bytes:
        """One ciphertext, (1 + n)^v: a cheat needs no randomness."""
        number: int = (1 + (self._n << self._first - self._below)) % self._n**2
        return number.to_bytes(ciphertext_bytes(self._owner._public_key), "big")

    def read(self, reply: bytes) -> IntArray:
        """The entries of a row, one a ciphertext of its reply."""
        count = -(-self.columns // self.side)
        numbers = split_ciphertexts(self._owner._public_key, reply, count)
        plains = map(self._owner._private_key.raw_decrypt, numbers)
        centred = [plain - self._n if plain > self._n // 2 else plain for plain in plains]
        return np.array([each + (1 << self._first >> 1) >> self._first for each in centred])
