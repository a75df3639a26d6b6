"""What a party can compute from ciphertexts and its secrets: for the audit, never for protocols.

And what a party can send that cheats: replies that hold digits of a key, and inputs that put a
matrix where a mask as wide as a product ends. Only this module reads private members of the
schemes' classes. The attacks that draw conclusions from these numbers are in securevfl.attacks.

BFV: an owner knows its key, hence the noise e of its own inputs and the noise of every reply. CKKS:
an evaluator knows the ciphertexts that it multiplied, and may guess what they contain. Polynomials
are compared in NTT form modulo the first prime, in their first values. Paillier: anybody can
compute a ciphertext's Jacobi symbol.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import log2, prod

import gmpy2
import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ckks
from securevfl.crypto.bfv import BfvEvaluator
from securevfl.crypto.bfv_core import (
    BfvKeyHolder,
    BfvMultiplier,
    inputs_of,
    pack_reply,
    reply_bytes,
    unpack_reply,
)
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.paillier import PaillierKeyOwner
from securevfl.crypto.paillier_modulus import ROOTS
from securevfl.crypto.residues import pack, packed_size, unpack, whole
from securevfl.crypto.ring import RING_BITS
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner, _of_replies
from securevfl.crypto.scheme import MODULUS_BITS, ProductFormat
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    coefficient_ciphertext,
    coefficients_of,
    plaintext,
    polynomials_of,
    to_bytes,
)

CHECKED = 200
PRODUCT_SCALE_BITS = ckks.VALUE_SCALE_BITS + ckks.MATRIX_SCALE_BITS


class Phases:
    """What follows from ciphertexts and the secret key s: −1, 0 or 1, shape (DEGREE,)."""

    def __init__(self, sizes: BfvSizes, secret: IntArray) -> None:
        self.sizes = sizes
        self.context = sizes.context()
        self.primes = sizes.primes()
        self._operations = seal.Evaluator(self.context)
        modulo_t = np.uint64((1 << sizes.plain_bits) - 1)
        self._secret = plaintext(self.context, secret.view(np.uint64) & modulo_t)

    def phase(self, ciphertext: seal.Ciphertext) -> tuple[NDArray[np.object_], int]:
        """c₀ + c₁·s modulo the product of the level's primes, shape (DEGREE,), and this product."""
        product = seal.Ciphertext()
        self._operations.multiply_plain(ciphertext, self._secret, product)
        parts = polynomials_of(ciphertext)[0].astype(object) + polynomials_of(product)[1]
        primes = self.primes[: len(parts)]
        return whole(parts, primes), prod(primes)

    def noise(self, ciphertext: seal.Ciphertext) -> FloatArray:
        """The phase minus that of the nearest plaintext, shape (DEGREE,)."""
        phase, modulus = self.phase(ciphertext)
        half = modulus >> 1
        off = ((phase << self.sizes.plain_bits) + half) % modulus - half
        return np.asarray(off.astype(np.float64) * 2.0**-self.sizes.plain_bits, np.float64)

    def inputs(self, encrypted: bytes) -> list[seal.Ciphertext]:
        """The ciphertexts of an encrypted vector."""
        return list(inputs_of(self.sizes, self.context, encrypted))

    def replies_at(self, data: bytes, positions: NDArray[np.int64]) -> list[RingArray]:
        """(c₀, c₁) of every reply, each of shape (2, reply primes, DEGREE)."""
        size = reply_bytes(self.sizes, len(positions))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        return [unpack_reply(self.sizes, part, positions) for part in parts]

    def noise_of(self, reply: RingArray) -> FloatArray:
        """The noise of a reply's polynomials, shape (DEGREE,)."""
        return self.noise(ciphertext_of(self.context, self.sizes.reply_level(), reply))

    def equations(
        self, encrypted: bytes, positions: NDArray[np.int64], chunk: int, rows: int, columns: int
    ) -> FloatArray:
        """The noise that a unit of each entry of X adds, (positions, columns · rows), by column."""
        column, row = np.divmod(np.arange(columns * rows), rows)
        places = column * chunk + chunk - 1 - row
        (own,) = [self.noise(each) for each in self.inputs(encrypted)]
        shifts = positions[:, None] - places[None, :]
        found: FloatArray = np.where(shifts < 0, -1, 1) * own[shifts % DEGREE]
        return found


