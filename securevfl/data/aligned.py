"""The aligned-id manifest: which rows the parties of a job share, and in which order.

Every party has the same one beside its own file, and builds its table from the two. It holds
neither features nor labels; whoever has it knows that these ids are in every party's data.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from securevfl.data.tables import fingerprint
from securevfl.errors import DataError
from securevfl.files import read_content, replace_file

FORMAT = 1


@dataclass(frozen=True)
class AlignedIds:
    """The rows that all parties hold.

    Attributes:
        train: ids of the training rows, in their order.
        test: ids of the held-out rows, in theirs.
        classes: how many classes the labels have; 0 for real targets.

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
    """The file; its fingerprint tells a manifest that was cut or edited."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    format: int
    fingerprint: str
    classes: int
    train: tuple[str, ...]
    test: tuple[str, ...]


_MANIFEST = TypeAdapter(_Manifest)


def write_aligned(path: Path, aligned: AlignedIds) -> None:
    """Write a manifest, as JSON.

    Raises:
        DataError: it cannot be written.
    """
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
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise DataError(f"{path}: no aligned ids ({place or 'file'}: {problem['msg']})") from error
    if manifest.format != FORMAT:
        raise DataError(f"{path}: format {manifest.format}, this is {FORMAT}")
    aligned = AlignedIds(manifest.train, manifest.test, manifest.classes)
    if aligned.fingerprint != manifest.fingerprint:
        raise DataError(f"{path}: its ids do not have its fingerprint")
    return aligned
