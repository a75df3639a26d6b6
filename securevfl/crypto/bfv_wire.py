"""BFV inputs and replies as bytes, without a spare bit.

An input is its c₀ by primes and the seed of its c₁. A reply is, by primes, its c₁ and the c₀
coefficients that are revealed.
"""

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvSizes
from securevfl.crypto.bit_packing import pack, packed_size, unpack


def unpack_input(parameters: BfvSizes, data: bytes) -> tuple[RingArray, bytes]:
    """c₀, shape (primes, DEGREE), and the seed of c₁."""
    residues = np.empty((len(parameters.prime_bits), DEGREE), np.uint64)
    at = 0
    for row, bits in enumerate(parameters.prime_bits):
        end = at + packed_size(DEGREE, bits)
        residues[row] = unpack(data[at:end], DEGREE, bits)
        at = end
    return residues, data[at:]


def reply_bytes(parameters: BfvSizes, revealed: int) -> int:
    """Bytes of one reply that reveals so many coefficients."""
    return sum(
        packed_size(DEGREE, bits) + packed_size(revealed, bits) for bits in parameters.reply_bits
    )


def pack_reply(parameters: BfvSizes, polynomials: RingArray, positions: NDArray[np.int64]) -> bytes:
    """Of (c₀, c₁), shape (2, reply primes, DEGREE), all of c₁ and c₀ at the positions."""
    c0, c1 = polynomials
    return b"".join(
        pack(residues, bits)
        for row, bits in enumerate(parameters.reply_bits)
        for residues in (c1[row], c0[row, positions])
    )


def unpack_reply(parameters: BfvSizes, data: bytes, positions: NDArray[np.int64]) -> RingArray:
    """(c₀, c₁), shape (2, reply primes, DEGREE); c₀ is 0 where it was not sent."""
    polynomials = np.zeros((2, parameters.reply_primes, DEGREE), np.uint64)
    at = 0
    for row, bits in enumerate(parameters.reply_bits):
        end = at + packed_size(DEGREE, bits)
        polynomials[1, row] = unpack(data[at:end], DEGREE, bits)
        at = end + packed_size(len(positions), bits)
        polynomials[0, row, positions] = unpack(data[end:at], len(positions), bits)
    return polynomials
