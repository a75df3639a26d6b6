"""The built-in data sets: contents, licences, file locations, and downloads.

A pinned hash covers the uncompressed content, except for archives. The a9a and mnist hashes were
computed from files whose MD5s are on public record. credit/data.csv was rebuilt from the Kaggle
copy, and its hash matched the public record of UCI's own file. The PhysioNet archives were not
available: their hashes are those on public record, which several independent projects confirm for
the .tar.gz files.
"""

import contextlib
import difflib
import hashlib
import io
import os
import re
import secrets
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from securevfl.errors import ConfigError, DataError
from securevfl.files import read_content

Progress = Callable[[int, int | None], None]
_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30.0
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_UCI_CREDIT = "https://archive.ics.uci.edu/static/public/350"
# The original files; the authors' own page no longer serves them.
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PHYSIONET = "https://physionet.org/files/challenge-2012/1.0.0"
_SHA256 = """
f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906 a9a/a9a
1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9 a9a/a9a.t
a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1 credit/UCI_Credit_Card.csv
45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0 credit/data.csv
9a48d444d59f7dfdb770bfaea6a9439e40f59499d77be484d4ea25dc98fa63d2 icu2012/icu2012_events.npz
39d7cf1a861e28e548bfcbbff919e5dfcc492e899b00b62a9e8c4cdfc97b9ddc icu2012/icu2012_summary.npz
1433638192fda622e8bb11a4559b8af2dbb1c69f0e1c3b5b606cc12aabd0a4c5 icu2012/set-a.zip
54094c39631797af554ad4233164e004a699521351bd2f2bed50d6564ebc56dc icu2012/set-b.zip
8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920 icu2012/set-a.tar.gz
b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30 icu2012/set-b.tar.gz
a4a56b95bcee4d50a3874fe298bf2998f2ed0dd98a676579573dc10419329ee1 icu2012/set-c.tar.gz
2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2 icu2012/Outcomes-a.txt
1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5 icu2012/Outcomes-b.txt
0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9 icu2012/Outcomes-c.txt
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db mnist/train-images-idx3-ubyte.gz
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5 mnist/train-labels-idx1-ubyte.gz
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 mnist/t10k-images-idx3-ubyte.gz
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2 mnist/t10k-labels-idx1-ubyte.gz
1d628ef6972bc17165aec7735e8ab5c8b219e92855d8617f85f84dbb051d2748 multiview/wikipedia_image_text.npz
029885d69a513fc763784a0fff61caae6a0eebcf353a0239046ef83e25798040 multiview/mfeat_6views.npz
"""
_PINS = {path: pin for pin, path in map(str.split, _SHA256.strip().splitlines())}


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set.

    Attributes:
        path: folder and name inside a data directory; found with or without `.gz`.
        sha256: of the uncompressed content, or of an archive's bytes.
        url: where the publisher serves it; None for files that nobody publishes.
    """

    path: str
    sha256: str
    url: str | None = None

    @property
    def plain(self) -> str:
        """The path without `.gz`, except for archives."""
        return self.path if self.path.endswith(".tar.gz") else self.path.removesuffix(".gz")

    @property
    def by_hand(self) -> str:
        """Instructions for a user without a network, or for an unpublished file."""
        origin = f"from {self.url}" if self.url else f"with SHA-256 {self.sha256}"
        return f"{self.path} {origin}"

    def found_in(self, places: tuple[Path, ...]) -> Path | None:
        """The first copy of the file in these places, plain or gzipped."""
        paths = (place / f"{self.plain}{packed}" for place in places for packed in ("", ".gz"))
        return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True)
class CatalogEntry:
    """One data set.

    Attributes:
        rows: numbers of training and test rows.
        columns: over all parties.
        classes: number of classes; 0 for real targets.
        parties: default party names, in order.
        licence: as the publisher states it.
        file_sets: alternatives, in order of preference; the last can be downloaded if its files
            have URLs. Empty if the data come with scikit-learn.
    """

    name: str
    rows: tuple[int, int]
    columns: int
    classes: int
    parties: tuple[str, ...]
    licence: str
    source: str
    file_sets: tuple[tuple[SourceFile, ...], ...] = ()

    @property
    def downloads(self) -> tuple[SourceFile, ...]:
        """The files that the publisher serves."""
        return tuple(file for file in (self.file_sets or ((),))[-1] if file.url is not None)

    def found_in(self, places: tuple[Path, ...]) -> list[tuple[SourceFile, Path]]:
        """The first complete set of files, with each file's path; empty if there is none."""
        for files in self.file_sets:
            found = [(file, path) for file in files if (path := file.found_in(places))]
            if len(found) == len(files):
                return found
        return []


