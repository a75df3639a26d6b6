"""Parties with shards: the data set that their files would give, in the label party's order."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.data.convert import Conversion, convert
from securevfl.data.join import load_files, load_own
from securevfl.data.read import FileSource
from securevfl.data.shards import HEADER
from securevfl.data.tables import VerticalDataset, row_digests
from securevfl.errors import ConfigError, DataError
from securevfl.job import parse_job
from securevfl.parties.own_data import OwnRows, join
from securevfl.sparse import Matrix, SparseRows, dense
from securevfl.training.job_data import job_data

ROWS = 90


@pytest.fixture
def sources(tmp_path: Path) -> list[FileSource]:
    """Two parties' CSV files, of rows in other orders, some at one party only."""
    rng = np.random.default_rng(4)
    ids = np.array([f"u{row}" for row in range(ROWS)])
    numbers = rng.integers(0, 3, (ROWS, 5)) * (rng.random((ROWS, 5)) < 0.5)
    bank, shop = rng.permutation(ROWS)[: ROWS - 5], rng.permutation(ROWS)[: ROWS - 7]
    names = [f"c{place}" for place in range(5)]
    table = pl.DataFrame(numbers, names).with_columns(id=pl.Series(ids))
    table = table.with_columns(y=pl.Series(np.where(numbers[:, 0] > 0, "yes", "no")))
    table[bank.tolist()].select("id", "y", "c0", "c1").write_csv(tmp_path / "bank.csv")
    table[shop.tolist()].select("id", "c2", "c3", "c4").write_csv(tmp_path / "shop.csv")
    return [
        FileSource("bank", tmp_path / "bank.csv", "id", "y"),
        FileSource("shop", tmp_path / "shop.csv", "id"),
    ]


def as_shard(source: FileSource, path: Path | None = None) -> Path:
    path = path or source.path
    to = path.with_suffix("")
    convert([path], to, Conversion(label_column=source.label_column))
    return to


def sharded(source: FileSource) -> FileSource:
    test = None if source.test_path is None else as_shard(source, source.test_path)
    return replace(source, path=as_shard(source), test_path=test, label_column=None)


def cells(dataset: VerticalDataset[Matrix]) -> dict[int, tuple[list[float], ...]]:
    """By row: its features at every party, and its label."""

    tables = [dense(party.train).tolist() for party in dataset.parties]
    labels = dataset.train_labels[:, None].tolist()
    digests = dataset.row_digests.tolist()
    return dict(zip(digests, zip(*tables, labels, strict=True), strict=True))


@pytest.mark.parametrize("which", ["both", "bank", "shop"])
def test_shards_give_what_their_files_give(sources: list[FileSource], which: str) -> None:
    files = load_files(sources)
    some = [sharded(each) if which in ("both", each.name) else each for each in sources]
    dataset = load_files(some)
    assert cells(dataset) == cells(files)
    assert dataset.label_names == files.label_names == ("no", "yes")
    assert dataset.dropped == files.dropped
    assert len(dataset.test_labels) == len(files.test_labels)
    assert [party.columns for party in dataset.parties] == [p.columns for p in files.parties]
    kinds = [isinstance(party.train, SparseRows) for party in dataset.parties]
    assert kinds == [which in ("both", name) for name in ("bank", "shop")]
    bank = pl.read_csv(sources[0].path)["id"].to_list()
    order = [digest for digest in row_digests(bank).tolist() if digest in cells(files)]
    assert dataset.row_digests.tolist() == order


def with_tests(sources: list[FileSource], *, same_rows: bool) -> list[FileSource]:
    """The files cut in two, at the same rows of both, or at some of each."""
    ids = pl.read_csv(sources[0].path)["id"].to_list()
    out = []
    for source in sources:
        frame = pl.read_csv(source.path)
        if same_rows:
            other = pl.read_csv(sources[1].path)["id"].to_list()
            common = sorted(set(ids) & set(other))
            frame = frame.filter(pl.col("id").is_in(common)).sort("id")
        held_out = pl.col("id").str.ends_with("7") | pl.col("id").str.ends_with("3")
        test = source.path.with_name(f"{source.name}-test.csv")
        frame.filter(held_out).write_csv(test)
        frame.filter(~held_out).write_csv(source.path)
        out.append(replace(source, test_path=test))
    return out


