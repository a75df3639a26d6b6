"""CKKS (Cheon, Kim, Kim, Song, ASIACRYPT 2017) by slots, on TenSEAL's SEAL: for benchmarks only.

DEGREE = 8192, primes of 60, 60 and (reserved) 40 bits: within the 218 that 128-bit security allows
(HomomorphicEncryption.org standard, ternary secret). ⌊4096/S⌋ copies of v fill the slots of one
input; one plaintext holds as many columns of X; the slots' products are summed only after
decryption, so there are no rotations and no Galois keys. More than 4096 rows take several inputs,
whose products add up.

Why not TenSEAL's CKKSVector: it can only add masks that are float64 slots. Their polynomial has
zeros below the 53rd bit, where the key owner, who knows its own noise, would read X; and real
slots leave half of the dimensions unmasked.

Widths, with |x·v| ≤ b, b a power of two, and the numbers in SEAL's decoded slots:
    - Mask: every one of the 8192 coefficients, to its last bit, is uniform on 2^113 integers,
      2^25 times the largest that a product's coefficient can be. It hides the slots (imaginary
      parts too) and the noise X·e; a reply with a fresh public-key Enc(0) is within
      √DEGREE·2^−26 ≈ 2^−19.5 of one that does not depend on X. In the slots the mask has a standard
      deviation of 2^30.7·b, which is what float64 still decodes to about 2^−21·b.
    - Flooding: the owner adds to every sum a uniform integer of ±2^−21·b·2^⌈log₂(S)/2⌉ and rounds
      to a grid of the same width before it releases it, 2^26 times the standard deviation of the
      key-dependent noise there (3.2·√DEGREE·2^−56·b per slot).
    - Hence the error of Xᵀv: uniform flooding, rounding and float64, a standard deviation of about
      2^−20.8·b·√S.

Not covered: the mask is statistical, not perfect; flooding of 26 bits is far from the 2^64 that a
proof against an evaluator with many decryptions asks for (Li, Micciancio, EUROCRYPT 2021: released
approximate decryptions are equations in the key); damaged ciphertexts are noticed only when they
decrypt to more than a masked product can be. Never the default.
"""

