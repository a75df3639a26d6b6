"""CKKS (Cheon, Kim, Kim, Song, ASIACRYPT 2017) by slots, on TenSEAL's SEAL: for benchmarks only.

DEGREE = 8192, primes of 60, 60 and (reserved) 40 bits: within the 218 that 128-bit security allows
(HomomorphicEncryption.org standard, ternary secret). ⌊4096/S⌋ copies of v fill the slots of one
input; one plaintext holds as many columns of X; the slots' products are summed only after
decryption, so there are no rotations and no Galois keys. More than 4096 rows take several inputs,
whose products add up.

Why not TenSEAL's CKKSVector: it can only add masks that are float64 slots. Their polynomial has
zeros below the 53rd bit, where the key owner, who knows its own noise, would read X; and real
slots leave half of the dimensions unmasked.

Replies are sealed: every one of the 8192 coefficients has a mask that is uniform modulo q, the
whole modulus. Whatever the owner encrypted, and with whatever noise, they are uniform. The owner
rounds what it decrypts, and the evaluator its mask, to words of 2^64/q. Words are shares modulo
2^64 of a product's coefficients, off by one unit at most. A column's sum of slots is a sum of
coefficients with known weights; both ends round the weights to the same integers, and the sums of
words are shares of Xᵀv.

Widths, with |x·v| ≤ b, b a power of two:
    - Words: a unit is 2^−31·b of a slot. Weights have 19 bits after the point at S = 4096, 25 at
      64, less the bits of `summands`. Sums are off by about 2^−21·b + 2^−26·b·√S.
    - Flooding: the owner adds to every sum a uniform integer of ±2^−21·b·2^⌈log₂(S)/2⌉ and rounds
      to a grid of the same width before it releases it, 2^26 times the standard deviation of the
      key-dependent noise there (3.2·√DEGREE·2^−56·b per slot). That noise turns the rounding of
      a word with probability 2^−23, which changes the law of a released sum by 2^−21.
    - Hence the error of Xᵀv: uniform flooding and rounding, a standard deviation of up to
      2^−21·b·√S.

Not covered: flooding of 26 bits is far from the 2^64 that a proof against an evaluator with many
decryptions asks for (Li, Micciancio, EUROCRYPT 2021: released approximate decryptions are equations
in the key). A crafted reply tells its evaluator 15 ternary digits of the key. An owner that learns
products also learns how slots were rounded, and one that chose its own noise there reads as much as
with an input of its choice. A reply that was damaged, or made under another key, decrypts to
uniform numbers. Never the default.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import require_matrix, require_values, to_ring
from securevfl.crypto.residues import share_of, uniform_mask, uniform_words, whole
from securevfl.crypto.scheme import MODULUS_BITS, Evaluator, KeyOwner, MaskedReply, ProductFormat
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    coefficient_ciphertext,
    coefficients_of,
    from_bytes,
    polynomials_of,
    seal_errors,
    split,
    to_bytes,
)
from securevfl.crypto.seeded_keys import make_public_bytes, public_key
from securevfl.errors import ConfigError, CryptoError, KeyMismatch

DEGREE = 8192
SLOTS = DEGREE // 2
PRIME_BITS = (60, 60, 40)
VALUE_SCALE_BITS = 56
MATRIX_SCALE_BITS = 31
# A slot of 1 is 2^31 units of a word; flooding starts 5 bits above 2^−26 of it.
WORD_BITS = VALUE_SCALE_BITS + MATRIX_SCALE_BITS + MODULUS_BITS - sum(PRIME_BITS[:2])
QUANTUM_BITS = 26
FLOOD_BITS = 5

_DATA_PRIMES = len(PRIME_BITS) - 1
_LARGEST_CIPHERTEXT = 2 * _DATA_PRIMES * DEGREE * 8 + 4096


@dataclass(frozen=True)
class CkksLayout:
    """How vectors and matrices are placed in slots: `block` slots per column, `inputs` per vector.

    Values are scaled by powers of two so that every slot of a product is within ±1. Integers of v
    are within ±2^value_exponent; X likewise, with room for the sum over the inputs. `summands`
    products are added.
    """

    block: int
    inputs: int
    summands: int
    value_exponent: int
    matrix_exponent: int

    @classmethod
    def of(cls, product_format: ProductFormat) -> "CkksLayout":
        """The layout for a format; both ends derive the same.

        Raises:
            RangeExceeded: products that do not fit 64 bits.
            ConfigError: so few bits that CKKS would round them away.
        """
        product_format.require_room(MODULUS_BITS)
        inputs = -(-product_format.rows // SLOTS)
        layout = cls(
            block=min(product_format.rows, SLOTS),
            inputs=inputs,
            summands=product_format.summands,
            value_exponent=(product_format.largest_value - 1).bit_length(),
            matrix_exponent=(product_format.largest_entry - 1).bit_length()
            + (inputs - 1).bit_length(),
        )
        if layout.exponent < QUANTUM_BITS:
            raise ConfigError(
                f"products x*v of {layout.exponent} bits, at least {QUANTUM_BITS} expected: ckks "
                "is approximate, use more fraction bits or another scheme"
            )
        return layout

    @property
    def exponent(self) -> int:
        """2^exponent bounds |x·v| as an integer and is represented by a slot value of 1."""
        return self.value_exponent + self.matrix_exponent

    @property
    def columns(self) -> int:
        """Columns per reply."""
        return SLOTS // self.block

    @property
    def modulus_bits(self) -> int:
        """Sums are modulo 2^modulus_bits: twice the room of the largest, or of any format."""
        room = self.exponent + (self.block * self.summands).bit_length() + 1
        return min(room, MODULUS_BITS)

    @property
    def unit_bits(self) -> int:
        """A slot of 1 counts 2^unit_bits in the words of a sum."""
        return self.exponent + MODULUS_BITS - self.modulus_bits

    @property
    def flood_bits(self) -> int:
        """Flooding is uniform on ±2^flood_bits of them; released sums are multiples of that."""
        half = ((self.block - 1).bit_length() + 1) // 2
        return FLOOD_BITS + half + self.unit_bits - QUANTUM_BITS

    def replies(self, columns: int) -> int:
        """Number of replies for this many columns."""
        return -(-columns // self.columns)

    def sums(self, words: RingArray) -> RingArray:
        """The sum of each block's slots from the words of a polynomial, modulo 2^64: (columns,)."""
        weights = to_ring(_weights(self.block, self.unit_bits - WORD_BITS))
        powers = np.arange(DEGREE)
        turns = (pow(3, self.block * column, 2 * DEGREE) for column in range(self.columns))
        return np.array([weights[powers * turn % (2 * DEGREE)] @ words for turn in turns])


