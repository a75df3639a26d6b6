from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.planted_sparse import PARTIES, PlantedSet, make_planted_sparse, parties_of
from securevfl.data.shards import open_shard
from securevfl.errors import ConfigError, DataError

ROWS = 3000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "set"
    make_planted_sparse(folder, ROWS, 3)
    return folder


def test_its_shards_are_of_the_papers_shape(made: Path) -> None:
    train = [open_shard(made / party.name / "train") for party in PARTIES]
    assert [shard.rows.shape for shard in train] == [(2700, 7000), (2700, 1000), (2700, 700)]
    assert [shard.labels is None for shard in train] == [False, True, True]
    assert all(shard.header.values is None for shard in train)
    assert {str(shard.rows.indices.dtype) for shard in train} == {"uint16"}
    ones = np.sum([np.diff(shard.rows.pointers) for shard in train], axis=0)
    assert ones.min() >= 45
    assert ones.max() <= 100
    assert len({shard.header.fingerprint for shard in train}) == 1
    test = open_shard(made / "store" / "test")
    assert test.ids[:3] == ("9", "19", "29")
    assert not set(test.ids) & set(train[0].ids)


def test_popularity_falls_as_a_power_of_the_rank(made: Path) -> None:
    rows = open_shard(made / "store" / "train").rows
    counts = np.sort(np.bincount(rows.indices, minlength=7000))[::-1]
    bands = [counts[first:last].mean() for first, last in pairwise([0, 10, 100, 1000, 7000])]
    assert all(high > 2 * low for high, low in pairwise(bands))


def test_a_seed_fixes_the_rows_whatever_their_number() -> None:
    (_, few, labels), *_ = PlantedSet(5).blocks(50)
    (_, more, others), *_ = PlantedSet(5).blocks(80)
    (_, different, _), *_ = PlantedSet(6).blocks(50)
    assert np.array_equal(labels, others[:50])
    for part, whole in zip(few, more, strict=True):
        assert np.array_equal(part.indices, whole.indices[: len(part.indices)])
    assert not np.array_equal(few[0].indices[:50], different[0].indices[:50])


@pytest.mark.parametrize(
    ("columns", "own"), [(870, [700, 100, 70]), (87_000, [70_000, 10_000, 7_000])]
)
def test_parties_keep_their_parts_of_other_numbers_of_columns(columns: int, own: list[int]) -> None:
    planted = PlantedSet(5, columns)
    assert [party.columns for party in planted.parties] == own
    (_, drawn, labels), *_ = planted.blocks(2000)
    for each, found in zip(own, drawn, strict=True):
        assert 0.8 * each < found.indices.max() < each
    assert np.sum([each.lengths for each in drawn], axis=0).min() >= 45
    assert 0.1 < labels.mean() < 0.5


def test_the_usual_number_changes_nothing_and_no_set_is_too_narrow() -> None:
    assert parties_of(8700) == PARTIES
    assert sum(party.columns for party in parties_of(2900)) == 2900
    for columns in (869, (1 << 31) + 1):
        with pytest.raises(ConfigError, match="expected 870 to"):
            parties_of(columns)


def test_columns_of_a_row_are_different_and_labels_follow_them() -> None:
    planted = PlantedSet(7)
    (_, drawn, labels), *_ = planted.blocks(20_000)
    for columns in drawn:
        starts = np.cumsum(columns.lengths)[:-1]
        steps = np.diff(columns.indices)
        steps[starts - 1] = 1
        assert (steps > 0).all()
    high = np.argsort(planted._logits(drawn))[-4000:]
    assert labels[high].mean() > 1.5 * labels.mean()


def test_what_it_refuses(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least 1000"):
        make_planted_sparse(tmp_path, 10, 0)
    with pytest.raises(DataError, match="is there already; --force replaces it"):
        make_planted_sparse(made, ROWS, 4)