@pytest.mark.parametrize("same_rows", [True, False])
def test_shards_of_test_rows(sources: list[FileSource], same_rows: bool) -> None:
    parties = with_tests(sources, same_rows=same_rows)
    files = load_files(parties)
    dataset = load_files([sharded(each) for each in parties])
    assert cells(dataset) == cells(files)
    assert sorted(dataset.test_labels) == sorted(files.test_labels)
    mapped = [isinstance(p.train.indices, np.memmap) for p in dataset.parties]
    assert mapped == [same_rows, same_rows]


def test_shards_of_ones_alone_are_not_standardized(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        text = "".join(f"{row % 2} {1 + row % 3}:{value}\n" for row in range(40))
        (tmp_path / f"{name}.svm").write_text(text)
        how = Conversion(labels=name == "a")
        convert([tmp_path / f"{name}.svm"], tmp_path / name, how)

    def data(*names: str) -> VerticalDataset[Matrix]:
        return load_files([FileSource(name, tmp_path / name, "id") for name in names])

    assert not data("a", "b").standardize
    assert data("a", "c").standardize
    assert data("a", "b").label_names == ("0", "1")


def relabel(text: str) -> Callable[[list[FileSource]], list[FileSource]]:
    def change(parties: list[FileSource]) -> list[FileSource]:
        frame = pl.read_csv(parties[1].path)
        frame.with_columns(id=text + pl.col("id")).write_csv(parties[1].path)
        return [sharded(each) for each in parties]

    return change


def narrower(parties: list[FileSource]) -> list[FileSource]:
    bank, shop = with_tests(parties, same_rows=True)
    assert shop.test_path is not None
    pl.read_csv(shop.test_path).drop("c4").write_csv(shop.test_path)
    return [sharded(bank), sharded(shop)]


def same_test_rows(parties: list[FileSource]) -> list[FileSource]:
    made = [sharded(each) for each in parties]
    return [replace(each, test_path=each.path) for each in made]


def of_two_kinds(parties: list[FileSource]) -> list[FileSource]:
    bank, shop = with_tests(parties, same_rows=True)
    return [sharded(bank), replace(sharded(shop), test_path=shop.test_path)]


def without_test_labels(parties: list[FileSource]) -> list[FileSource]:
    bank, shop = with_tests(parties, same_rows=True)
    assert bank.test_path is not None
    pl.read_csv(bank.test_path).drop("y").write_csv(bank.test_path)
    test = as_shard(replace(bank, label_column=None), bank.test_path)
    return [replace(sharded(replace(bank, test_path=None)), test_path=test), sharded(shop)]


def text_labels_in_tests(parties: list[FileSource]) -> list[FileSource]:
    bank, shop = with_tests(parties, same_rows=True)
    frame = pl.read_csv(bank.path)
    frame.with_columns(y=(pl.col("y") == "yes").cast(pl.Int64)).write_csv(bank.path)
    return [sharded(bank), sharded(shop)]


def labels_twice(parties: list[FileSource]) -> list[FileSource]:
    return [parties[0], FileSource("shop", as_shard(parties[0]), "id")]


WRONG: dict[str, tuple[Callable[[list[FileSource]], list[FileSource]], str]] = {
    "no ids in common": (relabel("x"), "no common ids among the parties"),
    "a setting of a file": (
        lambda p: [sharded(p[0]), replace(sharded(p[1]), features=["c2"])],
        "party 'shop': features applies to files",
    ),
    "an id column": (
        lambda p: [sharded(p[0]), replace(sharded(p[1]), id_column="customer")],
        "party 'shop': id_column applies to files",
    ),
    "a label column": (
        lambda p: [replace(sharded(p[0]), label_column="y"), p[1]],
        "party 'bank': label_column applies to files",
    ),
    "ids in another form": (
        lambda p: [sharded(p[0]), replace(sharded(p[1]), id_format="folded")],
        "were converted as 'text'",
    ),
    "test rows of other columns": (narrower, "test_data has 2 columns from 'c2' to 'c3', data 3"),
    "test rows that are trained on": (same_test_rows, "ids also among the training rows: "),
    "a shard and a file": (of_two_kinds, "one of data and test_data is a shard"),
    "test rows without labels": (without_test_labels, "labels in one of data and test_data only"),
    "test rows with labels of text": (text_labels_in_tests, "labels are text in one of data and"),
    "labels at two parties": (labels_twice, "labels: in the data of ['bank', 'shop']"),
    "labels at none": (
        lambda p: [FileSource("bank", sharded(p[1]).path, "id"), p[1]],
        "labels: in the data of no party",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_go_together(sources: list[FileSource], name: str) -> None:
    change, message = WRONG[name]
    parties = change(sources)
    with pytest.raises((ConfigError, DataError)) as caught:
        load_files(parties)
    assert message in str(caught.value)


def test_few_ids_in_common_are_noted(sources: list[FileSource]) -> None:
    frame = pl.read_csv(sources[1].path)
    mine = pl.int_range(pl.len()) < pl.len() * 2 // 5
    frame.with_columns(id=pl.when(mine).then("id").otherwise("x" + pl.col("id"))).write_csv(
        sources[1].path
    )
    dataset = load_files([sharded(each) for each in sources])
    assert any(note.warning and "ids are at every party" in note.text for note in dataset.notes)


JOB = """
[[party]]
name = "bank"
role = "label"
data = "{bank}"
{label}

[[party]]
name = "shop"
role = "feature"
data = "{shop}"
"""


def test_a_job_names_shards(sources: list[FileSource], tmp_path: Path) -> None:
    bank, shop = (sharded(each).path.name for each in sources)
    dataset = job_data(parse_job(JOB.format(bank=bank, shop=shop, label="")), tmp_path, None)
    assert dataset.label_party == "bank"
    assert all(isinstance(party.train, SparseRows) for party in dataset.parties)


def test_what_a_job_has_to_convert(sources: list[FileSource], tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("0 1:1\n")
    pl.DataFrame({"id": [1], "at": [[1]]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    for name in ("a.svm", "a.parquet", "folder"):
        job = parse_job(JOB.format(bank="bank.csv", shop=name, label='label_column = "y"'))
        with pytest.raises((ConfigError, DataError), match="securevfl data convert"):
            job_data(job, tmp_path, None)
    (as_shard(sources[1]) / HEADER).unlink()
    with pytest.raises(DataError, match="shop is a folder but not a shard"):
        load_files([sources[0], replace(sources[1], path=tmp_path / "shop")])


@pytest.mark.parametrize("which", ["both", "bank", "shop"])
def test_a_party_alone_makes_its_part_of_agreed_rows(sources: list[FileSource], which: str) -> None:
    some = [sharded(each) if which in ("both", each.name) else each for each in sources]
    dataset = load_files(some)
    rows = {each.name: OwnRows.read(each, by_digest=True) for each in some}
    taken = rows["bank"].taken(join(rows, "bank")["bank"])
    train, test = np.asarray(taken.train), np.asarray(taken.test)
    assert train.tolist() == dataset.row_digests.tolist()
    for source, table in zip(some, dataset.parties, strict=True):
        own = load_own(source, train, test, regression=False)
        for ours, theirs in ((own.table.train, table.train), (own.table.test, table.test)):
            assert np.array_equal(dense(ours), dense(theirs))
        if source.name == "bank":
            assert np.array_equal(own.train_labels, dataset.train_labels)  # type: ignore[arg-type]
            assert own.label_names == dataset.label_names
    others = np.concatenate([train, train[:1] + np.uint64(1)])
    with pytest.raises(DataError, match=f"party 'bank': 1 of {len(others)} rows in common"):
        load_own(some[0], others, test, regression=False)


def test_labels_of_a_shard_that_are_not_where_its_role_says(
    sources: list[FileSource], tmp_path: Path
) -> None:
    for source in sources:
        as_shard(source)
    for bank, shop, says in (
        ("shop", "bank", "shard shop has no labels .*--label-column"),
        ("bank", "bank", "shard bank has labels .*--no-labels"),
    ):
        job = parse_job(JOB.format(bank=bank, shop=shop, label=""))
        with pytest.raises(ConfigError, match=says):
            job_data(job, tmp_path, None)
