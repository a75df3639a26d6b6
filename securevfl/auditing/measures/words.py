"""Whether words of rounds in shares are as uniform as they should be, as rows of the audit.

What is tried is one link at a time. Its owner and its holder each have words of some quantities:
residuals, the point, what L2 pulls by, and what came of the products ahead. A word of one of the
two and the other's make the hidden number; own ones are what a party combines its messages with.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from math import log10

import numpy as np

from securevfl.attacks.words import beside, of_pairs, of_words, surprise
from securevfl.auditing.judging import Finding, Metric
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject
from securevfl.crypto.ring import RING_BITS, reduced
from securevfl.errors import ConfigError

SURPRISE = Metric("surprise", 6.0, at_most_one=False, is_bound=True)
ROUNDS, ROWS = 6, 256
OWNERS, HOLDERS = ("residuals", "point", "pull pads"), ("steps", "predictions", "pulls")


def _nothing_in_shares(subject: Subject) -> str:
    """Why there are no such words; empty where parameters stay in shares."""
    if subject.exchange.shares_parameters:
        return ""
    return "nothing of a round is in shares: other rows are about what travels"


@add_attack
@partial(
    Attack,
    "words_of_rounds",
    "any party",
    "its own shares; scored beside what is hidden",
    immune=_nothing_in_shares,
    place=150,
)
def words_of_rounds(subject: Subject) -> Iterable[AttackCase]:
    """An owner's words and a holder's, of every link."""
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
    # Of all of them together, as each is of the p-values that it holds.
    count = sum(map(len, tests.values()))
    value = max(0.0, max(tests[worst].values()) - log10(count))
    detail = {"worst": worst, "tests": tests, "rounds": recording.result.rounds}
    return Finding(SURPRISE, value, chance=0.0, detail=detail)


def _surprises(recording: Recording, owner: str, what: str) -> dict[str, float]:
    """Of the words of one quantity of one link, by kind of test."""
    views = recording.result.views
    as_owner = views[owner].shares(owner, what)
    held = [view.shares(owner, what) for name, view in views.items() if name != owner]
    as_holder = next((shares for shares in held if shares), {})
    # The first point is its owner's own, and no secret from it.
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
