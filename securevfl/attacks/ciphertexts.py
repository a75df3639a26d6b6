"""Attacks on ciphertexts: key owners against X, evaluators against keys.

Each attack takes numbers that `securevfl.crypto.inspection` computes from bytes in a view and from
what the adversary holds. They find nothing in this package's products, except for the crafted
query, which a semi-honest party would not send.
"""

from collections.abc import Callable, Iterable

import numpy as np

from securevfl.arrays import IntArray, RingArray


def parities_from_symbols(equations: IntArray, rows: int) -> IntArray | None:
    """A column's parities from Jacobi symbols of inputs and replies; None if they contradict.

    The symbol of Π cᵢ^xᵢ is Π (symbol of cᵢ)^xᵢ, so each reply is a linear equation in x modulo 2.
    Equations are [symbols of the column's inputs | symbol of the reply], shape (replies, rows + 1).
    """
    reduced = equations.copy()
    for at in range(rows):
        (candidates,) = np.nonzero(reduced[at:, at])
        if not len(candidates):
            return None
        reduced[[at, at + candidates[0]]] = reduced[[at + candidates[0], at]]
        others = np.flatnonzero(reduced[:, at])
        others = others[others != at]
        reduced[others] ^= reduced[at]
    return None if reduced[rows:, -1].any() else reduced[:rows, -1]


def secret_from_crafted_queries(
    queries: Iterable[tuple[bytes, IntArray]],
    decrypt: Callable[[bytes, int], RingArray],
    modulus_bits: int,
    degree: int,
) -> IntArray:
    """A BFV secret key, entries −1, 0 or 1, from an owner that decrypts whatever it receives.

    Args:
        queries: crafted replies, and the places of the key's coefficients that form the balanced
            ternary digits of each decrypted value, lowest first, shape (P, W).
        decrypt: the key owner's answer to masked products of P columns.
        modulus_bits: the plaintext modulus is t = 2^modulus_bits.
        degree: of the ring.
    """
    secret = np.zeros(degree, np.int64)
    unused = np.int64(64 - modulus_bits)
    for reply, digits in queries:
        values = decrypt(reply, len(digits)).view(np.int64) >> unused
        for places in digits.T:
            found = (values + 1) % 3 - 1
            values = (values - found) // 3
            secret[places % degree] = np.where(places >= degree, -found, found)
    return secret