class BfvOpening(Phases):
    """What follows from public bytes and the secret key s, shape (DEGREE,)."""

    def __init__(self, product_format: ProductFormat, secret: IntArray) -> None:
        self.parameters = BfvParameters.of(product_format)
        super().__init__(self.parameters, secret)

    def decrypted(self, encrypted: bytes) -> IntArray:
        """The vector, chunk by chunk, which only the owner should read."""
        found = []
        for each in self.inputs(encrypted):
            phase, modulus = self.phase(each)
            scaled = (phase << self.parameters.plain_bits) + (modulus >> 1)
            plain = (scaled // modulus)[: self.parameters.chunk]
            low = (plain % (1 << self.parameters.plain_bits)).astype(np.uint64)
            above = np.uint64(MODULUS_BITS - self.parameters.plain_bits)
            unused = np.int64(MODULUS_BITS - self.parameters.product_bits)
            found.append((low << above).view(np.int64) >> unused)
        return np.concatenate(found)

    def replies(self, data: bytes, columns: int) -> list[RingArray]:
        """(c₀, c₁) of every reply, each of shape (2, reply primes, DEGREE)."""
        return self.replies_at(data, self.parameters.positions(columns))

    def reply_noise(self, data: bytes, columns: int) -> FloatArray:
        """The noise at the coefficients that were sent, shape (replies, revealed)."""
        positions = self.parameters.positions(columns)
        return np.stack([self.noise_of(each)[positions] for each in self.replies(data, columns)])

    def noise_equations(self, encrypted: bytes, rows: int, columns: int) -> FloatArray:
        """The noise X·e that a unit of each entry of X would add; see `equations`."""
        positions = self.parameters.positions(columns)
        return self.equations(encrypted, positions, self.parameters.chunk, rows, columns)

    def expected_c1(
        self, encrypted: bytes, matrix: IntArray, evaluator: BfvEvaluator
    ) -> list[RingArray]:
        """The c₁ of replies without re-randomization and masks, if X were this matrix."""
        vectors = list(evaluator._take_in(encrypted))
        rows = evaluator._plaintexts(matrix)
        return [_bare_c1(evaluator, evaluator._sum(vectors, row)) for row in rows]


def _bare_c1(evaluator: BfvMultiplier, total: seal.Ciphertext | None) -> RingArray:
    """The c₁ that a sum of products in NTT form, None for 0, has on the wire."""
    if total is None:
        return np.zeros((evaluator._sizes.reply_primes, DEGREE), np.uint64)
    evaluator._evaluator.transform_from_ntt_inplace(total)
    evaluator._evaluator.mod_switch_to_inplace(total, evaluator._reply_level)
    found: RingArray = polynomials_of(total)[1]
    return found


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
    """Replies, valid under every key, that decrypt to the secret, W ternary digits per value.

    c₀ = 0 and c₁ = Σᵢ round(q·3^i/t)·x^shiftᵢ decrypt to Σᵢ 3^i·s·x^shiftᵢ, which stays below t/2
    for 3^W < t; t is that of products, without guard bits.
    `columns` are the P of all evaluators that take part, in turns.

    Yields:
        A reply, and which coefficients of s its values contain, digit by digit, shape (P, W), up to
        the sign that x^DEGREE = −1 gives those of wrapped indices (≥ DEGREE).
    """
    parameters = BfvParameters.of(product_format)
    primes = parameters.primes()[: parameters.reply_primes]
    modulus, side = prod(primes), parameters.columns_per_reply
    half = 1 << (parameters.product_bits - 1)
    scales: list[int] = []
    while 3 ** (len(scales) + 1) < 2 * half:
        scales.append((modulus * 3 ** len(scales) + half) >> parameters.product_bits)
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


def with_digits(product_format: RingProductFormat, reply: bytes) -> tuple[bytes, IntArray]:
    """A product's reply with its owner's secret added, W ternary digits a word.

    Returns also which coefficients each word then has, as `crafted_replies` does: (words, W).
    """
    layout = RingLayout.of(product_format)
    sizes, positions = layout.sizes, layout.positions()
    primes, size = sizes.primes()[: sizes.reply_primes], reply_bytes(sizes, len(positions))
    digits, pieces = range(int(RING_BITS / log2(3))), []
    for at in range(0, len(reply), size):
        polynomials = unpack_reply(sizes, reply[at : at + size], positions)
        for c1, prime in zip(polynomials[1], primes, strict=True):
            for digit in digits:
                c1[digit] = (int(c1[digit]) + (3**digit * prod(primes) >> RING_BITS)) % prime
        pieces.append(pack_reply(sizes, polynomials, positions))
    places = (np.tile((positions - each) % (2 * DEGREE), (len(pieces), 1)) for each in digits)
    ordered = [_of_replies(layout, each.astype(np.uint64)) for each in places]
    return b"".join(pieces), np.stack(ordered, axis=-1).reshape(-1, len(digits)).astype(np.int64)


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


def ckks_with_noise(encrypted: bytes, noise: int) -> bytes:
    """A CKKS vector with a word of its owner's choice added to the first coefficient of c₀."""
    context, _ = ckks._context()
    operations, vector = seal.Evaluator(context), ckks._load(encrypted, ckks.VALUE_SCALE_BITS)
    others = encrypted[int.from_bytes(encrypted[8:16], "little") :]
    residues = np.zeros((ckks._DATA_PRIMES, ckks.DEGREE), np.uint64)
    residues[:, 0] = [noise % prime for prime in ckks._data_primes()]
    operations.transform_from_ntt_inplace(vector)
    vector.scale = 1.0
    operations.add_inplace(vector, coefficient_ciphertext(context, residues))
    operations.transform_to_ntt_inplace(vector)
    vector.scale = 2.0**ckks.VALUE_SCALE_BITS
    return to_bytes(vector) + others


class Oversized:
    """A Paillier plaintext that puts an entry of X into the top bits of what its owner decrypts.

    There are 20 bits at least, of which a mask on all of them shows one number at random.
    """

    def __init__(self, owner: PaillierKeyOwner) -> None:
        self._private, self._n = owner._private_key, owner._public_key.n
        bits = max(owner._format.largest_entry.bit_length() + 2, 20)
        self._first = self._n.bit_length() - 2 - bits

    def encrypted(self) -> bytes:
        """One ciphertext, (1 + n)^v: a cheat needs no randomness."""
        number: int = 1 + (self._n << self._first)
        return number.to_bytes(2 * self._n.bit_length() // 8, "big")

    def entry(self, reply: bytes) -> int:
        """The entry of a product with this number alone."""
        plain: int = self._private.raw_decrypt(int.from_bytes(reply, "big"))
        above = plain - self._n if plain > self._n // 2 else plain
        return int(above + (1 << self._first >> 1) >> self._first)


class RingOpening(Phases):
    """What follows from an owner's secret key and public bytes, for products of one input.

    M is X transposed: its rows take the place of columns.
    """

    def __init__(self, owner: RingProductOwner) -> None:
        self.layout = RingLayout.of(owner.product_format)
        super().__init__(self.layout.sizes, owner_secret(owner))

    def replies(self, data: bytes) -> list[RingArray]:
        """(c₀, c₁) of every reply, each of shape (2, reply primes, DEGREE)."""
        return self.replies_at(data, self.layout.positions())

    def noise_of_reply(self, data: bytes) -> FloatArray:
        """The noise of the first reply at the coefficients that were sent, shape (revealed,)."""
        return self.noise_of(self.replies(data)[0])[self.layout.positions()]

    def noise_equations(self, encrypted: bytes) -> FloatArray:
        """The noise that a unit of each entry of the first reply's rows of M adds."""
        layout = self.layout
        inner, side = layout.product_format.inner, layout.side
        return self.equations(encrypted, layout.positions(), layout.chunk, inner, side)


def c1_without_protection(
    evaluator: RingProductEvaluator, encrypted: bytes, matrix: IntArray
) -> RingArray:
    """c₁ of the first reply without re-randomization and masks; shape (primes, DEGREE)."""
    return _bare_c1(evaluator, next(evaluator._sums(encrypted, matrix)))


def ckks_ratio(numerator: bytes, denominator: bytes) -> list[int]:
    """c₁ of a reply over c₁ of the input, in NTT form modulo the first prime; first values."""
    top = _ckks_polynomial(ckks._load(numerator, PRODUCT_SCALE_BITS), 1)
    bottom = _ckks_polynomial(ckks._load(denominator, ckks.VALUE_SCALE_BITS), 1)
    return _ratios(top, bottom)


def ckks_matrix(prepared: ckks.PreparedSlots) -> list[int]:
    """X of the first reply in the same form."""
    plain = prepared.plaintexts[0][0]
    assert plain is not None  # noqa: S101
    return [plain[at] for at in range(CHECKED)]


def ckks_seen(owner: ckks.CkksOwner, reply: bytes) -> FloatArray:
    """The slots of the first ciphertext as its owner decrypts them, up to their scale, (SLOTS,)."""
    plain = seal.Plaintext()
    owner._decryptor.decrypt(ckks._load(reply, PRODUCT_SCALE_BITS), plain)
    return _decoded(plain)


def ckks_entries(prepared: object) -> FloatArray:
    """X in the slots of the first reply, up to its scale, (SLOTS,)."""
    assert isinstance(prepared, ckks.PreparedSlots)  # noqa: S101
    return _decoded(prepared.plaintexts[0][0])


def _decoded(plain: seal.Plaintext) -> FloatArray:
    return np.array(ckks._context()[1].decode_complex(plain)).real


def ckks_slots(product_format: ProductFormat, values: FloatArray) -> FloatArray:
    """The slots of an input with these integers, shape (S,), in its owner's layout."""
    layout = ckks.CkksLayout.of(product_format)
    padded = np.zeros(layout.block)
    padded[: len(values)] = np.ldexp(values, -layout.value_exponent)
    return np.tile(padded, layout.columns)


def ckks_key_guess(encrypted: bytes, slots: FloatArray) -> list[int]:
    """(m − c₀)/c₁ of an input, with m the encoding of what its slots are guessed to contain."""
    ciphertext = ckks._load(encrypted, ckks.VALUE_SCALE_BITS)
    return key_of(ciphertext, ckks._encode(slots, ckks.VALUE_SCALE_BITS))


def ckks_key(owner: ckks.CkksOwner, encrypted: bytes) -> list[int]:
    """The owner's key in the same form, from the exact decryption of one of its inputs."""
    ciphertext, plain = ckks._load(encrypted, ckks.VALUE_SCALE_BITS), seal.Plaintext()
    owner._decryptor.decrypt(ciphertext, plain)
    return key_of(ciphertext, plain)


def key_of(ciphertext: seal.Ciphertext, message: seal.Plaintext) -> list[int]:
    """The key s = (m − c₀)/c₁ if m is the exact phase; first values modulo the first prime."""
    c0, c1 = _ckks_polynomial(ciphertext, 0), _ckks_polynomial(ciphertext, 1)
    return _ratios([(message[at] - c0[at]) % _ckks_prime() for at in range(CHECKED)], c1)


def _ckks_polynomial(ciphertext: seal.Ciphertext, index: int) -> list[int]:
    start = index * ckks._DATA_PRIMES * ckks.DEGREE
    return [ciphertext[start + at] for at in range(CHECKED)]


def _ckks_prime() -> int:
    return int(ckks._parameters().coeff_modulus()[0].value())


def _ratios(numerator: list[int], denominator: list[int]) -> list[int]:
    q = _ckks_prime()
    return [a * pow(b, -1, q) % q for a, b in zip(numerator, denominator, strict=True)]


def jacobi_symbols(ciphertexts: bytes, public_bytes: bytes) -> IntArray:
    """1 where the Jacobi symbol of a Paillier ciphertext modulo n is −1, else 0."""
    size = len(public_bytes) // (1 + ROOTS)
    n, width = int.from_bytes(public_bytes[:size], "big"), 2 * size
    parts = [ciphertexts[at : at + width] for at in range(0, len(ciphertexts), width)]
    symbols = [gmpy2.jacobi(int.from_bytes(part, "big"), n) for part in parts]
    return np.array([symbol == -1 for symbol in symbols], np.int64)
