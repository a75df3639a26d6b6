"""A party's own data: by what its rows are matched, and what it says of the rows that all hold.

Learns:
    every party: by party, the number of columns to which the job gives no bounds and whether all
        values are 1; from the label party the number of classes, the mean weight of training rows,
        rounded up to a power of two, and under algorithms that give all parties the labels these,
        in the common order.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.data.join import Digests, Keys, OwnData, load_own, own_keys, places_in_common
from securevfl.data.read import FileSource
from securevfl.data.shards import is_shard, read_header
from securevfl.data.tables import check_labels, fingerprint, row_digests, rows_fingerprint
from securevfl.errors import DataError, PeerViolation
from securevfl.files import read_arrays, reading, replace_file
from securevfl.job import Job
from securevfl.parties.agreement import Agreement
from securevfl.parties.alignment import Common
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.plan import Facts
from securevfl.protocols.session.workplace import PartyData
from securevfl.runtime.channel import Channel, collect, exchange_with, expect_shape, tell
from securevfl.sparse import Matrix
from securevfl.training.job_data import job_data
from securevfl.wire.codec import Message, message_kind

ALIGNED = "alignment"
"""The file in which a party keeps it."""
SESSION, ROWS, TRAIN, TEST = "session", "rows", "train", "test"
MOST_CLASSES = 1 << 16
MOST_WEIGHT_BITS = 128


@message_kind(110, stage="setup")
class Description(Message):
    """Every party to every other: what the job's settings depend on."""

    unbounded: int
    only_ones: bool
    classes: int
    weight_bits: int


@message_kind(111, stage="setup", carries="values", shows="labels")
class GivenLabels(Message):
    """The label party to every other, where the algorithm gives all parties the labels.

    Of training rows and held-out rows, in the common order; shapes (N,) and (test rows,).
    """

    train: FloatArray
    test: FloatArray


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A party's rows before they are aligned, and the rows that all hold afterwards.

    Attributes:
        by_digest: whether some party's data are a shard, so that all match rows by digest.
    """

    source: FileSource
    by_digest: bool
    keys: Keys

    @classmethod
    def read(cls, source: FileSource, *, by_digest: bool, shared: bool = False) -> "OwnRows":
        """Read a file or a shard, see `own_keys`; errors as `load_files`."""
        return cls(source, by_digest, own_keys(source, by_id=not by_digest, shared=shared))

    def __len__(self) -> int:
        return len(self.keys.train) + (0 if self.keys.test is None else len(self.keys.test))

    @property
    def train_points(self) -> list[bytes]:
        """Ids of training rows, as alignment takes them."""
        return _as_bytes(self.keys.train)

    @property
    def test_points(self) -> list[bytes] | None:
        """Ids of the test file, likewise."""
        return None if self.keys.test is None else _as_bytes(self.keys.test)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of its ids, by which a kept alignment knows its rows again."""
        points = (*self.train_points, b"test", *(self.test_points or ()))
        return fingerprint(each.hex() for each in points)

    def taken(self, common: Common) -> "TakenRows":
        """The rows that all parties hold; a DataError if none are left to train on or to score."""
        train = _at(self.keys.train, common.train)
        if self.keys.test is None:
            held_out = self.keys.held_out[common.train]
            train, test = (_at(train, np.flatnonzero(held_out == out)) for out in (False, True))
        else:
            test = _at(self.keys.test, common.test)
        for split, rows in (("training", train), ("held-out", test)):
            if not len(rows):
                raise DataError(f"no {split} rows are left of those that all parties hold")
        return TakenRows(self, train, test)


