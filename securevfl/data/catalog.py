"""The known data sets: what they hold, whose they are, their files and the SHA-256 of each.

A pin covers the uncompressed content, save for archives, whose bytes are pinned as they are.
The a9a and mnist pins were computed from files with the MD5s on public record. credit/data.csv
was rebuilt from the Kaggle copy and then had the hash on public record for UCI's own file. The
bytes of the PhysioNet archives were not at hand: their pins are those on public record, which
several independent projects agree on for the .tar.gz files.
"""

import difflib
import re
from dataclasses import dataclass, replace

from securevfl.errors import ConfigError

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_UCI_CREDIT = "https://archive.ics.uci.edu/static/public/350"
# The original files; the authors' own page no longer serves them.
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PHYSIONET = "https://physionet.org/files/challenge-2012/1.0.0"


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set.

    Attributes:
        path: Folder and name inside a data directory; found with or without `.gz`.
        sha256: Of the uncompressed content, or of an archive's bytes.
        url: Where the publisher serves it; None for files that nobody publishes.
    """

    path: str
    sha256: str
    url: str | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """One data set.

    Attributes:
        name: What `load` is called with.
        rows: Training and test rows.
        columns: Over all parties.
        classes: How many; 0 for real targets.
        parties: Default party names, in order.
        licence: As the publisher is known to state it.
        source: The publisher.
        file_sets: Each tuple of files is enough by itself, tried in this order; the last one
            can be downloaded, if its files have URLs. Empty: embedded in scikit-learn.
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


def _published(folder: str, base: str, pins: dict[str, str]) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(f"{folder}/{name}", pin, f"{base}/{name}") for name, pin in pins.items()
    )


