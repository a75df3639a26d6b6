"""Tests whether the words of rounds on secret shares are uniform.

The attacker has the ring elements ("words") that it received and its own shares. If pads are fresh,
cover all bits and are used once, none of these tests can find anything:

- *alone*: a word's place in the ring (Kolmogorov-Smirnov), and each of its bits;
- *beside what is hidden*: agreement of bits and correlation with the hidden number, which only the
  scorer knows;
- *in pairs*: both tests on differences of words of two rounds, in which a reused pad cancels.

The figure is the surprise: −log10 of the least p-value times the number of p-values (Bonferroni).
Uniform words exceed 6 once in a million times.

Each link is tested by itself. Its owner and its holder have words of several quantities: residuals,
the point, the pull of L2, and the results of offline products. The two words of a quantity add up
to the hidden number.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from math import log10

import numpy as np
from scipy.stats import binom, kstest, pearsonr

from securevfl.arrays import FloatArray, RingArray
from securevfl.auditing.judging import Finding, Metric
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject
from securevfl.crypto.ring import RING_BITS, reduced
from securevfl.errors import ConfigError

SURPRISE = Metric("surprise", 6.0, at_most_one=False, is_bound=True)
ROUNDS, ROWS = 6, 256
LEAST = 1e-300
NOTHING_IN_SHARES = "no number of a round is in shares; other attacks read the messages"
OWNERS, HOLDERS = ("residuals", "point", "pull pads"), ("steps", "predictions", "pulls")


@add_attack
@partial(
    Attack,
    "words_of_rounds",
    "any party",
    "its own shares; scored beside what is hidden",
    immune=lambda subject: "" if subject.exchange.shares_parameters else NOTHING_IN_SHARES,
    place=150,
)
def words_of_rounds(subject: Subject) -> Iterable[AttackCase]:
    """The owner's words and the holder's words of each link."""
    yield AttackCase(partial(_of_links, subject, OWNERS), "as owner")
    yield AttackCase(partial(_of_links, subject, HOLDERS), "as holder")


def _of_links(subject: Subject, quantities: Sequence[str]) -> Finding:
    small = subject.with_rows(ROWS)
    recording = small.record(rounds=min(small.job.job.rounds, ROUNDS), eval_every="never")
    tests = {
        f"{owner}, {what}": _surprises(recording, owner, what)
        for owner in recording.plan.facts.names
        for what in quantities
    }
    worst = max(tests, key=lambda name: max(tests[name].values()))
    # Bonferroni over all tests, as within each.
    count = sum(map(len, tests.values()))
    value = max(0.0, max(tests[worst].values()) - log10(count))
    detail = {"worst": worst, "tests": tests, "rounds": recording.result.rounds}
    return Finding(SURPRISE, value, chance=0.0, detail=detail)


def _surprises(recording: Recording, owner: str, what: str) -> dict[str, float]:
    """The surprise of each kind of test, for one quantity of one link."""
    views = recording.result.views
    as_owner = views[owner].shares(owner, what)
    held = [view.shares(owner, what) for name, view in views.items() if name != owner]
    as_holder = next((shares for shares in held if shares), {})
    # The first point is known to its owner.
    steps = sorted(as_holder)[int(what == "point") :]
    if not steps or not as_owner.keys() >= as_holder.keys():
        raise ConfigError(f"no shares of {what} of {owner} were recorded")
    seen, others = (as_owner, as_holder) if what in OWNERS else (as_holder, as_owner)
    words = [reduced(seen[step]) for step in steps]
    hidden = [reduced(seen[step] + others[step]) for step in steps]
    everything = np.concatenate(words)
    return {
        "alone": surprise(of_words(everything, RING_BITS)),
        "in_pairs": surprise(of_pairs(words, hidden, RING_BITS)),
        "beside_what_is_hidden": surprise(beside(everything, np.concatenate(hidden), RING_BITS)),
    }


def surprise(p_values: Iterable[float]) -> float:
    """−log10 of the least p-value times their number, at least 0."""
    found = list(p_values)
    return max(0.0, -log10(max(min(found) * len(found), LEAST))) if found else 0.0


def of_words(words: RingArray, bits: int) -> list[float]:
    """p-values of words modulo 2^bits: of their place in the ring, and of each bit."""
    flat = words.ravel()
    place = kstest(np.ldexp(flat.astype(np.float64), -bits), "uniform").pvalue
    # A word outside the ring would be a difference that wrapped modulo 2^64.
    beyond = float(int(flat.max(initial=0)) < 1 << bits)
    return [float(place), beyond, *_of_counts(_bits(flat, bits).sum(axis=0), len(flat))]


def of_pairs(words: Sequence[RingArray], truths: Sequence[RingArray], bits: int) -> list[float]:
    """p-values of the differences of any two arrays of words, one per round, of equal shapes."""
    ring = np.uint64((1 << bits) - 1)
    found = []
    for (one, hidden), (other, another) in combinations(zip(words, truths, strict=True), 2):
        if one.shape == other.shape:
            difference = (one - other) & ring
            found += of_words(difference, bits)
            found += beside(difference, (hidden - another) & ring, bits)
    return found


def beside(words: RingArray, truth: RingArray, bits: int) -> list[float]:
    """p-values of the agreement and correlation of words with the numbers that they hide."""
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
    spare = np.uint64(64 - bits)
    return (words << spare).view(np.int64).astype(np.float64)


def _of_counts(counts: FloatArray, trials: int) -> list[float]:
    """Two-sided p-values of the number of heads among tosses of a fair coin."""
    farther = np.maximum(counts, trials - counts)
    return [float(each) for each in np.minimum(1.0, 2 * binom.sf(farther - 1, trials, 0.5))]