def _files(folder: str, names: str, url: str | None = None) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(f"{folder}/{name}", _PINS[f"{folder}/{name}"], url and f"{url}/{name}")
        for name in names.split()
    )


_OUTCOMES = "Outcomes-a.txt Outcomes-b.txt Outcomes-c.txt"
_ICU_EVENTS = (
    _files("icu2012", "icu2012_events.npz"),
    _files("icu2012", f"set-a.zip set-b.zip set-c.tar.gz {_OUTCOMES}", _PHYSIONET),
    _files("icu2012", f"set-a.tar.gz set-b.tar.gz set-c.tar.gz {_OUTCOMES}", _PHYSIONET),
)
_CREDIT_FILES = (
    _files("credit", "UCI_Credit_Card.csv"),
    _files("credit", "data.csv", _UCI_CREDIT),
)
_MNIST_FILES = _files(
    "mnist",
    "train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz "
    "t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz",
    _MNIST,
)
_WIKIPEDIA = _files("multiview", "wikipedia_image_text.npz")
_MFEAT = _files("multiview", "mfeat_6views.npz")
_TWO, _VIEWS = ("party1", "party2"), ("pix", "fou")
_CC_BY, _ODC, _UNSTATED = "CC BY 4.0", "ODC-By 1.0", "none stated by the publisher"
_EMBEDDED = "embedded in scikit-learn; UCI (CC BY 4.0)"
_YEH = "UCI Default of Credit Card Clients (Yeh)"
_CHALLENGE = "PhysioNet/CinC Challenge 2012 v1.0.0"
_SVCL, _DUIN = "UCSD SVCL (Rasiwasia et al. 2010)", "UCI Multiple Features (Duin)"

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry("breast_cancer", (456, 113), 30, 2, _TWO, _CC_BY, _EMBEDDED),
        CatalogEntry("digits", (1438, 359), 64, 10, ("left", "right"), _CC_BY, _EMBEDDED),
        CatalogEntry(
            *("diabetes", (354, 88), 10, 0, ("clinic", "laboratory"), _UNSTATED),
            "embedded in scikit-learn; Efron, Hastie, Johnstone, Tibshirani (2004)",
        ),
        CatalogEntry(
            *("a9a", (32561, 16281), 123, 2, ("first", "second"), "CC BY 4.0 (UCI Adult)"),
            "LIBSVM Data (Chang, Lin), from UCI Adult",
            (_files("a9a", "a9a a9a.t", _LIBSVM),),
        ),
        CatalogEntry("credit", (24000, 6000), 33, 2, ("A", "B"), _CC_BY, _YEH, _CREDIT_FILES),
        CatalogEntry(
            *("credit-swapped", (24000, 6000), 33, 2, ("A", "B"), _CC_BY, _YEH, _CREDIT_FILES)
        ),
        CatalogEntry(
            *("icu2012", (8000, 4000), 227, 2, ("bedside", "labs"), _ODC, _CHALLENGE),
            (_files("icu2012", "icu2012_summary.npz"), *_ICU_EVENTS),
        ),
        CatalogEntry("icu2012-714", (8000, 4000), 714, 2, _TWO, _ODC, _CHALLENGE, _ICU_EVENTS),
        CatalogEntry(
            *("mnist", (60000, 10000), 784, 10, ("left", "right"), "CC BY-SA 3.0"),
            *("LeCun, Cortes, Burges", (_MNIST_FILES,)),
        ),
        *(
            CatalogEntry(
                name, (2173, 693), 138, classes, ("text", "image"), _UNSTATED, _SVCL, (_WIKIPEDIA,)
            )
            for name, classes in (("wikipedia", 10), ("wikipedia-biology", 2))
        ),
        *(
            CatalogEntry(name, (1600, 400), 316, classes, _VIEWS, _CC_BY, _DUIN, (_MFEAT,))
            for name, classes in (("mfeat", 10), ("mfeat-even-odd", 2))
        ),
    )
}
# By digit, for the rows of a pair.
_MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def names() -> tuple[str, ...]:
    """Every name that `load` accepts, including all 45 pairs of digits."""
    pairs = [f"mnist-{a}v{b}" for a in range(10) for b in range(a + 1, 10)]
    return (*CATALOG, "mnist-even-odd", *pairs)


