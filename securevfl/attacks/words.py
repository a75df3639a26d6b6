"""Whether words that should be uniform are: by themselves, against one another, and beside a truth.

The attacker has words of some bits as it received them, and what its own shares make of them. Pads
that are fresh, whole and used once leave nothing that any of these tests could see:

- *by themselves*: a word's place in the ring (Kolmogorov and Smirnov), and each of its bits;
- *beside a truth*: bits that agree with those of the number that is hidden, and correlation with
  it, which is the scorer's to say;
- *in pairs*: both of differences of words of two rounds, where a pad used twice cancels.

Each figure is a surprise: by how many orders of magnitude the least p-value, times how many were
looked at (Bonferroni), lies below 1. Uniform words pass 6 once in a million times.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import log10

import numpy as np
from scipy.stats import binom, kstest, pearsonr

from securevfl.arrays import FloatArray, RingArray

LEAST = 1e-300


def surprise(p_values: Iterable[float]) -> float:
    """−log10 of the least p-value times their number, at least 0."""
    found = list(p_values)
    return max(0.0, -log10(max(min(found) * len(found), LEAST))) if found else 0.0


def of_words(words: RingArray, bits: int) -> list[float]:
    """p-values of words modulo 2^bits: of their place in the ring, and of each bit."""
    flat = words.ravel()
    place = kstest(np.ldexp(flat.astype(np.float64), -bits), "uniform").pvalue
    # A word beyond the ring is none: its high bits are those of a difference that has wrapped.
    beyond = float(int(flat.max(initial=0)) < 1 << bits)
    return [float(place), beyond, *_of_counts(_bits(flat, bits).sum(axis=0), len(flat))]


def of_pairs(words: Sequence[RingArray], truths: Sequence[RingArray], bits: int) -> list[float]:
    """p-values of the differences of any two arrays of words, one a round, that have one shape."""
    ring = np.uint64((1 << bits) - 1)
    found = []
    for (one, hidden), (other, another) in combinations(zip(words, truths, strict=True), 2):
        if one.shape == other.shape:
            difference = (one - other) & ring
            found += of_words(difference, bits)
            found += beside(difference, (hidden - another) & ring, bits)
    return found


def beside(words: RingArray, truth: RingArray, bits: int) -> list[float]:
    """p-values of how residues, less what the attacker knows of them, go with what they hide."""
    one, other = words.ravel(), truth.ravel()
    agree = (_bits(one, bits) == _bits(other, bits)).sum(axis=0)
    values = _centred(one, bits), _centred(other, bits)
    found = _of_counts(agree, len(one))
    if min(np.ptp(values[0]), np.ptp(values[1])) > 0:
        found.append(float(pearsonr(*values).pvalue))
    return found


def _bits(words: RingArray, bits: int) -> FloatArray:
    places = np.arange(bits, dtype=np.uint64)
    return ((words[:, None] >> places) & np.uint64(1)).astype(np.float64)


def _centred(words: RingArray, bits: int) -> FloatArray:
    """The representatives around 0."""
    spare = np.uint64(64 - bits)
    return (words << spare).view(np.int64).astype(np.float64)


def _of_counts(counts: FloatArray, trials: int) -> list[float]:
    """Two-sided p-values of heads among so many throws of a coin."""
    farther = np.maximum(counts, trials - counts)
    return [float(each) for each in np.minimum(1.0, 2 * binom.sf(farther - 1, trials, 0.5))]
