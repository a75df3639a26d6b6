"""Labels that follow from final models alone, and the count that refuses such jobs."""

from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from securevfl.data.tables import VerticalDataset
from securevfl.errors import LabelLeakRefused
from securevfl.models.curvature import Curvature
from securevfl.protocols.blind.fixed_point import REVEALED_BITS
from securevfl.protocols.guards.label_ends import BITS
from securevfl.protocols.guards.person_record import CHANGED_FOR_EACH_COLUMN, PersonRecord
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.joint_seed import SeedOpening
from securevfl.sparse import require_dense
from securevfl.training import Environment, TrainingResult
from securevfl.wire.codec import decode
from tests.jobs import Kept, Killed, breast_cancer, fit, picked
from tests.made_data import dataset_of, made

FloatArray = NDArray[np.float64]
Labellings = NDArray[np.int8]


def run(
    guard: Path | None,
    dataset: VerticalDataset,
    watched: dict[str, Any] | None = None,
    /,
    **job: object,
) -> TrainingResult:
    """Twenty rounds of exact steps, unless it says other."""
    common = {"loss": "taylor-logistic", "eval_every": "never"}
    environment = Environment(guard_directory=guard, **(watched or {}))
    return fit(dataset, "blind", environment, **{**common, **job})


def told(guard: Path) -> float:
    """The most numbers that final models have told of anybody, in a record of one set of rows."""
    record = PersonRecord.load(guard / "labels.safetensors")
    return float(record.ends.max() * len(record.people))


# ------------------------------------------------------------------------------------ attacks


def labelled(rows: int, columns: int, positives: int) -> VerticalDataset:
    """A label party that brings labels alone, so the other can follow all rounds by itself."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((rows, columns))
    labels = np.zeros(rows, np.int64)
    labels[generator.permutation(rows)[:positives]] = 1
    return dataset_of([np.zeros((rows, 1)), features - features.mean(axis=0)], labels)


def ends_of(features: FloatArray, labels: FloatArray, plan: Plan) -> FloatArray:
    """The feature party's θ at the end for every column of labels, shapes (N, M) and (P, M)."""
    blocks, penalties = [np.ones((len(features), 1)), features], [0.0, plan.l2]
    start = [np.zeros((block.shape[1], labels.shape[1])) for block in blocks]
    before, now, point, pace = start, start, start, 1.0
    for _ in range(plan.rounds):
        residuals = sum(map(np.matmul, blocks, point)) / 4 - labels + 0.5
        before, now = now, []
        for block, penalty, weights in zip(blocks, penalties, point, strict=True):
            bend = block.T @ block / 4 / len(block) + penalty * np.eye(block.shape[1])
            slope = block.T @ residuals / len(block) + penalty * weights
            now.append(weights - np.linalg.solve(2 * bend, slope))
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        point = [n + (pace - 1) / faster * (n - b) for n, b in zip(now, before, strict=True)]
        pace = faster
    return now[1]


def fitting(results: list[TrainingResult], parts: tuple[Labellings, Labellings]) -> Labellings:
    """All sums of two parts of a labelling that fit what the feature party learned of every job."""
    features, plan = require_dense(results[0].data.parties[1].train, "an attack"), results[0].plan
    rows, linear = len(features), results[0].outcomes["party1"].model
    local: Any = SimpleNamespace(intercept=False, weights=linear.weights)
    _, back = Curvature(local, features, 0.25, plan.l2).whitening
    back = np.ldexp(back, REVEALED_BITS)  # in steps of the grid
    none, each = ends_of(features, np.zeros((rows, 1)), plan), ends_of(features, np.eye(rows), plan)
    seen = np.stack([back @ (r.outcomes["party1"].model.weights - none)[:, 0] for r in results])
    # Rounded up or down, from a number that rounds in fixed point have moved.
    low, high = seen.max(axis=0) - 1.1, seen.min(axis=0) + 1.1
    scale = 2 / (high - low)
    left, right = ((part @ (each - none).T @ back.T) * scale for part in parts)
    near = cKDTree(left).query_ball_point((high + low) / 2 * scale - right, 1.0, p=np.inf)
    first, second = np.array([(i, j) for j, found in enumerate(near) for i in found]).T
    sums = parts[0][first] + parts[1][second]
    return np.unique(sums[sums.max(axis=1) == 1], axis=0)


def few(rows: int, positives: int) -> Labellings:
    """All labellings with so many positives, shape (…, N)."""
    chosen = np.array(list(combinations(range(rows), positives)))
    labels = np.zeros((len(chosen), rows), np.int8)
    np.put_along_axis(labels, chosen, 1, axis=1)
    return labels