class CkksOwner(KeyOwner):
    """The party with the secret key."""

    def __init__(self, product_format: ProductFormat, seed: bytes | None = None) -> None:
        self._format = product_format
        self._layout = CkksLayout.of(product_format)
        self._context, _ = _context()
        context = self._context
        self._evaluator = seal.Evaluator(context)
        generator = seal.KeyGenerator(context)
        self._public_bytes = make_public_bytes(context, generator.secret_key(), seed)
        # Encrypting with the secret key halves the bytes: c₁ is sent as a seed.
        self._encryptor = seal.Encryptor(context, generator.secret_key())
        self._decryptor = seal.Decryptor(context, generator.secret_key())

    @property
    @override
    def public_bytes(self) -> bytes:
        """The public key, see seeded_keys; parameters are fixed."""
        return self._public_bytes

    @property
    @override
    def modulus_bits(self) -> int:
        return self._layout.modulus_bits

    @override
    def encrypt(self, values: IntArray) -> bytes:
        require_values(values, self._format)
        layout = self._layout
        padded = np.zeros(layout.inputs * layout.block)
        padded[: len(values)] = np.ldexp(values.astype(np.float64), -layout.value_exponent)
        return b"".join(
            to_bytes(self._encryptor.encrypt_symmetric(_encode(slots, VALUE_SCALE_BITS)))
            for slots in (np.tile(part, layout.columns) for part in np.split(padded, layout.inputs))
        )

    @override
    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        """Decrypt, sum, flood and round: (columns,) integers modulo 2^64."""
        if columns < 1:
            raise CryptoError(f"{columns} columns, at least 1 expected")
        layout = self._layout
        pieces = split(ciphertext, layout.replies(columns), _LARGEST_CIPHERTEXT)
        sums = np.concatenate([layout.sums(self._words(piece)) for piece in pieces])
        # Uniform on [−2^flood_bits, 2^flood_bits), modulo 2^64.
        drawn = uniform_words(columns) & np.uint64((2 << layout.flood_bits) - 1)
        flooded = sums[:columns] + (drawn - np.uint64(1 << layout.flood_bits))
        step = np.uint64(layout.flood_bits)
        half = np.uint64(1 << (layout.flood_bits - 1))
        released: RingArray = ((flooded + half) >> step) << step
        return released

    def _words(self, piece: bytes) -> RingArray:
        """This end's share of a reply's coefficients, shape (DEGREE,)."""
        plain = seal.Plaintext()
        reply = _load(piece, VALUE_SCALE_BITS + MATRIX_SCALE_BITS)
        with seal_errors("a reply"):
            self._decryptor.decrypt(reply, plain)
        primes = _data_primes()
        values = coefficients_of(plain, np.arange(len(primes) * DEGREE)).reshape(-1, DEGREE)
        # Only ciphertexts leave NTT form, and none whose second polynomial is zero.
        both = np.stack([values, values])
        carrier = ciphertext_of(self._context, self._context.first_parms_id(), both, ntt=True)
        self._evaluator.transform_from_ntt_inplace(carrier)
        return share_of(whole(polynomials_of(carrier)[0], primes), prod(primes), MODULUS_BITS)


