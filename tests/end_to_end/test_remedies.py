"""What a guard's refusal says would pass does pass, and one less does not."""

import re
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.partition import fixed_partition
from securevfl.data.tables import VerticalDataset
from securevfl.errors import HeldOutLeakRefused, LabelLeakRefused
from securevfl.job import Job
from securevfl.protocols.guards.person_record import label_variance
from securevfl.training import Environment, train
from tests.made_data import dataset_of

ROWS, MANY_ROWS = 3000, 7000


class Passed(Exception):
    """The guards have written the job down and a round is done."""


def stop(done: int) -> None:
    assert done == 1
    raise Passed


def rows_of(columns: int = 1, rows: int = ROWS, rare: float = 0.5) -> VerticalDataset:
    """Labels of which so many are of one class, one column at their party."""
    generator = np.random.default_rng(4)
    blocks = [generator.standard_normal((rows, width)) for width in (1, columns)]
    return dataset_of(blocks, (generator.random(rows) < rare).astype(np.int64))


def begin(directory: Path, dataset: VerticalDataset, settings: dict[str, object]) -> None:
    of_all: dict[str, object] = {"rounds": 1, "eval_every": "never"}
    job = Job.of(job={**of_all, **settings}, exchange={"scheme": "bfv"})
    train(job, dataset, Environment(guard_directory=directory, progress=stop))


def passes(directory: Path, dataset: VerticalDataset, **settings: object) -> None:
    with pytest.raises(Passed):
        begin(directory, dataset, settings)


def refused(directory: Path, dataset: VerticalDataset, **settings: object) -> str:
    with pytest.raises((LabelLeakRefused, HeldOutLeakRefused)) as caught:
        begin(directory, dataset, settings)
    return str(caught.value)


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("rare", [0.5, 0.3])
def test_the_smallest_batch(tmp_path: Path, rare: float) -> None:
    dataset = rows_of(rare=rare)
    text = refused(tmp_path, dataset, batch_size=64)
    size = number(r"batch_size = (\d+) is the smallest that passes", text)
    # 200 rows for a column and unit of variance, and the smallest batch must have them.
    smallest = min(map(len, fixed_partition(dataset.row_digests, size)))
    assert smallest >= 200 / label_variance(dataset.train_labels)
    refused(tmp_path, dataset, batch_size=size - 1)
    passes(tmp_path, dataset, batch_size=size)


def test_other_batches_than_before_have_to_be_all_rows(tmp_path: Path) -> None:
    """Where two ways to part the rows cut across one another, few rows are in the same batches."""
    dataset, rounds = rows_of(rows=MANY_ROWS), 40
    passes(tmp_path, dataset, batch_size=1300, rounds=rounds)
    text = refused(tmp_path, dataset, batch_size=1000, rounds=rounds)
    assert 'batch_size = "full" passes' in text
    passes(tmp_path, dataset, batch_size="full", rounds=rounds)


def test_all_rows_where_no_part_of_them_passes(tmp_path: Path) -> None:
    dataset = rows_of(columns=4)
    text = refused(tmp_path, dataset, batch_size=ROWS // 2)
    assert 'batch_size = "full" passes' in text
    passes(tmp_path, dataset, batch_size="full")


@pytest.mark.parametrize("batch_size", ["full", 50])
def test_the_most_columns(tmp_path: Path, batch_size: object) -> None:
    text = refused(tmp_path, rows_of(40, rows=240), batch_size=batch_size)
    most = number(r"fewer columns \(at most (\d+) of peers pass\)", text)
    assert ('batch_size = "full"' in text) == (batch_size != "full")
    refused(tmp_path, rows_of(most + 1, rows=240))
    passes(tmp_path, rows_of(most, rows=240))


def test_the_most_rounds(tmp_path: Path) -> None:
    dataset, settings = rows_of(rows=240), {"label_guard": "visits"}
    text = refused(tmp_path, dataset, **settings, rounds=500)
    most = number(r"at most (\d+) rounds pass", text)
    refused(tmp_path, dataset, **settings, rounds=most + 1)
    passes(tmp_path, dataset, **settings, rounds=most)
    # Nothing is left of what was allowed.
    assert "not even one round passes" in refused(tmp_path, dataset, **settings)


def test_the_most_rounds_of_all_rows_where_no_batch_of_a_network_passes(tmp_path: Path) -> None:
    dataset = rows_of(rows=MANY_ROWS)
    network: dict[str, object] = {"model": "mlp", "hidden": [1]}
    text = refused(tmp_path, dataset, **network, rounds=90, batch_size=300)
    most = number(r'with batch_size = "full" at most (\d+) rounds pass', text)
    refused(tmp_path, dataset, **network, rounds=most + 1, batch_size="full")
    passes(tmp_path, dataset, **network, rounds=most, batch_size="full")


def test_the_most_scorings(tmp_path: Path) -> None:
    dataset, rounds = rows_of(6, rows=400), 23
    text = refused(tmp_path, dataset, eval_every=1, rounds=rounds)
    every = number(r"at most 5 times: eval_every = (\d+) passes", text)
    refused(tmp_path, dataset, eval_every=every - 1, rounds=rounds)
    passes(tmp_path, dataset, eval_every=every, rounds=rounds)
    # After these five nothing is left.
    assert "eval_every = 'never'" in refused(tmp_path, dataset, eval_every=0)
    passes(tmp_path, dataset)
