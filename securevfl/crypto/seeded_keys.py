"""Public keys (p₀, p₁) = (−(p₁·s + e), p₁) of SEAL whose p₁ is expanded from a given seed.

An owner that chooses its p₁, say 0, divides p₁·u out of the c₁ = p₁·u + e₁ + a·X of a reply, and
reads X. Where the seed is one that all parties draw (session/joint_seed), no side chooses p₁. The
keys of a job may share it, like the common reference of multiparty schemes (Mouchet et al., PETS
2021).

p₀ cannot be checked. It changes c₀ only, which masks modulo q' hide. Where the owner learns a
product, its mask is gone, and a p₀ with a large e shows the owner u, and so p₁·u, of this reply.

SEAL draws p₁ itself, so p₀ is computed here, with SEAL's arithmetic. As in SEAL, each coefficient
of e is the sum of 21 bits less 21 others, from the operating system.

Format: the seed of 32 bytes, then (p₀, 0) in SEAL's serialization, where zeros take no room. p₁ is
in NTT form, as SEAL's public keys are, modulo each prime, the special one last. Its residues are
64-bit words of a ChaCha20 stream (masks), with the seed as its key, cut to the bits of the prime;
words from the prime on are replaced by later ones. It is exactly uniform, as the transform is a
bijection.
"""

import os
from functools import cache

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.masks import WordStream
from securevfl.crypto.residues import uniform_below
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    from_bytes,
    polynomials_of,
    public_key_of,
    split,
    to_bytes,
)
from securevfl.errors import CryptoError

_LARGEST_KEY = 1 << 20
_NOISE_BITS = 21
_EXTRA_BITS = 20  # fewer than any other prime has


def make_public_bytes(
    context: seal.SEALContext, secret_key: seal.SecretKey, seed: bytes | None = None
) -> bytes:
    """A public key for a secret one, with fresh noise; the default is a fresh seed of one's own.

    Peers accept no seed but the one drawn with them.
    """
    seed = os.urandom(KEY_SEED_BYTES) if seed is None else seed
    primes, degree = _shape(context)
    p1, noise = expanded(seed, primes, degree), _noise(primes, degree)
    total, level, around = seal.Ciphertext(), context.key_parms_id(), _with_key_level(context)
    evaluator, nothing = seal.Evaluator(around), np.zeros_like(p1)
    uniform = ciphertext_of(around, level, np.stack([nothing, p1]), ntt=True)
    evaluator.multiply_plain(uniform, secret_key.data(), total)
    error = ciphertext_of(around, level, np.stack([nothing, noise]))
    evaluator.transform_to_ntt_inplace(error)
    evaluator.add_inplace(total, error)
    evaluator.negate_inplace(total)
    return seed + to_bytes(public_key_of(context, polynomials_of(total)[::-1]))


def ternary_of(context: seal.SEALContext, secret_key: seal.SecretKey) -> NDArray[np.int32]:
    """A secret key's coefficients, −1, 0 or 1, (degree,)."""
    primes, degree = _shape(context)
    around, level = _with_key_level(context), context.key_parms_id()
    ones, total = np.ones((len(primes), degree), np.uint64), seal.Ciphertext()
    one = ciphertext_of(around, level, np.stack([ones, ones]), ntt=True)
    evaluator = seal.Evaluator(around)
    evaluator.multiply_plain(one, secret_key.data(), total)
    evaluator.transform_from_ntt_inplace(total)
    residues = polynomials_of(total)[0, 0]
    return np.where(residues > np.uint64(1), -1, residues.view(np.int64)).astype(np.int32)


def public_key(
    context: seal.SEALContext, data: bytes, other: seal.SEALContext | None = None
) -> seal.PublicKey:
    """The key of `make_public_bytes`; perhaps for a context with another plaintext modulus.

    Raises:
        KeyMismatch: a key of other parameters, or numbers that are no residues.
        CryptoError: bytes that are no key.
    """
    return public_key_of(other or context, public_words(context, data))


def public_words(context: seal.SEALContext, data: bytes) -> RingArray:
    """(p₀, p₁) of a key in NTT form, (2, all primes, degree); errors as of `public_key`."""
    (piece,) = split(data[KEY_SEED_BYTES:], 1, _LARGEST_KEY)
    sent = from_bytes(context, seal.PublicKey(), piece)  # `data` does not keep it alive
    p0, p1 = polynomials_of(sent.data())[0], expanded(data[:KEY_SEED_BYTES], *_shape(context))
    return np.stack([p0, p1])


def coefficients(context: seal.SEALContext, words: RingArray) -> RingArray:
    """The coefficients of two polynomials in NTT form, (2, data primes, degree)."""
    both = ciphertext_of(context, context.first_parms_id(), words, ntt=True)
    seal.Evaluator(context).transform_from_ntt_inplace(both)
    return polynomials_of(both)


def expanded(seed: bytes, primes: list[int], degree: int) -> RingArray:
    """p₁ modulo each prime, in NTT form, shape (primes, degree)."""
    if len(seed) != KEY_SEED_BYTES:
        raise CryptoError(f"a seed of {len(seed)} bytes, {KEY_SEED_BYTES} expected")
    stream = WordStream(seed)
    return np.stack([uniform_below(prime, degree, stream.words) for prime in primes])


def _noise(primes: list[int], degree: int) -> RingArray:
    """Noise modulo each prime, shape (primes, degree)."""
    drawn = np.frombuffer(os.urandom(2 * _NOISE_BITS * degree // 8), np.uint8)
    bits = np.unpackbits(drawn).reshape(2, degree, _NOISE_BITS).sum(axis=2, dtype=np.int64)
    return np.stack([((bits[0] - bits[1]) % prime).astype(np.uint64) for prime in primes])


def _shape(context: seal.SEALContext) -> tuple[list[int], int]:
    """All primes, SEAL's special one last, and the degree."""
    parameters = context.key_context_data().parms()
    primes = [modulus.value() for modulus in parameters.coeff_modulus()]
    return primes, parameters.poly_modulus_degree()


@cache
def _with_key_level(context: seal.SEALContext) -> seal.SEALContext:
    """A context with a further prime, so that SEAL computes at the level of the given one's keys.

    It makes no keys of its own: its security does not matter.
    """
    wider = seal.EncryptionParameters(context.key_context_data().parms())
    extra = seal.CoeffModulus.Create(wider.poly_modulus_degree(), [_EXTRA_BITS])
    wider.set_coeff_modulus([*wider.coeff_modulus(), *extra])
    return seal.SEALContext(wider, False, seal.SEC_LEVEL_TYPE.NONE)