@dataclass(frozen=True, eq=False)
class TakenRows:
    """The rows that all parties hold, by id or digest, in the common order."""

    own: OwnRows
    train: Sequence[str] | Digests
    test: Sequence[str] | Digests

    def load(self, job: Job) -> OwnData[Matrix]:
        """This party's part of them, from its file or shard."""
        regression = job.job.loss == "squared"
        own = load_own(self.own.source, self.train, self.test, regression=regression)
        name = f"party {self.own.source.name!r}"
        labels = zip(("training", "test"), (own.train_labels, own.test_labels), strict=True)
        for split, values in labels:
            if values is not None:
                check_labels(name, split, values, len(own.label_names))
        return replace(own, own_rows=None)

    @property
    def row_digests(self) -> Digests:
        """See `Facts`; those of ids are the same at all parties."""
        if isinstance(self.train, np.ndarray):
            return np.asarray(self.train)
        return row_digests(self.train)

    @property
    def only_ones(self) -> bool:
        """Whether all values are 1, by the header of a shard."""
        path = self.own.source.path
        return is_shard(path) and read_header(path).values is None


@dataclass(frozen=True, eq=False)
class NamedRows:
    """A party's columns of a data set by name, of which all parties hold all rows.

    Attributes:
        own: the columns, and the labels at the label party.
        row_digests: see `Facts`.
        only_ones: whether features are taken as they are.
    """

    own: OwnData[Matrix]
    row_digests: Digests
    only_ones: bool
    by_digest: bool = False

    @classmethod
    def read(cls, job: Job, name: str, data_dir: Path | None) -> "NamedRows":
        """Load the data set, and keep a party's part of what the job takes; errors as `load`."""
        assert job.job.dataset is not None  # noqa: S101
        found = job_data(job, Path(), data_dir)
        found = algorithm_of(job).rows(job, found)
        table = next(each for each in found.parties if each.name == name)
        table = deepcopy(table)  # a view would keep all columns alive
        own = OwnData[Matrix](table)
        if name == found.label_party:
            labels = found.train_labels, found.test_labels
            names = found.class_names if found.classes else ()
            own = OwnData[Matrix](table, *labels, names, found.own_rows)
        return cls(own, found.row_digests, not found.standardize)

    def __len__(self) -> int:
        return len(self.row_digests)

    @property
    def train_points(self) -> list[bytes]:
        """As of `OwnRows`: digests of the training rows."""
        return _as_bytes(self.row_digests)

    @property
    def test_points(self) -> None:
        """None: held-out rows are those of the data set."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the digests."""
        return rows_fingerprint(self.row_digests)

    def taken(self, common: Common) -> "NamedRows":
        """All of them; a DataError if the parties hold other rows in common."""
        if not np.array_equal(common.train, np.arange(len(self))):
            raise DataError(f"party {self.own.table.name!r}: its data set has other rows")
        return self

    @property
    def train(self) -> Matrix:
        """Features of the training rows."""
        return self.own.table.train

    @property
    def test(self) -> Matrix:
        """Features of the held-out rows."""
        return self.own.table.test

    def load(self, job: Job) -> OwnData[Matrix]:
        """The party's part, which is here."""
        del job
        return self.own


def join(rows: Mapping[str, OwnRows], label_party: str) -> dict[str, Common]:
    """By party what alignment would find, where one operator holds the data of all."""
    by_id = not any(each.by_digest for each in rows.values())
    keys = {name: each.keys for name, each in rows.items()}
    train = places_in_common({n: each.train for n, each in keys.items()}, label_party, by_id=by_id)
    tests = {name: each.test for name, each in keys.items() if each.test is not None}
    test = dict.fromkeys(rows, np.zeros(0, np.int64))
    if tests:
        test = places_in_common(tests, label_party, by_id=by_id)
    return {name: Common(train[name], test[name]) for name in rows}


def keep_common(path: Path, common: Common, digest: str, session: bytes) -> None:
    """Write which of the rows with this digest all parties hold; a DataError if that fails."""
    header = {SESSION: session.hex(), ROWS: digest}
    replace_file(path, save({TRAIN: common.train, TEST: common.test}, header), "alignment")