import os
from dataclasses import dataclass
from functools import cache

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import require_matrix, require_values, to_ring
from securevfl.crypto.residues import uniform_words
from securevfl.crypto.scheme import MODULUS_BITS, Evaluator, KeyOwner, MaskedReply, ProductFormat
from securevfl.crypto.seal_codec import (
    coefficient_ciphertext,
    from_bytes,
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
MASK_BITS = 25
# Quanta are 2^−26 of the largest product: 5 bits finer than the flooding.
QUANTUM_BITS = 26
FLOOD_BITS = 5

_DATA_PRIMES = len(PRIME_BITS) - 1
_LARGEST_CIPHERTEXT = 2 * _DATA_PRIMES * DEGREE * 8 + 4096
_MASK_WIDTH = 1 << (VALUE_SCALE_BITS + MATRIX_SCALE_BITS + MASK_BITS)
# 16 standard deviations of a slot's mask: an honest reply exceeds it once in 2^48.
_LARGEST_SLOT = 16 * (DEGREE / 2 / 3) ** 0.5 * 2.0**MASK_BITS


@dataclass(frozen=True)
class CkksLayout:
    """How vectors and matrices are placed in slots: `block` slots per column, `inputs` per vector.

    Values are scaled by powers of two so that every slot of a product is within ±1. Integers of v
    are within ±2^value_exponent; X likewise, with room for the sum over the inputs.
    """

    block: int
    inputs: int
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
    def flood_bits(self) -> int:
        """Flooding is uniform on ±2^flood_bits quanta; released sums are multiples of it."""
        return FLOOD_BITS + ((self.block - 1).bit_length() + 1) // 2

    def replies(self, columns: int) -> int:
        """Number of replies for this many columns."""
        return -(-columns // self.columns)

    def quanta(self, slots: NDArray[np.float64]) -> RingArray:
        """Sums of the blocks of (4096,) slots in quanta, modulo 2^64: shape (columns,)."""
        counted = to_ring(np.rint(np.ldexp(slots, QUANTUM_BITS)).astype(np.int64))
        blocks = counted[: self.columns * self.block].reshape(self.columns, self.block)
        sums: RingArray = np.add.reduce(blocks, axis=1, dtype=np.uint64)
        return sums

    def integers(self, quanta: RingArray) -> RingArray:
        """Quanta as integers with the format's fraction bits, modulo 2^64."""
        return np.left_shift(quanta, np.uint64(self.exponent - QUANTUM_BITS), dtype=np.uint64)


class CkksOwner(KeyOwner):
    """The party with the secret key."""

    def __init__(self, product_format: ProductFormat, seed: bytes | None = None) -> None:
        self._format = product_format
        self._layout = CkksLayout.of(product_format)
        context, self._encoder = _context()
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
        sums = np.concatenate([layout.quanta(self._decrypt_slots(piece)) for piece in pieces])
        # Uniform on [−2^flood_bits, 2^flood_bits), modulo 2^64.
        drawn = uniform_words(columns) & np.uint64((2 << layout.flood_bits) - 1)
        flooded = sums[:columns] + (drawn - np.uint64(1 << layout.flood_bits))
        step = np.uint64(layout.flood_bits)
        half = np.uint64(1 << (layout.flood_bits - 1))
        return layout.integers(((flooded + half) >> step) << step)

    def _decrypt_slots(self, piece: bytes) -> NDArray[np.float64]:
        plain = seal.Plaintext()
        reply = _load(piece, VALUE_SCALE_BITS + MATRIX_SCALE_BITS)
        with seal_errors("a reply"):
            self._decryptor.decrypt(reply, plain)
            slots = np.array(self._encoder.decode_double(plain))
        # Under another key, decryption gives coefficients uniform modulo q, 2^7 times larger.
        if not np.max(np.abs(slots)) <= _LARGEST_SLOT:
            raise KeyMismatch("a reply decrypts to more than any masked product of this job")
        return slots


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
            mask = _mask_coefficients()
            total = self._masked_zero(mask)
            with seal_errors("an encrypted vector"):
                for vector, plaintext in zip(vectors, row, strict=True):
                    if plaintext is not None:
                        product = seal.Ciphertext()
                        self._evaluator.multiply_plain(vector, plaintext, product)
                        self._evaluator.add_inplace(total, product)
            replies.append(to_bytes(total))
            masks.append(self._layout.quanta(slots_of(mask)))
        mask_sums = np.concatenate(masks)[: prepared.columns]
        return MaskedReply(b"".join(replies), self._layout.integers(mask_sums))

    def _masked_zero(self, mask: NDArray[np.object_]) -> seal.Ciphertext:
        """A fresh public-key encryption of the mask polynomial, at a product's scale."""
        total = seal.Ciphertext()
        self._encryptor.encrypt_zero(total)
        primes = [modulus.value() for modulus in _parameters().coeff_modulus()][:_DATA_PRIMES]
        residues = np.stack([(mask % prime).astype(np.uint64) for prime in primes])
        self._evaluator.transform_from_ntt_inplace(total)
        self._evaluator.add_inplace(total, coefficient_ciphertext(self._context, residues))
        self._evaluator.transform_to_ntt_inplace(total)
        total.scale = 2.0 ** (VALUE_SCALE_BITS + MATRIX_SCALE_BITS)
        return total


def _mask_coefficients() -> NDArray[np.object_]:
    """Integers uniform on ±_MASK_WIDTH from the operating system, shape (DEGREE,)."""
    low, high = np.frombuffer(os.urandom(16 * DEGREE), np.uint64).reshape(2, DEGREE).astype(object)
    coefficients: NDArray[np.object_] = (high << 64 | low) % (2 * _MASK_WIDTH) - _MASK_WIDTH
    return coefficients


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


def slots_of(coefficients: NDArray[np.object_]) -> NDArray[np.float64]:
    """The real parts of the slots of a polynomial at a product's scale: m(ζ^(3^j)), j < 4096."""
    scaled = np.ldexp(coefficients.astype(np.float64), -VALUE_SCALE_BITS - MATRIX_SCALE_BITS)
    twist = np.exp(1j * np.pi * np.arange(DEGREE) / DEGREE)
    at_odd_powers = np.fft.ifft(scaled * twist, norm="forward")
    return at_odd_powers.real[_slot_order()]


@cache
def _slot_order() -> NDArray[np.int64]:
    powers = [pow(3, j, 2 * DEGREE) for j in range(SLOTS)]
    return (np.array(powers) - 1) // 2
