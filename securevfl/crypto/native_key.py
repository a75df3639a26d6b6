"""The owner's side of BFV products in C: encryptions of zero and decryption with SEAL's secret key.

Sizes and bytes are SEAL's. A ciphertext's seed is from the operating system's generator; its noise
is SEAL's centred binomial, from a ChaCha20 stream under a fresh key of that generator. So is the u
of an encryption under the public key, 2^−51 from uniform. No branch and no address in C depends on
the key, u or noise.
Source: docs/decisions/0060-native-zeros.md.
"""

import os

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvSizes
from securevfl.crypto.masks import WordStream
from securevfl.crypto.native import Arithmetic, noise, ternary
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.seal_codec import SEED_BYTES, SEED_START


def fresh_words(count: int) -> RingArray:
    """Pseudorandom words, (count,), of a stream under a fresh key, which is used for them alone."""
    return WordStream(os.urandom(KEY_SEED_BYTES)).words(count)


def fresh_blinder() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """U and (e₀, e₁), (2, DEGREE), of an encryption of zero (p₀u + e₀, p₁u + e₁)."""
    words = fresh_words(3 * DEGREE).reshape(3, DEGREE)
    return ternary(words[0]), noise(words[1:])


class NativeKey:
    """A secret key of these sizes.

    Args:
        secret: its coefficients, −1, 0 or 1, (DEGREE,).
        vector: the path of AVX2 and FMA.
    """

    def __init__(self, sizes: BfvSizes, secret: NDArray[np.int32], *, vector: bool) -> None:
        primes, kept = sizes.primes(), sizes.reply_primes
        largest = DEGREE * max(primes)
        self._inputs = Arithmetic(primes, len(primes), sizes.prime_bits, largest, vector=vector)
        self._replies = Arithmetic(
            primes[:kept], kept, sizes.reply_bits, largest, vector=vector, plain=sizes.plain_modulus
        )
        self._key = self._inputs.key(secret)

    def zero(self) -> tuple[RingArray, bytes]:
        """c₀ of an encryption of zero, (primes, DEGREE), and its c₁'s seed in SEAL's format."""
        seed = os.urandom(SEED_BYTES - len(SEED_START))
        return self._inputs.zero(self._key, seed, noise(fresh_words(DEGREE))), SEED_START + seed

    def opened(self, reply: bytes | memoryview, positions: NDArray[np.int64]) -> RingArray | None:
        """Coefficients modulo t of a reply as it travels, (positions,); None as in Arithmetic."""
        return self._replies.opened(self._key, reply, positions)
