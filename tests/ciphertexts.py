"""Products under any scheme, and Paillier's ciphertexts as numbers, for tests."""

import numpy as np

from securevfl.arrays import IntArray
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat


def product(owner: KeyOwner, evaluator: Evaluator, values: IntArray, matrix: IntArray) -> IntArray:
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix))
    masked = owner.decrypt(reply.ciphertext, matrix.shape[1])
    return unmask(masked, reply.mask, evaluator.modulus_bits)


def drawn(fmt: ProductFormat, rows: int, columns: int, seed: int) -> tuple[IntArray, IntArray]:
    """Values and a matrix uniform within their bounds."""
    generator = np.random.default_rng(seed)
    values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, rows)
    largest = fmt.largest_entry
    return values, generator.integers(-largest, largest + 1, (rows, columns))


def numbers(data: bytes, width: int) -> list[int]:
    return [int.from_bytes(data[at : at + width], "big") for at in range(0, len(data), width)]


def wire(width: int, *ciphertexts: int) -> bytes:
    return b"".join(each.to_bytes(width, "big") for each in ciphertexts)
