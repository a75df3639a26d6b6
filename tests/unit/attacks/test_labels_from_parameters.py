"""Labels from the ends of jobs: made ones, whose parameters are least to the last digit."""

import numpy as np
import pytest

from securevfl.attacks.labels_from_gradients import JobEnd, labels_from_ends
from securevfl.errors import ConfigError

PEOPLE, COLUMNS, L2 = 60, 6, 0.1


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
    with pytest.raises(ConfigError, match="parameters of no job"):
        labels_from_ends([], np.full((PEOPLE, 1), 0.5))
    with pytest.raises(ConfigError, match=r"parameters of shape \(6, 1\), expected \(6, 3\)"):
        labels_from_ends([job], np.full((PEOPLE, 3), 0.5))
