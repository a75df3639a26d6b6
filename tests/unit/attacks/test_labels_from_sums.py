import numpy as np
import pytest
from scipy.stats import norm

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.labels_from_sums import labels_from_sums
from securevfl.attacks.row_spaces import RowSpace
from securevfl.models.scores import accuracy, auc

ROWS, COLUMNS = 12_000, 6


def read(
    inputs: FloatArray, labels: IntArray, own: FloatArray, batches: list[IntArray]
) -> FloatArray:
    """Scores by label sums, from an own model's probabilities."""
    spaces = [RowSpace.of(inputs[rows]) for rows in batches]
    classes = np.arange(own.shape[1]) if own.shape[1] > 1 else np.array([1])
    truth = (labels[:, None] == classes).astype(np.float64)
    sums = [space.basis.T @ truth[rows] for rows, space in zip(batches, spaces, strict=True)]
    shown = list(zip(batches, spaces, strict=True))
    return labels_from_sums(sums, shown, own).scores


def parted(generator: np.random.Generator, size: int) -> list[IntArray]:
    return [np.sort(each) for each in np.array_split(generator.permutation(ROWS), ROWS // size)]


@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_what_batches_tell_is_worth_their_ratio(
    share: float, partitions: int, ratio: float
) -> None:
    # Nothing else is known: an AUC of Φ(√(ρ/2)), ρ = Σ P/(S v), as decision 16 has it.
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((ROWS, COLUMNS))
    labels = (generator.random(ROWS) < share).astype(np.int64)
    size = round(partitions * COLUMNS / (ratio * share * (1 - share)))
    batches = [rows for _ in range(partitions) for rows in parted(generator, size)]
    scores = read(inputs, labels, np.full((ROWS, 1), share), batches)
    error = 0.5 / np.sqrt(ROWS * share)
    assert auc(scores, labels) == pytest.approx(norm.cdf(np.sqrt(ratio / 2)), abs=3 * error)


def test_as_many_equations_as_rows_tell_every_label() -> None:
    generator = np.random.default_rng(2)
    inputs = generator.standard_normal((60, 30))
    labels = (generator.random(60) < 0.5).astype(np.int64)
    halves = [np.arange(30), np.arange(30, 60)]
    scores = read(inputs, labels, np.full((60, 1), 0.5), halves)
    assert accuracy(scores, labels) == 1.0


def test_a_row_of_leverage_one_is_told_whatever_the_ratio() -> None:
    generator = np.random.default_rng(3)
    inputs = np.hstack([np.eye(1000, 1), generator.standard_normal((1000, 2))])
    for label in (0, 1):
        labels = (generator.random(1000) < 0.5).astype(np.int64)
        labels[0] = label
        scores = read(inputs, labels, np.full((1000, 1), 0.5), [np.arange(1000)])
        assert (scores[0, 0] > 0) == bool(label)
        assert abs(scores[0, 0]) > 100 * np.abs(scores[1:, 0]).max()


def test_each_class_has_equations_of_its_own() -> None:
    generator = np.random.default_rng(4)
    inputs = generator.standard_normal((ROWS, COLUMNS))
    labels = generator.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    own = np.tile([0.5, 0.3, 0.2], (ROWS, 1))
    scores = read(inputs, labels, own, parted(generator, 100))
    rare = (labels == 2).astype(np.int64)
    expected = norm.cdf(np.sqrt(COLUMNS / (100 * 0.2 * 0.8) / 2))
    assert auc(scores[:, 2:], rare) == pytest.approx(expected, abs=0.02)
