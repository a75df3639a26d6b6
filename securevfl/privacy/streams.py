"""Secret noise: ChaCha20 streams, one per purpose, and Gaussian and Laplace draws from them.

Noise that somebody can predict can be subtracted, and statistical generators can be predicted from
their output. Here each party has its own key per job, from the operating system's generator. HKDF
derives a key for every purpose, and a ChaCha20 stream under it yields words of 64 bits.

Draws invert the distribution function, one word each: the lowest bit is the sign, and the other
bits form m, with p = (m + ½)/2^63 the probability of a larger magnitude: −Φ⁻¹(p/2), or −log p.
Magnitudes end at 9.16 standard deviations and at 44.4 scales. On the grid of `mechanisms` the
distribution differs from the intended one by about 2^-64 per cell in the tails, and by the rounding
of p: for a scale of s times 2β, each number adds less than 1e-6·s to ε and 1e-11·s·(1 + e^ε) to δ,
which is neglected. Other machines draw the same values up to the last bits of Φ⁻¹ and log.
"""

import secrets
from hashlib import sha256
from math import prod
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.masks import WordStream

Purpose = Literal[
    "predictions", "held-out predictions", "residuals", "gradients", "mean units", "client sums"
]
KEY_BYTES = 32
_LABEL = b"securevfl noise 1: "
_SEED_LABEL = "securevfl noise of an experiment 1"


class NoiseStream(WordStream):
    """Consecutive draws from one ChaCha20 stream."""

    def gaussian(self, shape: tuple[int, ...]) -> FloatArray:
        """Draws of mean 0 and deviation 1."""
        from scipy.special import ndtri  # noqa: PLC0415  # slow to import

        signs, tails = signs_and_tails(self.words(prod(shape)))
        draws: FloatArray = signs * -ndtri(tails / 2)
        return draws.reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> FloatArray:
        """Draws of mean 0 and scale 1."""
        signs, tails = signs_and_tails(self.words(prod(shape)))
        draws: FloatArray = signs * -np.log(tails)
        return draws.reshape(shape)


class NoiseKey:
    """The 32 secret bytes that determine one party's noise in one job."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._streams: dict[Purpose, NoiseStream] = {}

    @classmethod
    def generate(cls) -> "NoiseKey":
        """A fresh key from the operating system's generator."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of_experiment(cls, seed: int, party: int) -> "NoiseKey":
        """A public key, for repeatable runs: such noise guarantees nothing."""
        return cls(sha256(f"{_SEED_LABEL}: {seed} {party}".encode()).digest())

    def stream(self, purpose: Purpose) -> NoiseStream:
        """The stream of a purpose; a later call continues it, so no draw is repeated."""
        if purpose not in self._streams:
            derive = HKDFExpand(SHA256(), KEY_BYTES, info=_LABEL + purpose.encode())
            self._streams[purpose] = NoiseStream(derive.derive(self._key))
        return self._streams[purpose]


def signs_and_tails(words: RingArray) -> tuple[FloatArray, FloatArray]:
    """±1 from a word's lowest bit, and p = (m + ½)/2^63 in (0, 1] from the other bits."""
    signs = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
    tails = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63
    return signs, tails
