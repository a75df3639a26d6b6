"""What an attack measured, and the rule by which an audit calls it a leak.

**The rule.** An attack's advantage is how far its figure passes the better of two bars: what chance
gives, and what the trained model gives its adversary anyway. Over the seeds the advantage has a mean
and a 95 % interval (Student's t; one seed has the point alone). The verdict is

- `resists` where the whole interval stays within the metric's margin;
- `leaks` otherwise; `certain` only where the whole interval lies beyond the margin.

So a figure that is too noisy to tell counts as a leak that is not certain: resistance has to be
shown. Margins are part of the metric and the same for all exchanges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from securevfl.errors import ConfigError

Verdict = Literal["leaks", "resists", "not_applicable"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """What a figure means.

    Attributes:
        name: as reports show it.
        margin: the advantage that still resists.
        is_error: whether smaller figures leak more; the advantage is then 1 − value / bar.
    """

    name: str
    margin: float
    is_error: bool = False


ACCURACY = Metric("accuracy", 0.03)
RECOVERED = Metric("recovered_fraction", 0.03)
RECALL = Metric("recall", 0.03)
CORRELATION = Metric("correlation", 0.1)
RELATIVE_ERROR = Metric("relative_error", 0.1, is_error=True)
DEVIATION = Metric("relative_deviation", 0.0)
EPSILON = Metric("epsilon_lower_bound", 0.0)


@dataclass(frozen=True)
class Finding:
    """One figure of one seed.

    Attributes:
        metric: what it is.
        value: the figure.
        chance: what an adversary without the view reaches; None where that has no meaning.
        model_alone: what its part of the trained model gives it anyway, in the same metric.
        allowed: a bar that is neither: rounding, or a claimed ε.
        detail: more figures and curves, as JSON takes them.
    """

    metric: Metric
    value: float
    chance: float | None = None
    model_alone: float | None = None
    allowed: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def advantage(self) -> float:
        """How far the figure passes the better bar.

        Raises:
            ConfigError: no bar, or a figure that is not a number.
        """
        bars = [bar for bar in (self.chance, self.model_alone, self.allowed) if bar is not None]
        if not bars or not isfinite(self.value):
            raise ConfigError(
                f"{self.metric.name}: {self.value} with bars {bars}, cannot be judged"
            )
        return 1 - self.value / min(bars) if self.metric.is_error else self.value - max(bars)


@dataclass(frozen=True)
class Judgement:
    """What the findings of several seeds say.

    Attributes:
        verdict: by the rule above.
        certain: whether the interval leaves no doubt.
        advantage: mean over the seeds.
        interval: 95 % interval of that mean.
    """

    verdict: Verdict
    certain: bool
    advantage: float
    interval: tuple[float, float]


def judge(findings: Sequence[Finding]) -> Judgement:
    """Apply the rule to the findings of an attack, one a seed.

    Raises:
        ConfigError: no findings, or findings that cannot be judged.
    """
    if not findings:
        raise ConfigError("findings: none, expected one a seed")
    advantages = np.array([finding.advantage for finding in findings])
    mean, seeds = float(advantages.mean()), len(advantages)
    half = 0.0
    if seeds > 1:
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, seeds - 1))
        half = quantile * float(advantages.std(ddof=1)) / sqrt(seeds)
    low, high = mean - half, mean + half
    margin = findings[0].metric.margin
    verdict: Verdict = "resists" if high <= margin else "leaks"
    return Judgement(verdict, verdict == "resists" or low > margin, mean, (low, high))
