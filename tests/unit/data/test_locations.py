import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from securevfl.data import listing, load, names, where
from securevfl.data.catalog import CATALOG, SourceFile
from securevfl.errors import ConfigError, DataError

(MFEAT,) = CATALOG["mfeat"].file_sets[-1]
TRAIN, TEST = b"-1 1:1\n+1 2:1\n", b"-1 3:1\n+1 123:1\n"


def write(place: Path, train: bytes = TRAIN, test: bytes = TEST) -> None:
    (place / "a9a").mkdir(parents=True)
    (place / "a9a" / "a9a").write_bytes(train)
    (place / "a9a" / "a9a.t.gz").write_bytes(gzip.compress(test))


@pytest.fixture(autouse=True)
def small_a9a(monkeypatch: pytest.MonkeyPatch, no_places: Path) -> None:
    """The catalog's pins, made those of a small a9a."""
    del no_places
    files = tuple(
        SourceFile(f"a9a/{name}", hashlib.sha256(data).hexdigest(), f"https://x/{name}")
        for name, data in (("a9a", TRAIN), ("a9a.t", TEST))
    )
    monkeypatch.setitem(CATALOG, "a9a", replace(CATALOG["a9a"], file_sets=(files,)))


def test_files_are_looked_for_in_data_dir_then_environment_then_cache(
    tmp_path: Path, no_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not where("a9a").present
    for number, place in enumerate((no_places / "data", tmp_path / "env", tmp_path / "dir")):
        write(place)
        if number > 0:
            monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path / "env"))
        data_dir = tmp_path / "dir" if number > 1 else None
        found = where("a9a", data_dir=data_dir)
        assert found.location == str(place / "a9a")
        assert load("a9a", data_dir=data_dir).train_labels.tolist() == [0, 1]


def test_missing_files_name_the_places_the_command_and_the_way_by_hand(
    tmp_path: Path, no_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        load("a9a", data_dir=tmp_path / "dir")
    message = str(caught.value)
    assert f"{tmp_path / 'dir'}, {tmp_path / 'env'}, {no_places / 'data'}" in message
    assert "`securevfl data get a9a`" in message
    assert "a9a/a9a.t from https://x/a9a.t" in message
    assert "\n" not in message


def test_a_set_that_lacks_one_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a9a" / "a9a.t.gz").unlink()
    assert not where("a9a", data_dir=tmp_path).present
    with pytest.raises(DataError, match="not found"):
        load("a9a", data_dir=tmp_path)


def test_a_changed_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    changed = TRAIN.replace(b"2:1", b"3:1")
    write(tmp_path, train=changed)
    with pytest.raises(DataError, match="changed or damaged") as caught:
        load("a9a", data_dir=tmp_path)
    for data in (changed, TRAIN):
        assert hashlib.sha256(data).hexdigest() in str(caught.value)


def test_a_pair_of_digits_is_got_as_mnist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`securevfl data get mnist`"):
        load("mnist", variant="3v8", data_dir=tmp_path)


def test_a_file_that_nobody_serves_is_named_with_its_hash(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not serve it in this form") as caught:
        load("mfeat", data_dir=tmp_path)
    assert f"multiview/mfeat_6views.npz with SHA-256 {MFEAT.sha256}" in str(caught.value)
    assert "data get" not in str(caught.value)


def test_the_listing_tells_what_is_there(tmp_path: Path) -> None:
    write(tmp_path)
    rows = {row.entry.name: row for row in listing(data_dir=tmp_path)}
    assert rows["a9a"].present
    assert rows["breast_cancer"].location == "scikit-learn"
    assert (rows["mnist"].present, rows["mnist"].location) == (False, None)
    assert rows["mnist-3v8"].entry.rows == (11982, 1984)
    assert rows["mnist-even-odd"].entry.classes == 2
    assert all(row.entry.licence and row.entry.source for row in rows.values())


@pytest.mark.parametrize("name", ["breast_cancer", "digits"])
def test_the_catalog_tells_the_truth_about_embedded_sets(name: str) -> None:
    entry, data = where(name).entry, load(name)
    assert entry.rows == (data.train_labels.size, data.test_labels.size)
    assert entry.columns == sum(len(party.columns) for party in data.parties)
    assert entry.classes == data.classes
    assert entry.parties == tuple(party.name for party in data.parties)


def test_every_name_has_an_entry_and_no_other() -> None:
    assert len(names()) == len(set(names())) == 13 + 1 + 45
    assert all(where(name).entry.name == name for name in names())
    with pytest.raises(ConfigError, match="unknown"):
        where("mnist-3v3")
