"""Ids: how they are compared, which rows are held out by them, and which all parties share.

Real parties see no ids of each other except those in the aligned-id manifest, which every party has
beside its own file. The manifest holds neither features nor labels; whoever has it knows that these
ids are in every party's data. Why ids do not match can only be said where one place has all files,
as in a simulation.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from securevfl.data.tables import fingerprint
from securevfl.errors import DataError
from securevfl.files import read_content, replace_file

if TYPE_CHECKING:
    import polars as pl

FORMAT = 1
IdFormat = Literal["text", "number", "folded"]
FEW = 0.5
EXAMPLES = 3
_NUMBER = r"^\s*\+?(-?\d+)(?:\.0+)?\s*$"
_LEADING_ZEROS = r"^(-?)0+(\d)"
_WAYS = {
    "folded": '`id_format = "folded"` at every party compares them without case and outer blanks',
    "number": '`id_format = "number"` at every party compares them as numbers',
    "digits": "only their last digits are the same: take what stands before these out of a file",
}


def as_ids(ids: "pl.Series", how: IdFormat, where: str) -> "pl.Series":
    """Ids, which are text, as they are compared; refused where they have no such form."""
    same = _normal(ids, how)
    if wrong := same.null_count():
        first = ids.filter(same.is_null())[0]
        raise DataError(f"{where}: {wrong} ids are no whole numbers, as {first!r}")
    return same


def _normal(ids: "pl.Series", how: str) -> "pl.Series":
    """Null where an id has no such form."""
    if how == "number":
        return ids.str.extract(_NUMBER, 1).str.replace(_LEADING_ZEROS, "${1}${2}")
    if how == "folded":
        return ids.str.strip_chars().str.to_lowercase()
    if how == "digits":
        return ids.str.extract(r"0*(\d+)\s*$", 1)
    return ids


def why_few(parties: "Mapping[str, pl.Series]", common: int) -> str | None:
    """How the files' ids differ, in words; None where most are in common.

    `common` is how many are in all of them.
    """
    smallest = min(len(ids) for ids in parties.values())
    if common >= FEW * smallest:
        return None
    told = ", ".join(
        f"{name!r} has {', '.join(map(repr, ids.head(EXAMPLES)))}" for name, ids in parties.items()
    )
    for how, remedy in _WAYS.items():
        alike, pair = _alike(parties, how)
        if alike > 2 * common and alike > FEW * smallest:
            told = " and ".join(f"{name!r} has {row_id!r}" for name, row_id in pair.items())
            return f"{told}; {remedy} ({alike} in common)"
    return told


def _alike(parties: "Mapping[str, pl.Series]", how: str) -> tuple[int, dict[str, str]]:
    """How many ids are common in another form, and each party's way to write one of them."""
    frames = {
        name: ids.alias("id").to_frame().with_columns(_normal(ids, how).alias("same"))
        for name, ids in parties.items()
    }
    first, *others = (frame.drop_nulls("same").unique("same") for frame in frames.values())
    for other in others:
        first = first.join(other, on="same", how="semi")
    if first.is_empty():
        return 0, {}
    # One that is written in two ways, where there is one.
    common = first["same"].sort().head(1000)
    written = {
        name: dict(frame.filter(frame["same"].is_in(common.to_list()))["same", "id"].iter_rows())
        for name, frame in frames.items()
    }
    ways = [{name: each[same] for name, each in written.items()} for same in common]
    return first.height, max(ways, key=lambda way: len(set(way.values())))


def falls_into_test(row_id: str) -> bool:
    """Whether a row is held out of training where there are no test files."""
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") * 5 < 1 << 64


@dataclass(frozen=True)
class AlignedIds:
    """The ids of the training rows and the held-out rows that all parties hold, in their order.

    `classes` is how many the labels have; 0 for real targets.

    Raises:
        DataError: an id twice, no training or no test rows, or one class.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: int

    def __post_init__(self) -> None:
        ids = (*self.train, *self.test)
        if double := len(ids) - len(set(ids)):
            raise DataError(f"aligned ids: {double} of {len(ids)} are there twice")
        for split, rows in (("training", self.train), ("test", self.test)):
            if not rows:
                raise DataError(f"aligned ids: no {split} rows, expected at least 1")
        if self.classes < 0 or self.classes == 1:
            raise DataError(f"aligned ids: {self.classes} classes, expected at least 2")

    @property
    def fingerprint(self) -> str:
        """Of the training ids; it fixes the partition of the rows into batches."""
        return fingerprint(self.train)


@dataclass(frozen=True)
class _Manifest:
    """The file; its fingerprint tells one that was cut or edited."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    format: int
    fingerprint: str
    classes: int
    train: tuple[str, ...]
    test: tuple[str, ...]


_MANIFEST = TypeAdapter(_Manifest)


def first_problem(error: ValidationError) -> str:
    """What is wrong with a file of JSON, and where in it."""
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place or 'file'}: {problem['msg']}"


def write_aligned(path: Path, aligned: AlignedIds) -> None:
    """Write a manifest, as JSON."""
    manifest = _Manifest(FORMAT, aligned.fingerprint, aligned.classes, aligned.train, aligned.test)
    replace_file(path, json.dumps(asdict(manifest), indent=0).encode(), "aligned ids")


def read_aligned(path: Path) -> AlignedIds:
    """Read a manifest.

    Raises:
        DataError: it is missing, no manifest, of another version, or was changed.
    """
    try:
        manifest = _MANIFEST.validate_json(read_content(path), strict=True)
    except ValidationError as error:
        raise DataError(f"{path}: no aligned ids ({first_problem(error)})") from error
    if manifest.format != FORMAT:
        raise DataError(f"{path}: format {manifest.format}, this is {FORMAT}")
    aligned = AlignedIds(manifest.train, manifest.test, manifest.classes)
    if aligned.fingerprint != manifest.fingerprint:
        raise DataError(f"{path}: its ids do not have its fingerprint")
    return aligned
