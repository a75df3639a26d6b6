"""What an attack measured, and the rule that decides whether it is a leak.

An attack's advantage is how far its figure passes the better of two bars: guessing, and what the
trained model gives its adversary anyway. Errors have heavy tails, so the median over the seeds
decides. Its interval is the range of the order statistics that covers the median with 95 %: up to 8
seeds the whole range (5 seeds: 94 %). A range of n seeds misses the median by chance with 2^(1-n).
It is therefore widened on both sides by 2^-n of the margin: a single seed has to be half a margin
away, and one without a leak does not decide about errors, which vary by orders. The verdict is

- `leaks` if the whole interval lies beyond the metric's margin;
- `no_leak_found` if the whole interval stays within it;
- `undecided` otherwise: more seeds may decide.

Of deviations (a theorem bounds the largest), counts of certain labels and lower bounds on ε each
seed's figure holds by itself, so the largest decides.

An attack may have several figures. Attacks on labels have AUC, the true positives at 1 % false
positives, the precision of the top ranks and accuracy. A leak by any figure is a leak, and the row
shows the figure that decides. The margin of a figure that is sampled is at least three standard
errors, as an audit compares about a hundred figures.

Margins belong to the metric and are the same for all exchanges. Where the better bar is close to 1
(a model that already knows 98 % of the labels), the margin is half of the remaining room, so that
an attack which reads everything still counts.

Two verdicts stand for no figure: `immune` (the structure of the exchange leaves the attack nothing
to read) and `not_run` (the attack could not run, or does not support the job's settings). A
policy accepts only `no_leak_found` and `immune`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, log10
from typing import Any, Literal, get_args

import numpy as np
from scipy.stats import binom

from securevfl.errors import ConfigError

Verdict = Literal["leaks", "undecided", "not_run", "no_leak_found", "immune"]
WORST_FIRST: tuple[Verdict, ...] = get_args(Verdict)
CONFIDENCE = 0.95
NOTHING = 1e-30
STANDARD_ERRORS = 3


@dataclass(frozen=True)
class Metric:
    """What a figure means."""

    name: str
    margin: float  # the largest advantage that is no leak
    # How a figure compares with its bar: value − bar; value / bar − 1 (proportion);
    # 1 − value / bar, for errors, which shrink as more leaks (share); log10(value / bar) (orders)
    advantage: Literal["difference", "proportion", "share", "orders"] = "difference"
    at_most_one: bool = True  # whether figures end at 1
    is_bound: bool = False  # each seed's figure holds by itself, so their range counts
    varies: bool = False  # by orders between seeds: a single one without a leak decides nothing


ACCURACY = Metric("accuracy", 0.03)
AUC = Metric("auc", 0.02)
TOP_PRECISION = Metric("top_precision", 0.5, "proportion")
TRUE_POSITIVES = Metric("tpr_at_1_percent_fpr", 0.5, "proportion")
RECOVERED = Metric("recovered_fraction", 0.03)
RECALL = Metric("recall", 0.03)
CORRELATION = Metric("correlation", 0.1)
RELATIVE_ERROR = Metric("relative_error", 0.1, "share", varies=True)
DEVIATION = Metric("deviation", 0.0, "orders", is_bound=True)
EPSILON = Metric("epsilon_lower_bound", 0.0, at_most_one=False, is_bound=True)


@dataclass(frozen=True)
class Finding:
    """One figure of one seed."""

    metric: Metric
    value: float
    chance: float | None = None  # by guessing
    model_alone: float | None = None  # by the adversary's part of the trained model, or its columns
    allowed: float | None = None  # another bar: rounding, or a claimed ε
    error: float = 0.0  # the advantage's standard error from sampling rows
    beside: "tuple[Finding, ...]" = ()  # other figures of the same attack, judged by themselves
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def bar(self) -> float:
        """The better of the bars; a ConfigError if there is none, or the figure is not finite."""
        bars = [bar for bar in (self.chance, self.model_alone, self.allowed) if bar is not None]
        if not bars or not isfinite(self.value):
            raise ConfigError(f"{self.metric.name} = {self.value}, bars {bars}: cannot be judged")
        return min(bars) if self.metric.advantage == "share" else max(bars)

    @property
    def advantage(self) -> float:
        """How far the figure passes the bar, as the metric compares them."""
        match self.metric.advantage:
            case "share":
                return 1 - self.value / self.bar
            case "orders":
                return log10(max(self.value, NOTHING) / self.bar)
            case "proportion":
                return self.value / self.bar - 1
            case "difference":
                return self.value - self.bar

    @property
    def margin(self) -> float:
        """The largest advantage that is no leak."""
        margin = self.metric.margin
        if self.metric.advantage == "difference" and self.metric.at_most_one:
            margin = min(margin, (1 - self.bar) / 2)
        if self.metric.advantage == "proportion":
            margin = min(margin, (1 / self.bar - 1) / 2)
        return max(margin, STANDARD_ERRORS * self.error)

    @property
    def within(self) -> bool:
        """Whether no figure of this seed passes its margin."""
        return all(each.advantage <= each.margin for each in (self, *self.beside))


@dataclass(frozen=True)
class Immune:
    """No figure: the structure of the exchange leaves the attack nothing to read."""

    reason: str


@dataclass(frozen=True)
class NotRun:
    """No figure: the attack could not run, or does not support these settings."""

    reason: str


Outcome = Finding | Immune | NotRun


@dataclass(frozen=True)
class Judgement:
    """The verdict on the findings of several seeds."""

    verdict: Verdict
    advantage: float  # median over the seeds; the largest of a bound
    interval: tuple[float, float]  # of that median; the range of a bound
    margin: float


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict on one outcome per seed: that nothing leaks must hold for every seed."""
    findings = [each for each in outcomes if isinstance(each, Finding)]
    verdict = judge(decisive(findings)).verdict if findings else "immune"
    kind = Finding if findings else Immune
    complete = outcomes and all(isinstance(each, kind) for each in outcomes)
    return verdict if complete else min(verdict, "not_run", key=WORST_FIRST.index)


def decisive(findings: Sequence[Finding]) -> list[Finding]:
    """The figures that decide the verdict, one per seed: the first of the worst verdict."""
    figures = [list(each) for each in zip(*((one, *one.beside) for one in findings), strict=True)]
    return min(figures, key=lambda each: WORST_FIRST.index(judge(each).verdict))


def judge(findings: Sequence[Finding]) -> Judgement:
    """Apply the rule to one finding per seed, without the figures beside them."""
    if not findings:
        raise ConfigError("findings: none, expected one per seed")
    advantages = np.sort([finding.advantage for finding in findings])
    seeds, margin = len(advantages), float(np.median([finding.margin for finding in findings]))
    kept: Verdict = "undecided" if findings[0].metric.varies and seeds == 1 else "no_leak_found"
    if findings[0].metric.is_bound:
        low, high = float(advantages[0]), float(advantages[-1])
        verdict = kept if high <= margin else "leaks"
        return Judgement(verdict, high, (low, high), margin)
    # Without k values at either end the range misses the median with 2·P(Bin(n, ½) ≤ k).
    left_out = max(int(binom.ppf((1 - CONFIDENCE) / 2, seeds, 0.5)) - 1, 0)
    widened = margin * 0.5**seeds
    low = float(advantages[left_out]) - widened
    high = float(advantages[-1 - left_out]) + widened
    verdict = "leaks" if low > margin else kept if high <= margin else "undecided"
    return Judgement(verdict, float(np.median(advantages)), (low, high), margin)
