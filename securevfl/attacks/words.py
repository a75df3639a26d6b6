"""Whether words that should be uniform are: by themselves, against one another, and beside a truth.

The attacker has words modulo 2^59 as it received them, and what its own shares make of them. Pads
that are fresh, whole and used once leave nothing that any of these tests could see:

- *by themselves*: a word's place in the ring (Kolmogorov and Smirnov), and each of its bits;
- *in pairs*: the same of differences of words of two rounds, where a pad used twice cancels;
- *beside a truth*: bits that agree with those of the number that is hidden, and correlation with
  it, which is the scorer's to say.

Each figure is a surprise: by how many orders of magnitude the least p-value, times how many were
looked at (Bonferroni), lies below 1. Uniform words pass 6 once in a million times.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import log10

import numpy as np
from scipy.stats import binom, kstest, pearsonr

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto import ring

LEAST = 1e-300


def surprise(p_values: Iterable[float]) -> float:
    """−log10 of the least p-value times their number, at least 0."""
    found = list(p_values)
    return max(0.0, -log10(max(min(found) * len(found), LEAST))) if found else 0.0


def of_words(words: RingArray) -> list[float]:
    """p-values of words: of their place in the ring, and of each bit."""
    flat = words.ravel()
    place = kstest(flat.astype(np.float64) / 2.0**ring.RING_BITS, "uniform").pvalue
    # A word beyond the ring is none: its high bits are those of a difference that has wrapped.
    beyond = 1.0 if int(flat.max(initial=0)) >> ring.RING_BITS == 0 else 0.0
    return [float(place), beyond, *_of_counts(_bits(flat).sum(axis=0), len(flat))]


def of_pairs(words: Sequence[RingArray]) -> list[float]:
    """p-values of the differences of any two of some words of one shape."""
    return [
        p_value
        for one, other in combinations(words, 2)
        for p_value in of_words(ring.reduced(one - other))
    ]


def beside(words: RingArray, truth: RingArray) -> list[float]:
    """p-values of how words go with the numbers that they hide, of the same shape.

    Args:
        words: residues, with what the attacker knows of them taken off.
        truth: residues of what is hidden.
    """
    one, other = words.ravel(), truth.ravel()
    agree = (_bits(one) == _bits(other)).sum(axis=0)
    values = ring.centred(one).astype(np.float64), ring.centred(other).astype(np.float64)
    found = _of_counts(agree, len(one))
    return found if np.ptp(values[1]) == 0 else [*found, _correlated(*values)]


def _bits(words: RingArray) -> FloatArray:
    places = np.arange(ring.RING_BITS, dtype=np.uint64)
    return ((words[:, None] >> places) & np.uint64(1)).astype(np.float64)


def _of_counts(counts: FloatArray, trials: int) -> list[float]:
    """Two-sided p-values of heads among so many throws of a coin."""
    farther = np.maximum(counts, trials - counts)
    return np.minimum(1.0, 2 * binom.sf(farther - 1, trials, 0.5)).tolist()


def _correlated(one: FloatArray, other: FloatArray) -> float:
    return 1.0 if np.ptp(one) == 0 else float(pearsonr(one, other).pvalue)
