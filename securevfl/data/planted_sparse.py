"""A made set of many sparse 0/1 columns at three parties, of the size of FDML's (Hu et al., 2019).

As in logs of what people installed, opened and searched: a row has 50 to 100 ones among 8,700
columns, whose popularity falls as a power of their rank. Labels follow a planted model

    P(y = 1) = σ(b + Σ_k (a_k s_k + q_k (s_k² − 1)) + c s_1 (s_2 + s_3)),

where s_k is a weighted sum of party k's columns, of mean 0 and variance 1: linear models see a_k, a
network beside that q_k, and only one that has all columns c. A seed fixes everything; fewer rows of
it are the first rows of more.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.shard_writing import RowIds, write_shard
from securevfl.errors import ConfigError, DataError
from securevfl.files import replace_file

BLOCK_ROWS = 20_000
FEWEST_ROWS = 1000
MOST_ONES, FEWEST_ONES = 100, 52  # a few are drawn twice, and are one
HEAD = 20.0
"""Popularity is 1/(rank + HEAD): the most popular column occurs in about half of the rows."""
INTERCEPT, ACROSS = -1.2, 0.1
_PILOT = (1 << 32) - 1


@dataclass(frozen=True)
class PlantedParty:
    """One party: P columns, its share of a row's ones, and its a_k (linear) and q_k (quadratic)."""

    name: str
    columns: int
    share: float
    linear: float
    quadratic: float


PARTIES = (
    PlantedParty("store", 7000, 0.80, 0.58, 0.38),
    PlantedParty("browser", 1000, 0.12, 0.37, 0.08),
    PlantedParty("safety", 700, 0.08, 0.30, 0.06),
)
"""The label party first."""
COLUMNS = sum(party.columns for party in PARTIES)
FEWEST_COLUMNS, MOST_COLUMNS = COLUMNS // 10, 1 << 31


def parties_of(columns: int) -> tuple[PlantedParty, ...]:
    """The parties with so many columns in all, each with its part of them."""
    if not FEWEST_COLUMNS <= columns <= MOST_COLUMNS:
        raise ConfigError(f"columns = {columns}, expected {FEWEST_COLUMNS} to {MOST_COLUMNS}")
    others = [
        replace(each, columns=round(each.columns * columns / COLUMNS)) for each in PARTIES[1:]
    ]
    left = columns - sum(each.columns for each in others)
    return replace(PARTIES[0], columns=left), *others


@dataclass(frozen=True, eq=False)
class Columns:
    """Some rows' ones at one party: lengths, shape (rows,), and ascending column numbers."""

    lengths: IntArray
    indices: IntArray


class PlantedSet:
    """The set of a seed, which draws popularities, weights, and what standardizes the sums."""

    def __init__(self, seed: int, columns: int = COLUMNS) -> None:
        self._seed, self.parties = seed, parties_of(columns)
        self._popularity: list[FloatArray] = []
        self._weights: list[FloatArray] = []
        for number, party in enumerate(self.parties):
            rng = np.random.default_rng([seed, _PILOT, number])
            popularity = rng.permutation(1 / (np.arange(1, party.columns + 1) + HEAD))
            popularity /= popularity.sum()
            weights = rng.standard_normal(party.columns)
            cumulative = np.cumsum(popularity)
            self._popularity.append(cumulative / cumulative[-1])
            self._weights.append(weights - popularity @ weights)
        pilot = self._draw(np.random.default_rng([seed, _PILOT]), BLOCK_ROWS)
        for number, sums in enumerate(self._sums(pilot)):
            mean_length = pilot[number].lengths.mean()
            self._weights[number] = (self._weights[number] - sums.mean() / mean_length) / sums.std()

    def blocks(self, rows: int) -> Iterator[tuple[int, list[Columns], NDArray[np.bool_]]]:
        """The first row's number, columns by party, and labels, block by block."""
        for block, start in enumerate(range(0, rows, BLOCK_ROWS)):
            rng = np.random.default_rng([self._seed, block])
            drawn = self._draw(rng, BLOCK_ROWS)
            labels = rng.random(BLOCK_ROWS) < 1 / (1 + np.exp(-self._logits(drawn)))
            kept = min(BLOCK_ROWS, rows - start)
            yield (
                start,
                [_some(each, np.arange(BLOCK_ROWS) < kept) for each in drawn],
                labels[:kept],
            )

    def _logits(self, drawn: list[Columns]) -> FloatArray:
        sums = self._sums(drawn)
        logits = INTERCEPT + ACROSS * sums[0] * (sums[1] + sums[2])
        for party, each in zip(PARTIES, sums, strict=True):
            logits += party.linear * each + party.quadratic * (each**2 - 1)
        return logits

    def _sums(self, drawn: list[Columns]) -> list[FloatArray]:
        sums = []
        for weights, columns in zip(self._weights, drawn, strict=True):
            starts = np.cumsum(columns.lengths) - columns.lengths
            sums.append(np.add.reduceat(weights[columns.indices], starts))
        return sums

    def _draw(self, rng: np.random.Generator, rows: int) -> list[Columns]:
        ones = rng.integers(FEWEST_ONES, MOST_ONES + 1, rows)
        first, second = (np.rint(ones * party.share).astype(np.int64) for party in PARTIES[:2])
        counts = (first, second, ones - first - second)
        pairs = zip(counts, self._popularity, strict=True)
        return [_stratified(rng, count, cumulative) for count, cumulative in pairs]


