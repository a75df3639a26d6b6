"""Products under any scheme, Paillier's ciphertexts as numbers, and uniform words, for tests."""

from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from securevfl.arrays import IntArray
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat


def format_of(
    rows: int,
    columns: int,
    matrix_bound: float,
    bits: tuple[int, int],
    **more: Any,  # noqa: ANN401
) -> ProductFormat:
    """Of values up to 1, and fraction bits of values and of the matrix."""
    return ProductFormat(rows, 1.0, matrix_bound, *bits, columns=columns, **more)


def is_uniform(bins: NDArray[Any], count: int, alarm: float = 1e-6) -> bool:
    """Whether bins from 0 on are hit alike by chi-square, of a false-alarm rate."""
    counts, expected = (
        np.bincount(bins.ravel().astype(np.int64), minlength=count),
        bins.size / count,
    )
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    return len(counts) == count and statistic < chi2.isf(alarm, count - 1)


def is_centred_binomial(noise: IntArray | NDArray[np.int32]) -> bool:
    """Whether these are sums of 21 bits less 21 others, by chi-square; rare values in one bin."""
    counts = np.bincount(np.clip(noise, -9, 9) + 9, minlength=19)
    odds = np.array([comb(42, 21 + each) for each in range(-21, 22)]) / 2.0**42
    odds = np.array([odds[:13].sum(), *odds[13:30], odds[30:].sum()])
    due = counts.sum() * odds
    return bool(np.sum((counts - due) ** 2 / due) < chi2.isf(1e-6, 18))


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