def halves(rows: int) -> tuple[Labellings, Labellings]:
    """All labellings of either half of the rows."""
    bits = (np.arange(1 << rows // 2)[:, None] >> np.arange(rows // 2) & 1).astype(np.int8)
    return np.hstack([bits, 0 * bits]), np.hstack([0 * bits, bits])


@pytest.mark.parametrize(
    ("rows", "columns", "positives", "runs"),
    [
        (120, 5, 4, 1),
        pytest.param(120, 5, 6, 1, marks=pytest.mark.slow),
        pytest.param(600, 6, 4, 2, marks=pytest.mark.slow),
        (24, 2, 12, 6),
    ],
    ids=["8 million", "3.7 billion", "5.3 billion", "17 million"],
)
def test_of_all_labellings_next_to_none_fits_what_a_refused_job_tells(
    rows: int, columns: int, positives: int, runs: int, tmp_path: Path
) -> None:
    dataset = labelled(rows, columns, positives)
    with pytest.raises(LabelLeakRefused, match=f"{columns * BITS} bits: these labels have "):
        run(tmp_path, dataset)
    results = [run(tmp_path, dataset, allow_label_leak=True) for _ in range(runs)]
    parts = halves(rows) if rows == 24 else (few(rows, positives // 2),) * 2
    found = fitting(results, parts)
    assert (found == dataset.train_labels).all(axis=1).any()
    assert len(found) <= (1 if runs == 1 else 8)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, dataset)


def test_without_records_a_job_is_looked_at_by_itself() -> None:
    with pytest.raises(LabelLeakRefused, match="could be read"):
        run(None, labelled(24, 2, 12))
    for _ in range(2):
        run(None, breast_cancer(), rounds=2, l2=0.1)


def test_final_models_of_rows_that_a_few_people_tell_apart_would_name_their_labels(
    tmp_path: Path,
) -> None:
    """Of 22 jobs without one other person each, 22 labels were read."""
    dataset = labelled(1000, 4, 500)
    run(tmp_path, dataset, rounds=2)
    apart = CHANGED_FOR_EACH_COLUMN * 4
    for fewer in (1, apart - 1):
        with pytest.raises(LabelLeakRefused, match=f"job: {fewer}, at least {apart} expected"):
            run(tmp_path, picked(dataset, slice(fewer, None)), rounds=2)
    run(tmp_path, picked(dataset, slice(apart, None)), rounds=2)
    # Against all earlier rows, not the last ones alone.
    with pytest.raises(LabelLeakRefused, match="job: 2, at"):
        run(tmp_path, picked(dataset, slice(2, None)), rounds=2)
    run(tmp_path, dataset, rounds=2)


@pytest.mark.parametrize("first", ["blind", "bfv"])
def test_a_gradient_and_a_final_model_of_one_person_fewer_would_name_a_label(
    first: str, tmp_path: Path
) -> None:
    dataset, (second,) = labelled(1000, 4, 500), {"blind", "bfv"} - {first}
    environment = Environment(guard_directory=tmp_path)
    settings = {"loss": "taylor-logistic", "eval_every": "never", "rounds": 2}
    fit(dataset, first, environment, **settings)
    with pytest.raises(LabelLeakRefused, match="earlier job: 1, at least 32 expected"):
        fit(picked(dataset, slice(1, None)), second, environment, **settings)
    fit(dataset, second, environment, **settings)


def test_at_the_limit_no_label_is_certain_however_often_a_job_runs(tmp_path: Path) -> None:
    """20 labels for one number."""
    dataset = labelled(20, 1, 10)
    results = [run(tmp_path, dataset) for _ in range(6)]
    found = fitting(results, halves(20))
    assert len(found) > 50
    assert (np.ptp(found, axis=0) == 1).all()
    assert told(tmp_path) == pytest.approx(1)


# -------------------------------------------------------------------------------------- count


def test_the_same_job_counts_once_and_another_one_the_numbers_that_it_adds(tmp_path: Path) -> None:
    """456 labels of 438 bits, and 15 columns: 300 bits."""
    for _ in range(3):
        run(tmp_path, breast_cancer(), rounds=2)
    assert told(tmp_path) == pytest.approx(15)
    refused = r"tell 30 numbers .* count as 600 bits.*at most 6 of peers pass.*: job 'job'"
    with pytest.raises(LabelLeakRefused, match=refused):
        run(tmp_path, breast_cancer(), rounds=2, l2=0.1)
    assert told(tmp_path) == pytest.approx(15)


def test_ends_of_the_same_columns_are_no_more_numbers_than_columns(tmp_path: Path) -> None:
    dataset = made(0, rows=1000, columns=4)
    for l2, numbers in ((0.1, 4), (0.2, 8), (0.3, 9), (0.4, 9)):
        run(tmp_path, dataset, rounds=1, l2=l2)
        assert told(tmp_path) == pytest.approx(numbers)


def test_a_job_is_counted_when_it_starts_and_not_again_when_it_goes_on(tmp_path: Path) -> None:
    dataset, kept = made(0, rows=1000, columns=4), Kept()

    def kill(rounds: int) -> None:
        if rounds == 2:
            raise Killed

    settings: dict[str, Any] = {"rounds": 3, "start": "random"}
    with pytest.raises(Killed):
        run(tmp_path, dataset, {"progress": kill, "keep_state": kept}, **settings)
    assert told(tmp_path) == pytest.approx(4)
    run(tmp_path, dataset, {"resume": kept[1]}, **settings)
    assert told(tmp_path) == pytest.approx(4)
    # Another start ends elsewhere before training has settled.
    run(tmp_path, dataset, **settings)
    assert told(tmp_path) == pytest.approx(8)


def test_others_learn_of_a_refusal_nothing_but_that_it_is_one(tmp_path: Path) -> None:
    sent = []

    def noted(sender: str, _: str, data: bytes) -> bytes:
        sent.append((sender, type(decode(data))))
        return data

    with pytest.raises(LabelLeakRefused):
        run(tmp_path, labelled(24, 2, 12), {"tamper": noted})
    assert [kind for sender, kind in sent if sender == "party0"] == [Hello, SeedOpening]


def test_most_of_the_same_people_share_a_count(tmp_path: Path) -> None:
    """One in twenty has left: the numbers of both jobs are about all who stayed."""
    people = breast_cancer()
    run(tmp_path, people, rounds=2)
    with pytest.raises(LabelLeakRefused, match="would tell 29 numbers of the labels of 433 rows"):
        run(tmp_path, picked(people, slice(23, None)), rounds=2)