def pair_of(name: str) -> tuple[int, int] | None:
    """The two digits of a name such as mnist-3v8, otherwise None."""
    found = re.fullmatch(r"mnist-([0-9])v([0-9])", name)
    return (int(found[1]), int(found[2])) if found else None


def entry_of(name: str) -> CatalogEntry:
    """The entry of a data set; an unknown name is refused and the nearest are named."""
    if name not in (known := names()):
        near = difflib.get_close_matches(name, known, n=3)
        if (pair := pair_of(name)) and pair[0] > pair[1]:
            near = [f"mnist-{pair[1]}v{pair[0]}"]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(
            f"dataset: unknown {name!r}; {hint}known: {', '.join(CATALOG)}, mnist-even-odd, "
            f"mnist-AvB (digits A < B)"
        )
    if name in CATALOG:
        return CATALOG[name]
    rows = CATALOG["mnist"].rows
    if pair := pair_of(name):
        rows = (sum(_MNIST_TRAIN[d] for d in pair), sum(_MNIST_TEST[d] for d in pair))
    return replace(CATALOG["mnist"], name=name, rows=rows, classes=2)


@dataclass(frozen=True)
class Content:
    """A file's verified content (uncompressed, except for archives)."""

    path: Path
    sha256: str
    data: bytes


@dataclass(frozen=True)
class Listing:
    """One line of `securevfl data list`.

    Attributes:
        present: whether it can be loaded without a download.
        location: the folder of its files, or "scikit-learn"; None if missing.
        looked_in: every place searched, in order.
    """

    entry: CatalogEntry
    present: bool
    location: str | None
    looked_in: tuple[Path, ...]


def user_cache() -> Path:
    """The per-user cache folder of this package."""
    return Path(platformdirs.user_cache_path("securevfl"))


def _places(data_dir: Path | None) -> tuple[Path, ...]:
    """Where files are searched: `data_dir`, $SECUREVFL_DATA, then the per-user cache."""
    named = (data_dir, os.environ.get("SECUREVFL_DATA"), user_cache() / "data")
    return tuple(Path(place) for place in named if place)


def where(name: str, *, data_dir: Path | None = None) -> Listing:
    """A data set's entry and file location; contents are not verified."""
    entry, looked_in = entry_of(name), _places(data_dir)
    if not entry.file_sets:
        return Listing(entry, True, "scikit-learn", looked_in)
    found = entry.found_in(looked_in)
    return Listing(entry, bool(found), str(found[0][1].parent) if found else None, looked_in)


def listing(*, data_dir: Path | None = None) -> list[Listing]:
    """`where` for every data set; one pair of digits stands for all."""
    return [where(name, data_dir=data_dir) for name in (*CATALOG, "mnist-even-odd", "mnist-3v8")]


