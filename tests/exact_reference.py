"""Exact block steps once more, from docs/explanation/exact-steps.md: all parties in one loop.

Nothing of the package is in it, and nothing of its structure: no party, no message, no signal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BOUNDS = {"logistic": 0.25, "multinomial": 0.5, "squared": 1.0, "taylor-logistic": 0.25}


@dataclass
class Reference:
    """A whole run; see the attributes of the same names in the package.

    Attributes:
        blocks: X of every party, the label party first, whose last column is the intercept.
        labels: class numbers.
        weights: θ⁰ of every party, and in the end θ.
        batches: row numbers of every round.
        scale: s at the start.
        most: its limit.
        hidden: nobody sees the sum of predictions.
        words: what the label party said, a letter each: keep, back, stop.
    """

    blocks: Sequence[FloatArray]
    labels: IntArray
    weights: list[FloatArray]
    batches: Sequence[IntArray]
    loss: str
    l2: float
    scale: float
    most: float
    proximal: float = 0.0
    tolerance: float = 1e-4
    accelerated: bool = True
    alternating: bool = False
    window: int = 1
    hidden: bool = False
    words: list[str] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    bests: list[float] = field(default_factory=list)
    ways_back: int = 0

    def residuals(self, total: FloatArray, rows: IntArray) -> FloatArray:
        y = self.labels[rows]
        if self.loss == "multinomial":
            odds = np.exp(total)
            shares: FloatArray = odds / odds.sum(axis=1, keepdims=True)
            return shares - np.eye(total.shape[1])[y]
        target = y[:, None]
        return {
            "logistic": 1 / (1 + np.exp(-total)) - target,
            "squared": total - target,
            "taylor-logistic": total / 4 - target + 0.5,
        }[self.loss]

    def value(self, total: FloatArray, rows: IntArray) -> float:
        y = self.labels[rows]
        if self.loss == "multinomial":
            odds = np.exp(total)
            return float(-np.log(odds[np.arange(len(y)), y] / odds.sum(axis=1)).mean())
        h, sign = total[:, 0], 2 * y - 1
        return float(
            {
                "logistic": np.log1p(np.exp(-sign * h)),
                "squared": (h - y) ** 2 / 2,
                "taylor-logistic": np.log(2) - sign * h / 2 + h**2 / 8,
            }[self.loss].mean()
        )

    def baseline(self) -> float:
        y, everyone = self.labels, np.arange(len(self.labels))
        shares = np.bincount(y) / len(y)
        if self.loss in {"logistic", "multinomial"}:
            return float(-(shares * np.log(shares)).sum())
        best = {"squared": shares[1], "taylor-logistic": 4 * shares[1] - 2}[self.loss]
        return self.value(np.full((len(y), 1), best), everyone)

    def word(self, index: int, loss: float) -> str:
        baseline, window = self.baseline(), self.window
        best = min(self.bests, default=np.inf)
        self.recent.append(loss)
        last = self.recent[-window:]
        enough = len(last) == window
        mean = float(np.mean(last)) if enough else np.inf
        allowed = self.tolerance * baseline
        if window > 1 and enough:
            allowed = 0.05 * baseline + 3 * np.std(last, ddof=1) / np.sqrt(window)
        if index == 0 or mean < best:
            word, self.ways_back = "keep", 0
            self.bests.append(mean)
        elif not enough:
            return ""
        elif mean > best + allowed and self.scale >= self.most:
            late = self.recent[-4:]
            steady = len(late) == 4 and max(late) - min(late) < self.tolerance * baseline
            return "stop" * steady
        elif mean > best + allowed:
            self.recent, self.ways_back = [], self.ways_back + 1
            return "back" + "stop" * (self.ways_back == 5)
        else:
            word = ""
            self.bests.append(best)
        earlier = self.bests[: -3 * window]
        settled = bool(earlier) and earlier[-1] - self.bests[-1] < self.tolerance * baseline
        return "stop" if settled else word

    def run(self) -> "Reference":
        parties, everyone = range(len(self.blocks)), len(self.labels)
        columns = sum(block.shape[1] for block in self.blocks)
        now, before = copies(self.weights), copies(self.weights)
        best_point, best_step = copies(now), None
        t, beta, gained = 1.0, 0.0, 0.0
        for index, rows in enumerate(self.batches):
            noise = columns / len(rows) * (1 - len(rows) / everyone)
            point = [w + beta * (w - b) for w, b in zip(now, before, strict=True)]
            loss = -gained if self.hidden else self.value(self.total(point, rows), rows)
            word = self.word(index, loss)
            self.words.append(word)
            if "stop" in word:
                self.weights = best_point if "back" in word else now
                return self
            if "back" in word:
                self.scale = min(2 * self.scale, self.most)
                t, beta = 1.0, 0.0
                now, before = copies(best_point), copies(best_point)
                if best_step is not None:
                    now = [now[k] - self.solve(k, noise, index, best_step[k]) for k in parties]
                continue
            steps, fresh = [], copies(point)
            for k in parties:
                d = self.residuals(self.total(fresh if self.alternating else point, rows), rows)
                gradient = self.blocks[k][rows].T @ d / len(rows)
                steps.append(gradient + self.penalty(k)[:, None] * point[k])
                fresh[k] = point[k] - self.solve(k, noise, index, steps[k])
            gained += 0.5 * float(np.sum(steps[0] * (point[0] - fresh[0])))
            if word == "keep":
                best_point, best_step = point, steps
            before, now = now, fresh
            if self.accelerated:
                following = (1 + np.sqrt(1 + 4 * t**2)) / 2
                beta = min((t - 1) / following, max(0.0, 1 - 2 * np.sqrt(noise)))
                t = following
        self.weights = now
        return self

    def total(self, weights: list[FloatArray], rows: IntArray) -> FloatArray:
        each = [block[rows] @ w for block, w in zip(self.blocks, weights, strict=True)]
        total: FloatArray = np.sum(each, axis=0)
        return total

    def penalty(self, party: int) -> FloatArray:
        penalty = np.full(self.blocks[party].shape[1], self.l2)
        if party == 0:
            penalty[-1] = 0.0
        return penalty

    def solve(self, party: int, noise: float, index: int, right: FloatArray) -> FloatArray:
        block = self.blocks[party]
        bend = BOUNDS[self.loss] * block.T @ block / len(self.labels)
        bend = (self.scale + noise * (1 + index / 5)) * (bend + np.diag(self.penalty(party)))
        bend = bend + self.proximal * np.eye(len(bend))
        return np.asarray(np.linalg.solve(bend, right), dtype=np.float64)


def copies(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    return [array.copy() for array in arrays]
