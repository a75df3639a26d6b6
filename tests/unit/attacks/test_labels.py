from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from bench.label_guard.labels_from_sums import labels_from_sums
from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.labels_from_gradients import JobEnd, labels_from_ends, labels_from_one_round
from securevfl.attacks.labels_in_clear import labels_from_residuals
from securevfl.attacks.least_squares import box_least_squares
from securevfl.attacks.row_spaces import RowSpace, exposure, stacked
from securevfl.auditing.figures import score
from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset, row_digests
from securevfl.errors import ConfigError
from securevfl.models.scores import auc

COLUMNS = 6


@pytest.fixture(scope="module")
def a9a(real_data: Callable[..., VerticalDataset]) -> VerticalDataset:
    """The 67 columns attack: of both parties' they have the higher rank."""
    return replace(real_data("a9a"), label_party="second")


def test_a_residual_that_underflows_still_tells_its_label() -> None:
    # σ(40) − 1 rounds to −0.0 and to 0.0; σ(−800) to 0.
    values = np.array([[-0.0], [0.0], [1e-300], [-1e-300], [0.3], [-0.3]])
    found = labels_from_residuals([values], [np.arange(6)], 6)
    assert (found.scores[:, 0] > 0).tolist() == [True, True, False, True, False, True]


def test_noise_on_residuals_is_averaged_away() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 200)
    clean = np.where(labels == 1, -0.3, 0.3)[:, None]
    noisy = [clean + generator.standard_normal((200, 1)) for _ in range(100)]
    everything = [np.arange(200)] * 100
    one = labels_from_residuals(noisy[:1], everything, 200)
    many = labels_from_residuals(noisy, everything, 200)
    assert score(one, labels).accuracy < 0.75
    assert score(many, labels).accuracy > 0.98


@pytest.mark.parametrize("wrong", [[], [np.zeros((3, 1))]])
def test_residuals_that_fit_no_batch_are_refused(wrong: list[FloatArray]) -> None:
    with pytest.raises(ConfigError, match="residuals"):
        labels_from_residuals(wrong, [np.arange(4)], 4)


@pytest.mark.parametrize(("times", "least"), [(1, 0.99), (2, 0.93), (4, 0.85)])
def test_one_round_from_zero_reads_small_batches(
    a9a: VerticalDataset, times: int, least: float
) -> None:
    """A prototype had 1.00 at S = P, 0.96 at 2P, 0.89 at 4P (P = 67); means of six batches."""
    columns = a9a.parties[0].train
    found = []
    for seed in range(6):
        rows = np.random.default_rng(seed).choice(len(columns), 67 * times, replace=False)
        labels = a9a.train_labels[rows]
        gradient = columns[rows].T @ (0.5 - labels[:, None]) / len(rows)
        half = np.full((len(rows), 1), 0.5)
        estimate = labels_from_one_round(gradient, columns[rows], half)
        found.append(score(estimate, labels).accuracy)
    assert np.mean(found) >= least


def test_a_row_of_leverage_one_is_read_exactly_in_a_batch_of_any_size() -> None:
    generator = np.random.default_rng(1)
    columns = generator.standard_normal((300, 5))
    columns = np.hstack([columns, np.eye(300)[:, [7]]])  # a category that one person has
    labels = generator.integers(0, 2, 300)
    residuals = generator.uniform(0, 1, 300) - labels
    shown = exposure(columns, BatchSchedule(row_digests(range(300)), 300, seed=0), epochs=1)
    assert shown.exposed_rows == 1
    assert shown.max_leverage == pytest.approx(1)
    space = RowSpace.of(columns)
    recovered = space.basis[7] @ space.coordinates(columns.T @ residuals[:, None])
    assert recovered[0] == pytest.approx(residuals[7])


def test_the_box_solver_agrees_with_the_normal_equations_and_keeps_the_box() -> None:
    generator = np.random.default_rng(0)
    bases = [np.linalg.qr(generator.standard_normal((20, 8)))[0] for _ in range(3)]
    matrix = stacked(20, [(np.arange(20), basis) for basis in bases])
    target = matrix @ generator.uniform(0, 1, (20, 1))
    prior = np.full((20, 1), 0.5), np.full((20, 1), 0.01)
    visits = np.full(20, 3.0)
    wide = np.full((20, 1), -9.0), np.full((20, 1), 9.0)
    dense = matrix.toarray()
    expected = np.linalg.solve(dense.T @ dense + 0.01 * np.eye(20), dense.T @ target + 0.005)
    found = box_least_squares(matrix, target, visits, wide, prior)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    narrow = np.full((20, 1), 0.4), np.full((20, 1), 0.6)
    pressed = box_least_squares(matrix, target, visits, narrow, prior)
    kept = np.clip(pressed, *narrow)
    moving = (kept > 0.4) & (kept < 0.6)
    slope = matrix.T @ (matrix @ kept - target) + 0.01 * (kept - 0.5)
    assert np.abs(slope[moving]).max() < 2e-3
    # At a bound it is the equations that press outwards, and the more so the farther beyond.
    np.testing.assert_allclose(pressed[~moving] - kept[~moving], -slope[~moving] / 3.01, atol=2e-3)
    assert np.unique(pressed[pressed > 0.6]).size > 1