def _stratified(rng: np.random.Generator, counts: IntArray, cumulative: FloatArray) -> Columns:
    """A column from each of a row's `counts` equal parts of the popularity, ascending at once."""
    row = np.repeat(np.arange(len(counts)), counts)
    part = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    points = (part + rng.random(len(row))) / counts[row]
    indices = np.minimum(np.searchsorted(cumulative, points, side="right"), len(cumulative) - 1)
    # A column that reaches into two parts may come from both.
    again = (indices[1:] == indices[:-1]) & (row[1:] == row[:-1])
    new = np.concatenate([[True], ~again])
    return Columns(np.bincount(row[new], minlength=len(counts)), indices[new])


def _some(columns: Columns, rows: NDArray[np.bool_]) -> Columns:
    return Columns(columns.lengths[rows], columns.indices[np.repeat(rows, columns.lengths)])


def make_planted_sparse(
    folder: Path,
    rows: int,
    seed: int,
    *,
    columns: int = COLUMNS,
    force: bool = False,
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Write the set: two shards a party, training rows and every tenth row, which is held out.

    `folder` gets a folder a party, with its shards `train` and `test`, and a job file. The paper's
    size is 5,000,000 rows; with more columns each is rarer. `progress` is told how many rows are
    done.

    Raises:
        ConfigError: fewer rows than 1000, a negative seed, or too few or too many columns.
        DataError: it cannot be written, or is there already and `force` does not replace it.
    """
    if rows < FEWEST_ROWS or seed < 0:
        raise ConfigError(f"rows = {rows}, seed = {seed}: expected at least {FEWEST_ROWS} and 0")
    job = folder / "job.toml"
    if job.exists() and not force:
        raise DataError(f"{job} is there already; --force replaces it")
    made = PlantedSet(seed, columns)
    with ExitStack() as stack:
        writers = {
            (party.name, split): stack.enter_context(
                write_shard(folder / party.name / split, columns=party.columns, force=force)
            )
            for party in made.parties
            for split in ("train", "test")
        }
        for start, drawn, labels in made.blocks(rows):
            numbers = np.arange(start, start + len(labels))
            for split, chosen in (("train", numbers % 10 != 9), ("test", numbers % 10 == 9)):  # noqa: PLR2004
                ids = RowIds.of(list(map(str, numbers[chosen].tolist())))
                for party, each in zip(made.parties, drawn, strict=True):
                    own = _some(each, chosen)
                    holds_labels = party is made.parties[0]
                    targets = labels[chosen].astype(np.float64) if holds_labels else None
                    writers[party.name, split].append(ids, own.lengths, own.indices, None, targets)
            progress(start + len(labels))
    replace_file(job, _JOB.encode(), "job file")


_JOB = "\n".join(
    [
        "[job]",
        'name = "planted-sparse"',
        'algorithm = "fdml"',
        "standardize = false",
        "batch_size = 1000",
        "learning_rate = 1.0",
        'start = "zero"',
        *(
            f'\n[[party]]\nname = "{party.name}"\n'
            f'role = "{"label" if party is PARTIES[0] else "feature"}"\n'
            f'data = "{party.name}/train"\ntest_data = "{party.name}/test"'
            for party in PARTIES
        ),
        "",
    ]
)