def open_files(entry: CatalogEntry, *, data_dir: Path | None = None) -> dict[str, Content]:
    """The verified contents of a data set's files, by file name without `.gz`.

    Raises:
        DataError: missing (with places, command and manual steps), damaged or changed files.
    """
    looked_in = _places(data_dir)
    found = entry.found_in(looked_in)
    if not found:
        raise DataError(
            f"data set {entry.name!r} not found in {', '.join(map(str, looked_in))}: {_ways(entry)}"
        )
    return {
        file.plain.rpartition("/")[2]: _read_verified(path, file.sha256) for file, path in found
    }


def load_arrays(data: bytes, source: object) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file; a DataError if it is damaged."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{source}: damaged npz ({error})") from error


def get(
    name: str,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> list[Path]:
    """Download a data set's files and return their paths; intact existing files are kept.

    Args:
        name: the data set; nothing happens for those that come with scikit-learn.
        data_dir: destination; by default $SECUREVFL_DATA or the per-user cache.
        progress: called with the bytes so far and in total, if known, for each file.
        base_url: a mirror with the same file names, instead of the publisher.

    Raises:
        ConfigError: an unknown name, or a base_url that is not http(s).
        DataError: a failed download, content with another hash (which is removed), no space, or an
            unpublished file; manual steps are named.
    """
    if base_url is not None and not base_url.startswith(("https://", "http://")):
        raise ConfigError(f"base_url: {base_url!r}, expected http:// or https://")
    entry, target = entry_of(name), _places(data_dir)[0]
    if entry.file_sets and not entry.downloads:
        steps = "; ".join(file.by_hand for file in entry.file_sets[-1])
        raise DataError(f"{name}: not published in this form; put into {target} {steps}")
    return [_get_file(file, target, progress, base_url) for file in entry.downloads]


def _get_file(
    file: SourceFile, target: Path, progress: Progress | None, base_url: str | None
) -> Path:
    # Slow to import, and needed only here.
    import http.client  # noqa: PLC0415
    import ssl  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415

    network_errors = (
        *(urllib.error.URLError, http.client.HTTPException, ssl.SSLError),
        *(ConnectionError, TimeoutError),
    )
    present = file.found_in((target,))
    if present:
        with contextlib.suppress(DataError):
            _read_verified(present, file.sha256)
            return present
    path = target / file.path
    url = str(file.url) if base_url is None else f"{base_url.rstrip('/')}/{path.name}"
    # The suffix stays, since it tells archives from gzipped text.
    part = path.with_name(f".{secrets.token_hex(4)}.part-{path.name}")
    advice = f"by hand: put into {target} {file.by_hand}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _stream(url, part, progress)
        _read_verified(part, file.sha256)
        os.replace(part, path)
        if present and present != path:
            # A damaged copy (plain or .gz) would hide the good one.
            present.unlink()
    except network_errors as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"{url}: download failed ({error}); {advice}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    except DataError as error:
        raise DataError(f"{url}: {error}; nothing was kept; {advice}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return path


def _stream(url: str, part: Path, progress: Progress | None) -> None:
    import urllib.request  # noqa: PLC0415

    done = 0
    # The scheme is https in the catalog and was checked for a base_url.
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,  # noqa: S310
        part.open("xb") as sink,
    ):
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        while chunk := response.read(_CHUNK_BYTES):
            sink.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    if total is not None and done != total:
        raise DataError(f"cut off after {done} of {total} bytes")


def _read_verified(path: Path, sha256: str) -> Content:
    """A file's content; a DataError if its hash is not the pinned one."""
    data = read_content(path)
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise DataError(
            f"{path}: SHA-256 of the content is {actual}, expected {sha256}: the file is changed "
            "or damaged"
        )
    return Content(path, sha256, data)


def _ways(entry: CatalogEntry) -> str:
    steps = "; ".join(file.by_hand for file in entry.file_sets[-1])
    where_to = f"put into one of these places {steps}"
    if not entry.downloads:
        return f"not published in this form; {where_to}"
    base = entry.name.split("-", maxsplit=1)[0]
    return f"run `securevfl data get {base}`, or by hand {where_to}"