def kept_common(path: Path, rows: OwnRows | NamedRows) -> tuple[Common, bytes] | None:
    """What was written for these rows; None if nothing was, or for other rows."""
    if not path.exists():
        return None
    with reading(f"alignment {path}"):
        header, arrays = read_arrays(path)
        common, session = Common(arrays[TRAIN], arrays[TEST]), bytes.fromhex(header[SESSION])
        return (common, session) if header[ROWS] == rows.digest else None


async def describe(
    channel: Channel,
    agreement: Agreement,
    taken: TakenRows | NamedRows,
    own: OwnData[Matrix],
    job: Job,
) -> tuple[Facts, PartyData]:
    """Exchange what the plan depends on.

    Returns:
        The facts, the same at all parties, and this party's data.

    Raises:
        PeerViolation: a peer describes what no party can have.
    """
    name, names, label_party = channel.name, agreement.names, agreement.label_party
    others = [each for each in names if each != name]
    bounds, labels = job.job.bounds, (own.train_labels, own.test_labels)
    is_label_party = name == label_party
    ours = Description(
        unbounded=sum(column not in bounds for column in own.table.columns),
        only_ones=taken.only_ones,
        classes=len(own.label_names) if is_label_party else 0,
        weight_bits=own.table.weight_bits,
    )
    found = {name: ours, **await exchange_with(channel, others, ours)}
    classes = found[label_party].classes
    if classes == 1 or classes > MOST_CLASSES or (classes == 0 and job.job.loss != "squared"):
        raise PeerViolation(f"{label_party} announces {classes} classes")
    weight_bits = found[label_party].weight_bits
    if weight_bits > MOST_WEIGHT_BITS:
        raise PeerViolation(f"{label_party} announces weights of 2^{weight_bits - 64}")
    if algorithm_of(job).labels_everywhere:
        labels = await _given(channel, label_party, others, labels, taken, classes=classes)
    class_names = own.label_names
    if is_label_party and not class_names:
        class_names = tuple(map(str, range(classes)))
    facts = Facts(
        names=names,
        label_party=label_party,
        rows=len(taken.train),
        test_rows=len(taken.test),
        classes=classes,
        row_digests=taken.row_digests,
        standardize=not all(each.only_ones for each in found.values()),
        unbounded={each: found[each].unbounded for each in names},
        weight_bits=weight_bits,
    )
    return facts, PartyData(own.table, *labels, own.own_rows, class_names)


async def _given(
    channel: Channel,
    label_party: str,
    others: Sequence[str],
    labels: tuple[Labels | None, Labels | None],
    taken: TakenRows | NamedRows,
    *,
    classes: int,
) -> tuple[Labels, Labels]:
    """The labels at every party, checked as the label party checks its own."""
    train, test = labels
    if channel.name == label_party:
        assert train is not None and test is not None  # noqa: S101, PT018
        given = GivenLabels(train.astype(np.float64), test.astype(np.float64))
        await tell(channel, others, given)
        return train, test
    message = (await collect(channel, [label_party], GivenLabels))[label_party]
    expect_shape(label_party, message.train, (len(taken.train),))
    expect_shape(label_party, message.test, (len(taken.test),))
    found: list[Labels] = [message.train, message.test]
    if classes:
        if any(not np.array_equal(each, np.rint(each)) for each in found):
            raise PeerViolation(f"{label_party} gives labels that are no classes")
        found = [each.astype(np.int64) for each in found]
    for split, values in zip(("training", "test"), found, strict=True):
        check_labels(f"labels that {label_party} gives", split, values, classes)
    return found[0], found[1]


def _as_bytes(keys: Sequence[str] | Digests) -> list[bytes]:
    if isinstance(keys, np.ndarray):
        return [each.tobytes() for each in keys.astype("<u8")]
    return [each.encode() for each in keys]


def _at(keys: Sequence[str] | Digests, places: IntArray) -> Sequence[str] | Digests:
    if isinstance(keys, np.ndarray):
        return np.asarray(keys[places])
    return [keys[place] for place in places]
