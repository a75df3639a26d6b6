import gzip
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from securevfl.data import get, listing, load, names, where
from securevfl.data.catalog import CATALOG, SourceFile
from securevfl.errors import ConfigError, DataError
from tests.end_to_end.commands import rows_of, run

TRAIN, TEST = b"-1 1:1\n+1 2:1\n" * 9000, b"-1 3:1\n+1 123:1\n"
(MFEAT,) = CATALOG["mfeat"].file_sets[-1]


@dataclass
class Publisher:
    """A real HTTP server: what it serves, what it cuts short, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    state = Publisher()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            state.asked.append(name)
            if name not in state.files:
                self.send_error(404)
                return
            body = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if name in state.cut else body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()
        thread.join()


@pytest.fixture
def small_a9a(monkeypatch: pytest.MonkeyPatch, no_places: Path, publisher: Publisher) -> Path:
    """A small a9a in the catalog and at the publisher; returns the user's data folder."""
    files = tuple(
        SourceFile(f"a9a/{name}", hashlib.sha256(data).hexdigest(), f"https://x.invalid/{name}")
        for name, data in (("a9a", TRAIN), ("a9a.t", TEST))
    )
    monkeypatch.setitem(CATALOG, "a9a", replace(CATALOG["a9a"], file_sets=(files,)))
    publisher.files = {"a9a": TRAIN, "a9a.t": gzip.compress(TEST)}
    return no_places / "data"


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def write(place: Path, train: bytes = TRAIN) -> None:
    (place / "a9a").mkdir(parents=True)
    (place / "a9a" / "a9a").write_bytes(train)
    (place / "a9a" / "a9a.t.gz").write_bytes(gzip.compress(TEST))


def test_files_are_looked_for_in_data_dir_then_environment_then_cache(
    tmp_path: Path, small_a9a: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not where("a9a").present
    for number, place in enumerate((small_a9a, tmp_path / "env", tmp_path / "dir")):
        write(place)
        if number > 0:
            monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path / "env"))
        data_dir = tmp_path / "dir" if number > 1 else None
        found = where("a9a", data_dir=data_dir)
        assert found.location == str(place / "a9a")
        assert load("a9a", data_dir=data_dir).train_labels[:2].tolist() == [0, 1]


