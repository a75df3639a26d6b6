"""Paillier: anybody knows a ciphertext's Jacobi symbol."""

import gmpy2
import numpy as np

from securevfl.arrays import IntArray


def jacobi_symbols(ciphertexts: bytes, public_bytes: bytes) -> IntArray:
    """1 where the Jacobi symbol of a Paillier ciphertext modulo n is −1, else 0."""
    n, width = int.from_bytes(public_bytes, "big"), 2 * len(public_bytes)
    parts = [ciphertexts[at : at + width] for at in range(0, len(ciphertexts), width)]
    symbols = [gmpy2.jacobi(int.from_bytes(part, "big"), n) for part in parts]
    return np.array([symbol == -1 for symbol in symbols], np.int64)
