"""What an attack measured, and the rule by which an audit calls it a leak.

**The rule.** An attack's advantage is how far its figure passes the better of two bars: what chance
gives, and what the trained model gives its adversary anyway. Over the seeds it has a mean
and a 95 % interval (Student's t; one seed has the point alone). Deviations, of which a theorem
bounds the largest, and lower bounds on ε, each of which holds by itself, have their range over the
seeds instead. The verdict is

- `resists` where the whole interval stays within the metric's margin;
- `leaks` otherwise; `certain` only where the whole interval lies beyond the margin.

An attack may be judged by several figures, as one on labels is by AUC, by what it finds at 1 %
false positives, by the precision of the top of its ranking and by accuracy: a leak by any of them
is one, and the row shows the figure that the verdict rests on. A figure that counts few rows says
so: its margin is no less than what sampling gives.

Where the better bar leaves little room below 1, as a model with 98 % of the labels does, the margin
is half of that room, so that who reads all labels is not taken for one who reads none. A figure
that is too noisy to tell counts as a leak that is not certain: resistance has to be shown. Margins
are part of the metric and the same for all exchanges.

Without a figure there are two verdicts: `immune` where the structure of the exchange leaves the
attack nothing to work on, and `not_shown` where it could not be run, or does not take the settings
of this job. Only `resists` and `immune` keep a policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, log10, sqrt
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from securevfl.errors import ConfigError

Verdict = Literal["leaks", "resists", "immune", "not_shown"]
CONFIDENCE = 0.95
NOTHING = 1e-30
STANDARD_ERRORS = 2


@dataclass(frozen=True)
class Metric:
    """What a figure means."""

    name: str
    margin: float  # the advantage that still resists
    # How a figure is compared with its bar: by its difference; by how much it is larger in
    # proportion, value / bar − 1; for an error, which is smaller the more leaks, by the share that
    # is gone, 1 − value / bar; or by orders of magnitude, log10(value / bar)
    advantage: Literal["difference", "proportion", "share", "orders"] = "difference"
    at_most_one: bool = True  # whether 1 is the most that a figure can be
    # Whether each seed's figure holds by itself: the range over seeds counts
    is_bound: bool = False


ACCURACY = Metric("accuracy", 0.03)
AUC = Metric("auc", 0.02)
TOP_PRECISION = Metric("top_precision", 0.5, "proportion")
TRUE_POSITIVES = Metric("tpr_at_1_percent_fpr", 0.5, "proportion")
RECOVERED = Metric("recovered_fraction", 0.03)
RECALL = Metric("recall", 0.03)
CORRELATION = Metric("correlation", 0.1)
RELATIVE_ERROR = Metric("relative_error", 0.1, "share")
DEVIATION = Metric("deviation", 0.0, "orders", is_bound=True)
EPSILON = Metric("epsilon_lower_bound", 0.0, at_most_one=False, is_bound=True)


@dataclass(frozen=True)
class Finding:
    """One figure of one seed."""

    metric: Metric
    value: float
    # What an adversary without the view reaches; None where that has no meaning
    chance: float | None = None
    # What its part of the trained model gives it anyway, in the same metric
    model_alone: float | None = None
    allowed: float | None = None  # a bar that is neither: rounding, or a claimed ε
    # Standard error of the advantage as far as the choice of rows goes; two of them are the least
    # margin
    error: float = 0.0
    # Other figures of the same attack, each with a bar and a margin of its own
    beside: "tuple[Finding, ...]" = ()
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def bar(self) -> float:
        """The better of the bars; without one, or without a number, there is nothing to judge."""
        bars = [bar for bar in (self.chance, self.model_alone, self.allowed) if bar is not None]
        if not bars or not isfinite(self.value):
            raise ConfigError(f"{self.metric.name}: {self.value} beside {bars}, not to be judged")
        return min(bars) if self.metric.advantage == "share" else max(bars)

    @property
    def advantage(self) -> float:
        """How far the figure passes the bar; for errors, what share of the bar is gone."""
        if self.metric.advantage == "share":
            return 1 - self.value / self.bar
        if self.metric.advantage == "orders":
            return log10(max(self.value, NOTHING) / self.bar)
        if self.metric.advantage == "proportion":
            return self.value / self.bar - 1
        return self.value - self.bar

    @property
    def margin(self) -> float:
        """The advantage that still resists."""
        margin = self.metric.margin
        if self.metric.advantage == "difference" and self.metric.at_most_one:
            margin = min(margin, (1 - self.bar) / 2)
        if self.metric.advantage == "proportion":
            margin = min(margin, (1 / self.bar - 1) / 2)
        return max(margin, STANDARD_ERRORS * self.error)

    @property
    def keeps(self) -> bool:
        """Whether no figure of this one seed passes its margin."""
        return all(each.advantage <= each.margin for each in (self, *self.beside))


@dataclass(frozen=True)
class Immune:
    """No figure: by its structure the exchange leaves the attack nothing to work on."""

    reason: str


@dataclass(frozen=True)
class NotShown:
    """No figure: the attack could not be run, or does not take these settings."""

    reason: str


Outcome = Finding | Immune | NotShown


@dataclass(frozen=True)
class Judgement:
    """What the findings of several seeds say."""

    verdict: Verdict
    certain: bool  # whether the interval leaves no doubt
    advantage: float  # mean over the seeds
    interval: tuple[float, float]  # 95 % interval of that mean, or the range
    margin: float  # what it was held against


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """What an attack's outcomes say, one a seed: a leak under some seeds is one.

    Resistance has to be shown under all seeds, and immunity is no matter of seeds.
    """
    findings = [each for each in outcomes if isinstance(each, Finding)]
    verdict = judge(decisive(findings)).verdict if findings else "immune"
    if verdict == "leaks":
        return verdict
    kind = Finding if findings else Immune
    shown = outcomes and all(isinstance(each, kind) for each in outcomes)
    return verdict if shown else "not_shown"


def decisive(findings: Sequence[Finding]) -> list[Finding]:
    """The figures that the verdict rests on, one a seed: the first ones unless only others leak."""
    figures = [list(each) for each in zip(*((one, *one.beside) for one in findings), strict=True)]
    leaking = [each for each in figures if judge(each).verdict == "leaks"]
    return (leaking or figures)[0]


def judge(findings: Sequence[Finding]) -> Judgement:
    """Apply the rule to the findings of an attack, one a seed, without those beside them."""
    if not findings:
        raise ConfigError("findings: none, expected one a seed")
    advantages = np.array([finding.advantage for finding in findings])
    mean, seeds = float(advantages.mean()), len(advantages)
    half = 0.0
    if seeds > 1:
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, seeds - 1))
        half = quantile * float(advantages.std(ddof=1)) / sqrt(seeds)
    low, high = mean - half, mean + half
    if findings[0].metric.is_bound:
        low, high = float(advantages.min()), float(advantages.max())
    margin = float(np.mean([finding.margin for finding in findings]))
    verdict: Verdict = "resists" if high <= margin else "leaks"
    return Judgement(verdict, verdict == "resists" or low > margin, mean, (low, high), margin)