def test_missing_files_name_the_places_the_command_and_the_way_by_hand(
    tmp_path: Path, small_a9a: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        load("a9a", data_dir=tmp_path / "dir")
    message = str(caught.value)
    assert f"{tmp_path / 'dir'}, {tmp_path / 'env'}, {small_a9a}" in message
    assert "`securevfl data get a9a`" in message
    assert "a9a/a9a.t from https://x.invalid/a9a.t" in message
    assert "\n" not in message


@pytest.mark.usefixtures("small_a9a")
def test_a_set_that_lacks_one_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a9a" / "a9a.t.gz").unlink()
    assert not where("a9a", data_dir=tmp_path).present
    with pytest.raises(DataError, match="not found"):
        load("a9a", data_dir=tmp_path)


@pytest.mark.parametrize("place", ["data_dir", "environment", "cache"])
def test_a_changed_file_is_refused_with_both_hashes_wherever_it_lies(
    tmp_path: Path, small_a9a: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    changed = TRAIN.replace(b"2:1", b"3:1")
    write(small_a9a if place == "cache" else tmp_path, train=changed)
    if place == "environment":
        monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match="changed or damaged") as caught:
        load("a9a", data_dir=tmp_path if place == "data_dir" else None)
    for data in (changed, TRAIN):
        assert hashlib.sha256(data).hexdigest() in str(caught.value)


@pytest.mark.usefixtures("no_places")
def test_a_pair_of_digits_is_got_as_mnist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`securevfl data get mnist`"):
        load("mnist-3v8", data_dir=tmp_path)


@pytest.mark.usefixtures("no_places")
@pytest.mark.parametrize("ask", [load, get])
def test_a_file_that_nobody_serves_is_named_with_its_hash(
    tmp_path: Path, ask: Callable[..., object]
) -> None:
    with pytest.raises(DataError, match="not published in this form") as caught:
        ask("mfeat", data_dir=tmp_path)
    assert f"multiview/mfeat_6views.npz with SHA-256 {MFEAT.sha256}" in str(caught.value)
    assert "data get" not in str(caught.value)


@pytest.mark.usefixtures("small_a9a")
def test_the_listing_tells_what_is_there(tmp_path: Path) -> None:
    write(tmp_path)
    rows = {row.entry.name: row for row in listing(data_dir=tmp_path)}
    assert rows["a9a"].present
    assert rows["breast_cancer"].location == "scikit-learn"
    assert (rows["mnist"].present, rows["mnist"].location) == (False, None)
    assert rows["mnist-3v8"].entry.rows == (11982, 1984)
    assert rows["mnist-even-odd"].entry.classes == 2
    assert all(row.entry.licence and row.entry.source for row in rows.values())


def test_every_name_has_an_entry_and_no_other() -> None:
    assert len(names()) == len(set(names())) == 13 + 1 + 45
    assert all(where(name).entry.name == name for name in names())
    with pytest.raises(ConfigError, match="unknown"):
        where("mnist-3v3")


def test_files_come_into_the_cache_and_load(small_a9a: Path, publisher: Publisher) -> None:
    seen: list[tuple[int, int | None]] = []
    paths = get(
        "a9a", base_url=publisher.url, progress=lambda done, all_: seen.append((done, all_))
    )
    assert paths == [small_a9a / "a9a" / "a9a", small_a9a / "a9a" / "a9a.t"]
    assert paths[0].read_bytes() == TRAIN
    assert leftovers(small_a9a) == ["a9a", "a9a.t"]
    assert load("a9a").train_labels.size == 18000
    assert (len(TRAIN), len(TRAIN)) in seen
    assert len(seen) > 2


def test_the_command_gets_a_data_set_and_then_says_where_it_lies(
    small_a9a: Path,
    publisher: Publisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a9a = CATALOG["a9a"]
    served = tuple(
        replace(file, url=f"{publisher.url}/{name}")
        for file, name in zip(a9a.file_sets[0], ("a9a", "a9a.t"), strict=True)
    )
    monkeypatch.setitem(CATALOG, "a9a", replace(a9a, file_sets=(served,)))
    assert run("data", "get", "a9a", "--json", str(tmp_path / "got.json")) == 0
    there = [str(small_a9a / "a9a" / name) for name in ("a9a", "a9a.t")]
    assert capsys.readouterr().out.splitlines()[-2:] == there
    assert rows_of(str(tmp_path / "got.json"), "data get") == [{"path": path} for path in there]
    assert run("data", "get", "a9a", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert run("data", "where", "a9a") == 0
    assert capsys.readouterr().out == f"{small_a9a / 'a9a'}\n"


def test_a_data_dir_or_the_environment_decides_where_to(
    small_a9a: Path, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREVFL_DATA", str(tmp_path / "env"))
    assert get("a9a", base_url=publisher.url)[0] == tmp_path / "env" / "a9a" / "a9a"
    paths = get("a9a", base_url=publisher.url, data_dir=tmp_path / "dir")
    assert paths[0] == tmp_path / "dir" / "a9a" / "a9a"
    assert not small_a9a.exists()


@pytest.mark.usefixtures("small_a9a")
def test_good_files_are_not_fetched_again(publisher: Publisher) -> None:
    first = get("a9a", base_url=publisher.url)
    publisher.asked.clear()
    assert get("a9a", base_url=publisher.url) == first
    assert not publisher.asked


@pytest.mark.parametrize("name", ["a9a", "a9a.gz"])
def test_a_damaged_file_is_replaced(small_a9a: Path, publisher: Publisher, name: str) -> None:
    (small_a9a / "a9a").mkdir(parents=True)
    (small_a9a / "a9a" / name).write_bytes(b"damaged")
    get("a9a", base_url=publisher.url)
    assert leftovers(small_a9a) == ["a9a", "a9a.t"]
    assert (small_a9a / "a9a" / "a9a").read_bytes() == TRAIN


def test_another_content_is_removed_and_both_hashes_named(
    small_a9a: Path, publisher: Publisher
) -> None:
    publisher.files["a9a"] = b"<html>login</html>"
    with pytest.raises(DataError, match="nothing was kept") as caught:
        get("a9a", base_url=publisher.url)
    for data in (TRAIN, publisher.files["a9a"]):
        assert hashlib.sha256(data).hexdigest() in str(caught.value)
    assert leftovers(small_a9a) == []


def test_a_connection_that_is_cut_leaves_nothing(small_a9a: Path, publisher: Publisher) -> None:
    publisher.cut = {"a9a"}
    with pytest.raises(DataError, match=r"cut off after \d+ of 126000|IncompleteRead") as caught:
        get("a9a", base_url=publisher.url)
    assert str(small_a9a) in str(caught.value)
    assert leftovers(small_a9a) == []


def test_a_refusal_names_address_reason_and_the_way_by_hand(
    small_a9a: Path, publisher: Publisher
) -> None:
    del publisher.files["a9a.t"]
    with pytest.raises(DataError, match="404") as caught:
        get("a9a", base_url=publisher.url)
    message = str(caught.value)
    assert f"{publisher.url}/a9a.t" in message
    assert f"by hand: put into {small_a9a} a9a/a9a.t from https://x.invalid/a9a.t" in message
    assert "\n" not in message
    assert leftovers(small_a9a) == ["a9a"]


@pytest.mark.usefixtures("small_a9a")
def test_no_network_is_a_data_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DataError, match=r"download failed .*refused.*; by hand"):
            get("a9a", base_url=url)


@pytest.mark.usefixtures("small_a9a")
def test_a_place_that_cannot_be_written_is_a_data_error(
    publisher: Publisher, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        get("a9a", base_url=publisher.url, data_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "url", "told"),
    [
        *(("a9a", url, "base_url") for url in ("file:///etc", "ftp://x", "x")),
        ("a9b", None, "did you mean"),
    ],
)
def test_only_http_is_spoken_and_known_sets_are_got(name: str, url: str | None, told: str) -> None:
    assert get("breast_cancer") == []
    with pytest.raises(ConfigError, match=told):
        get(name, base_url=url)


def test_the_catalog_downloads_over_https_only() -> None:
    urls = [file.url for entry in CATALOG.values() for file in entry.downloads]
    assert len(urls) == 2 + 2 * 1 + 6 + 6 + 4
    assert all(url and url.startswith("https://") for url in urls)


def test_the_published_a9a_passes_its_pins(
    real_file: Callable[[str], Path], no_places: Path, publisher: Publisher
) -> None:
    for name in ("a9a", "a9a.t"):
        publisher.files[name] = gzip.decompress(real_file(f"a9a/{name}.gz").read_bytes())
    get("a9a", base_url=publisher.url)
    assert leftovers(no_places / "data") == ["a9a", "a9a.t"]
    assert load("a9a").train_labels.size == 32561


def test_the_published_credit_csv_passes_its_pin_and_equals_the_kaggle_copy(
    real_file: Callable[[str], Path], no_places: Path, publisher: Publisher
) -> None:
    kaggle = real_file("credit/UCI_Credit_Card.csv")
    other = load("credit", data_dir=kaggle.parents[1])
    header = ["ID", *(f"X{number}" for number in range(1, 24)), "Y"]
    rows = [line.split(",") for line in kaggle.read_text().splitlines()[1:]]
    lines = [header, *([str(int(float(cell))) for cell in row] for row in rows)]
    publisher.files["data.csv"] = "".join(",".join(line) + "\r\n" for line in lines).encode()
    get("credit", base_url=publisher.url)
    assert leftovers(no_places / "data") == ["data.csv"]
    data = load("credit")
    assert data.fingerprint == other.fingerprint
    for party, twin in zip(data.parties, other.parties, strict=True):
        assert (party.train == twin.train).all()
        assert party.columns == twin.columns
