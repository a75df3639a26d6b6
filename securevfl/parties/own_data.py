"""A party's own data: by what its rows are matched, and what it says of the rows that all hold.

Learns:
    every party: by party, the number of columns to which the job gives no bounds and whether all
        values are 1; from the label party the number of classes, and under algorithms that give
        all parties the labels these, in the common order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.data.join import Digests, Keys, OwnData, load_own, own_keys
from securevfl.data.read import FileSource
from securevfl.data.shards import is_shard, read_header
from securevfl.data.tables import check_labels, fingerprint, row_digests
from securevfl.errors import DataError, PeerViolation
from securevfl.files import read_arrays, reading, replace_file
from securevfl.job import Job
from securevfl.parties.alignment import Common
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.plan import Facts
from securevfl.protocols.session.workplace import PartyData
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.sparse import Matrix
from securevfl.wire.codec import Message, message_kind

SESSION, ROWS, TRAIN, TEST = "session", "rows", "train", "test"
MOST_CLASSES = 1 << 16


@message_kind(110, stage="setup")
class Description(Message):
    """Every party to every other: what the job's settings depend on."""

    unbounded: int
    only_ones: bool
    classes: int


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
    def read(cls, source: FileSource, *, by_digest: bool) -> "OwnRows":
        """Read a file or a shard; errors as `load_files`."""
        return cls(source, by_digest, own_keys(source, by_id=not by_digest))

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
        return own

    @property
    def row_digests(self) -> Digests:
        """See `Facts`; those of ids are the same at all parties."""
        if isinstance(self.train, np.ndarray):
            return np.asarray(self.train)
        return row_digests(self.train)


def keep_common(path: Path, common: Common, rows: OwnRows, session: bytes) -> None:
    """Write which rows all parties hold; a DataError if that fails."""
    header = {SESSION: session.hex(), ROWS: rows.digest}
    replace_file(path, save({TRAIN: common.train, TEST: common.test}, header), "alignment")


def kept_common(path: Path, rows: OwnRows) -> tuple[Common, bytes] | None:
    """What was written for these rows; None if nothing was, or for other rows."""
    if not path.exists():
        return None
    with reading(f"alignment {path}"):
        header, arrays = read_arrays(path)
        common, session = Common(arrays[TRAIN], arrays[TEST]), bytes.fromhex(header[SESSION])
        return (common, session) if header[ROWS] == rows.digest else None


async def describe(
    channel: Channel, label_party: str, taken: TakenRows, own: OwnData[Matrix], job: Job
) -> tuple[Facts, PartyData]:
    """Exchange what the plan depends on.

    Returns:
        The facts, the same at all parties, and this party's data.

    Raises:
        PeerViolation: a peer describes what no party can have.
    """
    name, names = channel.name, tuple(party.name for party in job.party)
    others = [each for each in names if each != name]
    bounds, labels = job.job.bounds, (own.train_labels, own.test_labels)
    is_label_party, path = name == label_party, taken.own.source.path
    ours = Description(
        unbounded=sum(column not in bounds for column in own.table.columns),
        only_ones=is_shard(path) and read_header(path).values is None,
        classes=len(own.label_names) if is_label_party else 0,
    )
    for other in others:
        await channel.send(other, ours)
    found = {name: ours, **await collect(channel, others, Description)}
    classes = found[label_party].classes
    if classes == 1 or classes > MOST_CLASSES or (classes == 0 and job.job.loss != "squared"):
        raise PeerViolation(f"{label_party} announces {classes} classes")
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
    )
    return facts, PartyData(own.table, *labels, class_names=class_names)


async def _given(
    channel: Channel,
    label_party: str,
    others: Sequence[str],
    labels: tuple[Labels | None, Labels | None],
    taken: TakenRows,
    *,
    classes: int,
) -> tuple[Labels, Labels]:
    """The labels at every party, checked as the label party checks its own."""
    train, test = labels
    if channel.name == label_party:
        assert train is not None and test is not None  # noqa: S101, PT018
        given = GivenLabels(train.astype(np.float64), test.astype(np.float64))
        for other in others:
            await channel.send(other, given)
        return train, test
    message = (await collect(channel, [label_party], GivenLabels))[label_party]
    expect_shape(label_party, message.train, (len(taken.train),))
    expect_shape(label_party, message.test, (len(taken.test),))
    found = [
        values.astype(np.int64) if classes else values for values in (message.train, message.test)
    ]
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