_EVENTS = SourceFile(
    "icu2012/icu2012_events.npz",
    "9a48d444d59f7dfdb770bfaea6a9439e40f59499d77be484d4ea25dc98fa63d2",
)
_SUMMARY = SourceFile(
    "icu2012/icu2012_summary.npz",
    "39d7cf1a861e28e548bfcbbff919e5dfcc492e899b00b62a9e8c4cdfc97b9ddc",
)
_SET_C = {"set-c.tar.gz": "a4a56b95bcee4d50a3874fe298bf2998f2ed0dd98a676579573dc10419329ee1"}
_OUTCOMES = {
    "Outcomes-a.txt": "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",
    "Outcomes-b.txt": "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5",
    "Outcomes-c.txt": "0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9",
}
_ICU_ZIPS = _published(
    "icu2012",
    _PHYSIONET,
    {
        "set-a.zip": "1433638192fda622e8bb11a4559b8af2dbb1c69f0e1c3b5b606cc12aabd0a4c5",
        "set-b.zip": "54094c39631797af554ad4233164e004a699521351bd2f2bed50d6564ebc56dc",
        **_SET_C,
        **_OUTCOMES,
    },
)
_ICU_ARCHIVES = _published(
    "icu2012",
    _PHYSIONET,
    {
        "set-a.tar.gz": "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920",
        "set-b.tar.gz": "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30",
        **_SET_C,
        **_OUTCOMES,
    },
)
_CREDIT_FILES = (
    (
        SourceFile(
            "credit/UCI_Credit_Card.csv",
            "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1",
        ),
    ),
    _published(
        "credit",
        _UCI_CREDIT,
        {"data.csv": "45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0"},
    ),
)
_WIKIPEDIA = SourceFile(
    "multiview/wikipedia_image_text.npz",
    "1d628ef6972bc17165aec7735e8ab5c8b219e92855d8617f85f84dbb051d2748",
)
_MFEAT = SourceFile(
    "multiview/mfeat_6views.npz",
    "029885d69a513fc763784a0fff61caae6a0eebcf353a0239046ef83e25798040",
)
_EMBEDDED = "embedded in scikit-learn; UCI (CC BY 4.0)"

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            "breast_cancer", (456, 113), 30, 2, ("party1", "party2"), "CC BY 4.0", _EMBEDDED
        ),
        CatalogEntry("digits", (1438, 359), 64, 10, ("left", "right"), "CC BY 4.0", _EMBEDDED),
        CatalogEntry(
            "diabetes",
            (354, 88),
            10,
            0,
            ("clinic", "laboratory"),
            "none stated by the publisher",
            "embedded in scikit-learn; Efron, Hastie, Johnstone, Tibshirani (2004)",
        ),
        CatalogEntry(
            "a9a",
            (32561, 16281),
            123,
            2,
            ("first", "second"),
            "CC BY 4.0 (UCI Adult)",
            "LIBSVM Data (Chang, Lin), from UCI Adult",
            (
                _published(
                    "a9a",
                    _LIBSVM,
                    {
                        "a9a": ("f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
                        "a9a.t": (
                            "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"
                        ),
                    },
                ),
            ),
        ),
        CatalogEntry(
            "credit",
            (24000, 6000),
            33,
            2,
            ("A", "B"),
            "CC BY 4.0",
            "UCI Default of Credit Card Clients (Yeh)",
            _CREDIT_FILES,
        ),
        CatalogEntry(
            "credit-swapped",
            (24000, 6000),
            33,
            2,
            ("A", "B"),
            "CC BY 4.0",
            "UCI Default of Credit Card Clients (Yeh)",
            _CREDIT_FILES,
        ),
        CatalogEntry(
            "icu2012",
            (8000, 4000),
            227,
            2,
            ("bedside", "labs"),
            "ODC-By 1.0",
            "PhysioNet/CinC Challenge 2012 v1.0.0",
            ((_SUMMARY,), (_EVENTS,), _ICU_ZIPS, _ICU_ARCHIVES),
        ),
        CatalogEntry(
            "icu2012-714",
            (8000, 4000),
            714,
            2,
            ("party1", "party2"),
            "ODC-By 1.0",
            "PhysioNet/CinC Challenge 2012 v1.0.0",
            ((_EVENTS,), _ICU_ZIPS, _ICU_ARCHIVES),
        ),
        CatalogEntry(
            "mnist",
            (60000, 10000),
            784,
            10,
            ("left", "right"),
            "CC BY-SA 3.0",
            "LeCun, Cortes, Burges",
            (
                _published(
                    "mnist",
                    _MNIST,
                    {
                        "train-images-idx3-ubyte.gz": (
                            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
                        ),
                        "train-labels-idx1-ubyte.gz": (
                            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
                        ),
                        "t10k-images-idx3-ubyte.gz": (
                            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
                        ),
                        "t10k-labels-idx1-ubyte.gz": (
                            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
                        ),
                    },
                ),
            ),
        ),
        *(
            CatalogEntry(
                name,
                (2173, 693),
                138,
                classes,
                ("text", "image"),
                "none stated by the publisher",
                "UCSD SVCL (Rasiwasia et al. 2010)",
                ((_WIKIPEDIA,),),
            )
            for name, classes in (("wikipedia", 10), ("wikipedia-biology", 2))
        ),
        *(
            CatalogEntry(
                name,
                (1600, 400),
                316,
                classes,
                ("pix", "fou"),
                "CC BY 4.0",
                "UCI Multiple Features (Duin)",
                ((_MFEAT,),),
            )
            for name, classes in (("mfeat", 10), ("mfeat-even-odd", 2))
        ),
    )
}
CIFAR10 = CatalogEntry(
    "cifar10",
    (15000, 3000),
    3072,
    10,
    (),
    "none stated by the publisher",
    "Krizhevsky (2009): every third of its images, from JPEG copies",
    (
        (
            SourceFile(
                "cifar10/cifar10_15k3k.npz",
                "2728d4b5df315dc4d727e03713346f181ba41929a22f5c25994dcba2369822ad",
            ),
        ),
    ),
)
"""Images for horizontal jobs alone: no party holds columns of them."""
# By digit, for the rows of a pair.
_MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def names() -> tuple[str, ...]:
    """Every name that `load` knows, all 45 pairs of digits included."""
    pairs = [f"mnist-{a}v{b}" for a in range(10) for b in range(a + 1, 10)]
    return (*CATALOG, "mnist-even-odd", *pairs)


def pair_of(name: str) -> tuple[int, int] | None:
    """The two digits of a name such as mnist-3v8, else None."""
    found = re.fullmatch(r"mnist-([0-9])v([0-9])", name)
    return (int(found[1]), int(found[2])) if found else None


def entry_of(name: str) -> CatalogEntry:
    """The catalog's entry of a data set.

    Raises:
        ConfigError: Unknown; the nearest and all known names are given.
    """
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
