"""Pads r = A·s + e of short secrets beside uniform pads: bytes and CPU seconds of one link.

    python -m bench.blind.short_pads [ROWS COLUMNS ROUNDS RUNS]

`pads` is the product of −N and uniform pads, `points` that of X and points. `short` would replace
`pads`: N·A in digits, multiplied by encryptions of s times each digit's power, and A·s + e at the
holder. `moments` is X₂ᵀ[X₁ | y], from which affine residuals of full batches would need no more
sums over rows. They take turns in one process, and all shares must be exact. Keys are not counted.
Source: docs/decisions/0061-pads-from-lwe.md.
"""

import statistics
import sys
import time

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.masks import WordStream
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner

SECRETS = 2304
DIGITS, DIGIT_BITS = 2, 30
# Sums of SECRETS products of two limbs are exact in float64, as are those of BLOCK entries of N.
LIMBS, LIMB_BITS, BLOCK = 3, 20, 2048
ERROR_SIGNS = 21  # as SEAL's errors: deviation 3.24
STEP_BITS, FEATURE_BITS, CHECKS = 12, 16, 8
ROWS, COLUMNS, ROUNDS, RUNS = 31_950, 21, 20, 3


def product(matrix: IntArray, values: RingArray, bits: int) -> tuple[float, int]:
    """CPU seconds of both ends and bytes of a product whose matrix has entries up to 2^bits."""
    outputs, inner = matrix.shape
    fmt = RingProductFormat(inner, outputs, values.shape[1], 1 << bits)
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt)
    start = time.process_time()
    encrypted = owner.encrypt(values)
    reply, mask = evaluator.product(encrypted, matrix)
    shares = owner.decrypt(reply) - mask
    spent = time.process_time() - start
    require_equal(shares, matrix.view(np.uint64) @ values)
    return spent, len(encrypted) + len(reply)


def require_equal(found: RingArray, expected: RingArray) -> None:
    """Both are the same modulo 2^59."""
    if not np.array_equal(ring.reduced(found), ring.reduced(expected)):
        raise ValueError("shares do not add up to the product")


def limbs(words: RingArray) -> list[FloatArray]:
    """Words by LIMB_BITS, lowest first."""
    mask, places = np.uint64((1 << LIMB_BITS) - 1), np.arange(LIMBS, dtype=np.uint64) * LIMB_BITS
    return [((words >> place) & mask).astype(np.float64) for place in places]


def shifted(exact: FloatArray, limb: int) -> RingArray:
    """A product of limbs at its place."""
    return exact.astype(np.int64).view(np.uint64) << np.uint64(LIMB_BITS * limb)


def in_clear(steps: IntArray, secrets: RingArray) -> tuple[RingArray, RingArray]:
    """N·A and A·s modulo 2^59, by block of rows of A, which is never held."""
    stream, rows = WordStream(bytes(32)), steps.shape[1]
    of_steps = np.zeros((len(steps), SECRETS), np.uint64)
    pads = np.zeros((rows, secrets.shape[1]), np.uint64)
    of_secrets, factors = limbs(secrets), steps.astype(np.float64)
    for at in range(0, rows, BLOCK):
        end = min(at + BLOCK, rows)
        block = limbs(ring.reduced(stream.words((end - at) * SECRETS)).reshape(-1, SECRETS))
        for i, limb in enumerate(block):
            of_steps += shifted(factors[:, at:end] @ limb, i)
            for j in range(LIMBS - i):
                pads[at:end] += shifted(limb @ of_secrets[j], i + j)
    return ring.reduced(of_steps), ring.reduced(pads)


def short(steps: IntArray, rounds: int) -> tuple[float, float, int]:
    """CPU seconds in clear and under BFV, and bytes, of pads A·s + e of a link.

    The work in clear is that of one party, which expands A once for N·A and for its A·s.
    """
    rows = steps.shape[1]
    start = time.process_time()
    secrets = ring.uniform(SECRETS, rounds)
    of_steps, products = in_clear(steps, secrets)
    signs = np.bitwise_count(ring.uniform(2, rows, rounds) >> np.uint64(59 - ERROR_SIGNS))
    errors = signs[0].astype(np.int64) - signs[1]
    pads = ring.reduced(products + errors.view(np.uint64))
    # Digits from −2^29 on: the last one takes what is left.
    half, left, digits = 1 << (DIGIT_BITS - 1), ring.centred(of_steps), []
    for _ in range(DIGITS):
        digits.append((left + half) % (2 * half) - half)
        left = (left - digits[-1]) >> DIGIT_BITS
    spent = time.process_time() - start
    require_equal(steps.view(np.uint64) @ (pads - errors.view(np.uint64)), of_steps @ secrets)
    columns = np.hstack([secrets, ring.uniform(SECRETS, CHECKS)])
    powers = [columns << np.uint64(DIGIT_BITS * digit) for digit in range(DIGITS)]
    return spent, *product(np.hstack(digits), ring.reduced(np.vstack(powers)), DIGIT_BITS - 1)


def main(rows: int, columns: int, rounds: int, runs: int) -> None:
    """Write medians of CPU seconds, and bytes."""
    drawn = np.random.default_rng(0)
    # Beside the batch's rows are those of E, one for each column.
    steps = drawn.integers(-(1 << STEP_BITS), 1 << STEP_BITS, (columns, columns + rows))
    features = drawn.integers(-(1 << FEATURE_BITS), 1 << FEATURE_BITS, (columns + rows, columns))
    transposed, width = np.ascontiguousarray(features.T), rounds + CHECKS
    found: dict[str, list[tuple[float, int]]] = {}
    for _ in range(runs):
        clear, spent, size = short(steps, rounds)
        moments = ring.uniform(columns + rows, columns + 1 + CHECKS)
        for name, made in {
            "pads": product(steps, ring.uniform(columns + rows, width), STEP_BITS),
            "points": product(features, ring.uniform(columns, width), FEATURE_BITS),
            "short, under BFV": (spent, size),
            "short, in clear": (clear, 0),
            "moments": product(transposed, moments, FEATURE_BITS),
        }.items():
            found.setdefault(name, []).append(made)
    for name, each in found.items():
        spent = statistics.median(seconds for seconds, _ in each)
        sys.stdout.write(f"{name:16} {spent:6.2f} s {each[0][1] / 1e6:7.2f} MB\n")


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*(given or (ROWS, COLUMNS, ROUNDS, RUNS)))