@dataclass(frozen=True)
class PreparedSlots:
    """X as plaintexts, [reply][input]; None if all entries are zero."""

    columns: int
    plaintexts: tuple[tuple[seal.Plaintext | None, ...], ...]


class CkksEvaluator(Evaluator):
    """A party that multiplies under another party's key."""

    def __init__(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        self._format = product_format
        self._layout = CkksLayout.of(product_format)
        self._context, _ = _context()
        self._evaluator = seal.Evaluator(self._context)
        self._encryptor = seal.Encryptor(self._context, public_key(self._context, public_bytes))

    @property
    @override
    def modulus_bits(self) -> int:
        return self._layout.modulus_bits

    @override
    def prepare(self, matrix: IntArray) -> PreparedSlots:
        require_matrix(matrix, self._format)
        layout = self._layout
        rows, columns = matrix.shape
        replies = layout.replies(columns)
        padded = np.zeros((layout.inputs * layout.block, replies * layout.columns))
        padded[:rows, :columns] = np.ldexp(matrix.astype(np.float64), -layout.matrix_exponent)
        # (reply, input, slots): columns are consecutive within a plaintext
        blocks = padded.reshape(layout.inputs, layout.block, replies, layout.columns)
        slots = blocks.transpose(2, 0, 3, 1).reshape(replies, layout.inputs, -1)
        return PreparedSlots(
            columns,
            tuple(
                tuple(_encode(part, MATRIX_SCALE_BITS) if part.any() else None for part in reply)
                for reply in slots
            ),
        )

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        if not isinstance(prepared, PreparedSlots):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not CKKS slots")
        pieces = split(encrypted, self._layout.inputs, _LARGEST_CIPHERTEXT)
        vectors = [_load(piece, VALUE_SCALE_BITS) for piece in pieces]
        replies, masks = [], []
        for row in prepared.plaintexts:
            mask, words = uniform_mask(_data_primes(), MODULUS_BITS, DEGREE)
            total = self._masked_zero(mask)
            with seal_errors("an encrypted vector"):
                for vector, plaintext in zip(vectors, row, strict=True):
                    if plaintext is not None:
                        product = seal.Ciphertext()
                        self._evaluator.multiply_plain(vector, plaintext, product)
                        self._evaluator.add_inplace(total, product)
            replies.append(to_bytes(total))
            masks.append(self._layout.sums(words))
        return MaskedReply(b"".join(replies), np.concatenate(masks)[: prepared.columns])

    def _masked_zero(self, mask: RingArray) -> seal.Ciphertext:
        """A fresh public-key encryption of the mask polynomial, at a product's scale."""
        total = seal.Ciphertext()
        self._encryptor.encrypt_zero(total)
        self._evaluator.transform_from_ntt_inplace(total)
        self._evaluator.add_inplace(total, coefficient_ciphertext(self._context, mask))
        self._evaluator.transform_to_ntt_inplace(total)
        total.scale = 2.0 ** (VALUE_SCALE_BITS + MATRIX_SCALE_BITS)
        return total


def _encode(slots: NDArray[np.float64], scale_bits: int) -> seal.Plaintext:
    plaintext = seal.Plaintext()
    _context()[1].encode(slots.tolist(), 2.0**scale_bits, plaintext)
    return plaintext


def _load(piece: bytes, scale_bits: int) -> seal.Ciphertext:
    """Load a peer's ciphertext and check its level, size and scale."""
    ciphertext = from_bytes(_context()[0], seal.Ciphertext(), piece)
    shape = (ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.is_ntt_form())
    if shape != (2, _DATA_PRIMES, True):
        raise KeyMismatch("a CKKS ciphertext has another level or form than this job's")
    if ciphertext.scale != 2.0**scale_bits:
        raise KeyMismatch(f"CKKS scale {ciphertext.scale:g}, 2^{scale_bits} expected")
    return ciphertext


@cache
def _parameters() -> seal.EncryptionParameters:
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(PRIME_BITS)))
    return parameters


@cache
def _context() -> tuple[seal.SEALContext, seal.CKKSEncoder]:
    context = seal.SEALContext(_parameters(), True, seal.SEC_LEVEL_TYPE.TC128)
    return context, seal.CKKSEncoder(context)


def _data_primes() -> list[int]:
    return [modulus.value() for modulus in _parameters().coeff_modulus()][:_DATA_PRIMES]


@cache
def _weights(block: int, bits: int) -> IntArray:
    """2^bits·Σ_j cos(πi·3^j/DEGREE) over a block's slots j, rounded, for i < 2·DEGREE.

    Slot j of a polynomial m is m(ζ^(3^j)), ζ a primitive root of unity of order 2·DEGREE.
    """
    slots = np.zeros(2 * DEGREE)
    slots[[pow(3, j, 2 * DEGREE) for j in range(block)]] = 1
    return np.rint(np.ldexp(np.fft.fft(slots).real, bits)).astype(np.int64)
