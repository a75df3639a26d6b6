"""Where the files of data sets lie, and that they hold what was published."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from securevfl.data.catalog import CATALOG, CatalogEntry, SourceFile, entry_of
from securevfl.data.formats import read_content
from securevfl.errors import DataError


@dataclass(frozen=True)
class Content:
    """A file's verified content (uncompressed, save for archives)."""

    path: Path
    sha256: str
    data: bytes


@dataclass(frozen=True)
class Listing:
    """One line of `securevfl data list`.

    Attributes:
        entry: Name, rows, columns, classes, default parties, licence and source.
        present: Whether it can be loaded without a download.
        location: The folder of its files, or "scikit-learn"; None where missing.
        looked_in: Every place that was looked in, in order.
    """

    entry: CatalogEntry
    present: bool
    location: str | None
    looked_in: tuple[Path, ...]


def user_cache() -> Path:
    """The per-user cache folder of this package."""
    return Path(platformdirs.user_cache_path("securevfl"))


def places(data_dir: Path | None = None) -> tuple[Path, ...]:
    """Where files are looked for: `data_dir`, then $SECUREVFL_DATA, then the per-user cache."""
    named = (data_dir, os.environ.get("SECUREVFL_DATA"), user_cache() / "data")
    return tuple(Path(place) for place in named if place)


def find(file: SourceFile, places: tuple[Path, ...]) -> Path | None:
    """The first place's copy of a file, plain or gzipped, or None."""
    return next((path for path in _candidates(file, places) if path.is_file()), None)


def where(name: str, *, data_dir: Path | None = None) -> Listing:
    """What is known of a data set, and where its files lie; contents are not verified here.

    Raises:
        ConfigError: Unknown name.
    """
    entry, looked_in = entry_of(name), places(data_dir)
    if not entry.file_sets:
        return Listing(entry, True, "scikit-learn", looked_in)
    found = _first_complete(entry, looked_in)
    return Listing(entry, bool(found), str(found[0][1].parent) if found else None, looked_in)


def listing(*, data_dir: Path | None = None) -> list[Listing]:
    """`where` for every data set, the pairs of digits shown by one of them."""
    return [where(name, data_dir=data_dir) for name in (*CATALOG, "mnist-even-odd", "mnist-3v8")]


def open_files(name: str, *, data_dir: Path | None = None) -> dict[str, Content]:
    """The verified contents of a data set's files, by file name without `.gz`.

    Raises:
        ConfigError: Unknown name.
        DataError: See `open_entry`.
    """
    return open_entry(entry_of(name), data_dir=data_dir)


def open_entry(entry: CatalogEntry, *, data_dir: Path | None = None) -> dict[str, Content]:
    """The same of an entry of the catalog.

    Raises:
        DataError: Missing (places, command and by-hand steps are named), damaged or changed.
    """
    looked_in = places(data_dir)
    found = _first_complete(entry, looked_in)
    if not found:
        raise DataError(
            f"data set {entry.name!r} not found in {', '.join(map(str, looked_in))}: {_ways(entry)}"
        )
    contents = (read_verified(path, file.sha256) for file, path in found)
    return {
        _plain(file.path).rpartition("/")[2]: content
        for (file, _), content in zip(found, contents, strict=True)
    }


def read_verified(path: Path, sha256: str) -> Content:
    """A file's content, if it is what was pinned.

    Raises:
        DataError: Not readable, or another content; both hashes are named.
    """
    data = read_content(path)
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise DataError(
            f"{path}: SHA-256 of the content is {actual}, expected {sha256}; the file was "
            f"changed or damaged"
        )
    return Content(path, sha256, data)


def by_hand(file: SourceFile) -> str:
    """Which file to put where, for a user without a network here, or a file nobody publishes."""
    folder, _, name = file.path.rpartition("/")
    origin = f"from {file.url}" if file.url else f"with SHA-256 {file.sha256}"
    return f"{folder}/{name} {origin}"


def _ways(entry: CatalogEntry) -> str:
    """How to come by a data set's files."""
    steps = "; ".join(by_hand(file) for file in entry.file_sets[-1])
    where_to = f"put into one of these places {steps}"
    if not entry.downloads:
        return f"its publisher does not serve it in this form; {where_to}"
    base = entry.name.split("-", maxsplit=1)[0]
    return f"run `securevfl data get {base}`, or by hand {where_to}"


def _first_complete(
    entry: CatalogEntry, looked_in: tuple[Path, ...]
) -> list[tuple[SourceFile, Path]]:
    for files in entry.file_sets:
        found = [(file, path) for file in files if (path := find(file, looked_in))]
        if len(found) == len(files):
            return found
    return []


def _candidates(file: SourceFile, looked_in: tuple[Path, ...]) -> Iterator[Path]:
    plain = _plain(file.path)
    for place in looked_in:
        yield from (place / plain, place / f"{plain}.gz")


def _plain(path: str) -> str:
    return path if path.endswith(".tar.gz") else path.removesuffix(".gz")
