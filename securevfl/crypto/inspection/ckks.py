"""CKKS: an evaluator knows the ciphertexts that it multiplied, and believes to know what they hold.

Polynomials are compared in NTT form modulo the first prime, in their first values.
"""

import numpy as np
import tenseal.sealapi as seal

from securevfl.arrays import FloatArray
from securevfl.crypto import ckks, ckks_layout
from securevfl.crypto.scheme import ProductFormat

CHECKED = 200
PRODUCT_SCALE_BITS = ckks_layout.VALUE_SCALE_BITS + ckks_layout.MATRIX_SCALE_BITS


def ckks_ratio(numerator: bytes, denominator: bytes) -> list[int]:
    """The c₁ of a reply over c₁ of the input, in NTT form modulo the first prime; first values."""
    top = _ckks_polynomial(ckks._load(numerator, PRODUCT_SCALE_BITS), 1)
    bottom = _ckks_polynomial(ckks._load(denominator, ckks_layout.VALUE_SCALE_BITS), 1)
    return _ratios(top, bottom)


def ckks_matrix(prepared: ckks.PreparedSlots) -> list[int]:
    """X of the first reply in the same form."""
    plain = prepared.plaintexts[0][0]
    assert plain is not None  # noqa: S101
    return [plain[at] for at in range(CHECKED)]


def ckks_slots(product_format: ProductFormat, values: FloatArray) -> FloatArray:
    """The slots of an input that holds these integers, shape (S,), as its owner lays them out."""
    layout = ckks_layout.SlotLayout.of(product_format)
    padded = np.zeros(layout.block)
    padded[: len(values)] = np.ldexp(values, -layout.value_exponent)
    return np.tile(padded, layout.columns)


def ckks_key_guess(encrypted: bytes, slots: FloatArray) -> list[int]:
    """(m − c₀)/c₁ of an input, m the encoding of what its slots are believed to hold."""
    ciphertext = ckks._load(encrypted, ckks_layout.VALUE_SCALE_BITS)
    return key_of(ciphertext, ckks._encode(slots, ckks_layout.VALUE_SCALE_BITS))


def ckks_key(owner: ckks.CkksOwner, encrypted: bytes) -> list[int]:
    """The owner's key in the same form, from the exact decryption of one of its inputs."""
    ciphertext, plain = (
        ckks._load(encrypted, ckks_layout.VALUE_SCALE_BITS),
        seal.Plaintext(),
    )
    owner._decryptor.decrypt(ciphertext, plain)
    return key_of(ciphertext, plain)


def key_of(ciphertext: seal.Ciphertext, message: seal.Plaintext) -> list[int]:
    """The key s = (m − c₀)/c₁, were m the exact phase; first values modulo the first prime."""
    c0, c1 = _ckks_polynomial(ciphertext, 0), _ckks_polynomial(ciphertext, 1)
    return _ratios([(message[at] - c0[at]) % _ckks_prime() for at in range(CHECKED)], c1)


def _ckks_polynomial(ciphertext: seal.Ciphertext, index: int) -> list[int]:
    start = index * ckks._DATA_PRIMES * ckks_layout.DEGREE
    return [ciphertext[start + at] for at in range(CHECKED)]


def _ckks_prime() -> int:
    return int(ckks._parameters().coeff_modulus()[0].value())


def _ratios(numerator: list[int], denominator: list[int]) -> list[int]:
    q = _ckks_prime()
    return [a * pow(b, -1, q) % q for a, b in zip(numerator, denominator, strict=True)]