def test_exposure_counts_what_reshuffling_adds() -> None:
    columns = np.random.default_rng(0).standard_normal((400, 10))
    shown = {
        (sampling, epochs): exposure(
            columns, BatchSchedule(row_digests(range(400)), 100, seed=0, sampling=sampling), epochs
        )
        for sampling in ("partition", "shuffle")
        for epochs in (1, 4)
    }
    assert shown["shuffle", 1].rank_share == pytest.approx(0.1)
    # Every epoch spans the columns themselves again: 4·(40 − 10) + 10 of 400.
    assert shown["shuffle", 4].rank_share == pytest.approx(0.325)
    assert shown["partition", 4].rank_share <= 0.1
    assert shown["partition", 4].max_leverage < 0.9


def test_the_rank_of_many_rows_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes are the same in every run: four have a standard error of 5 % here."""
    monkeypatch.setattr("securevfl.attacks.row_spaces.EXACT_ROWS", 399)
    columns = np.random.default_rng(0).standard_normal((400, 10))
    schedule = BatchSchedule(row_digests(range(400)), 100, seed=0, sampling="shuffle")
    shown = exposure(columns, schedule, 4)
    assert shown.rank_share == pytest.approx(0.325, rel=0.15)
    assert shown.rank_share != pytest.approx(0.325, rel=1e-9)  # probed, not counted


PEOPLE, L2 = 60, 0.1


def ends(count: int, generator: np.random.Generator) -> tuple[list[JobEnd], np.ndarray]:
    """Jobs on halves of some people, of whose labels the columns know nothing."""
    inputs = generator.standard_normal((PEOPLE, COLUMNS))
    labels = generator.integers(0, 2, PEOPLE)
    found = []
    for _ in range(count):
        people = np.sort(generator.permutation(PEOPLE)[: PEOPLE // 2])
        moved = generator.uniform(-0.05, 0.05, len(people))  # by everybody's predictions
        residuals = 0.5 + moved - labels[people]
        parameters = -inputs[people].T @ residuals / (len(people) * L2)
        found.append(JobEnd(inputs[people], parameters[:, None], np.full(COLUMNS, L2), people))
    return found, labels


def test_ends_of_jobs_on_other_rows_add_up() -> None:
    generator = np.random.default_rng(2)
    jobs, labels = ends(16, generator)
    own = np.full((PEOPLE, 1), 0.5)
    right = [
        np.mean((labels_from_ends(jobs[:count], own).scores[:, 0] > 0) == labels)
        for count in (1, 16)
    ]
    assert right[0] < 0.8
    assert right[1] > 0.95


def test_what_does_not_fit_is_refused() -> None:
    (job,), _ = ends(1, np.random.default_rng(2))
    with pytest.raises(ConfigError, match="parameters of 0 jobs"):
        labels_from_ends([], np.full((PEOPLE, 1), 0.5))
    with pytest.raises(ConfigError, match=r"parameters of shape \(6, 1\), expected \(6, 3\)"):
        labels_from_ends([job], np.full((PEOPLE, 3), 0.5))


ROWS = 12_000


def read_sums(
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
    scores = read_sums(inputs, labels, np.full((ROWS, 1), share), batches)
    error = 0.5 / np.sqrt(ROWS * share)
    assert auc(scores, labels) == pytest.approx(norm.cdf(np.sqrt(ratio / 2)), abs=3 * error)


def test_each_class_has_equations_of_its_own() -> None:
    generator = np.random.default_rng(4)
    inputs = generator.standard_normal((ROWS, COLUMNS))
    labels = generator.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    own = np.tile([0.5, 0.3, 0.2], (ROWS, 1))
    scores = read_sums(inputs, labels, own, parted(generator, 100))
    rare = (labels == 2).astype(np.int64)
    expected = norm.cdf(np.sqrt(COLUMNS / (100 * 0.2 * 0.8) / 2))
    assert auc(scores[:, 2:], rare) == pytest.approx(expected, abs=0.02)
