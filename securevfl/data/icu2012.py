"""PhysioNet/CinC Challenge 2012: all observations of 12,000 stays' first 48 hours, in long form."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.formats import decode_text, parse_csv
from securevfl.errors import DataError

if TYPE_CHECKING:
    import polars as pl

MEASURED = (
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP"),
    *("FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "Na"),
    *("NIDiasABP", "NIMAP", "NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2"),
    *("SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC", "Weight"),
)
DESCRIPTORS = ("Age", "Gender", "Height", "ICUType", "Weight")
# Weight is both, under one index.
PARAMETERS = (*MEASURED, *DESCRIPTORS[:4])
SETS = ("a", "b", "c")
_LAST_MINUTE = 48 * 60


@dataclass(frozen=True, eq=False)
class Events:
    """Observations in long form; stay i has `offsets[i]:offsets[i + 1]`, in file order.

    Attributes:
        record_id: Shape (stays,).
        set_index: Shape (stays,), 0, 1, 2 for A, B, C.
        died: Shape (stays,), in-hospital death, 0 or 1.
        offsets: Shape (stays + 1,).
        minute: Shape (events,), 0..2880 since admission.
        parameter: Shape (events,), index into PARAMETERS.
        value: Shape (events,), float32; a missing descriptor is -1, as published.
    """

    record_id: NDArray[np.int64]
    set_index: NDArray[np.int64]
    died: NDArray[np.int64]
    offsets: NDArray[np.int64]
    minute: NDArray[np.int16]
    parameter: NDArray[np.uint8]
    value: NDArray[np.float32]


def load_arrays(data: bytes, source: object) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file.

    Raises:
        DataError: Damaged.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{source}: damaged npz ({error})") from error


def read_events(data: bytes, source: object) -> Events:
    """Events from an npz file of this layout.

    Raises:
        DataError: Damaged, or of another layout.
    """
    arrays = load_arrays(data, source)
    try:
        if tuple(arrays["parameter_names"].tolist()) != PARAMETERS:
            raise DataError(f"{source}: other parameter names than {', '.join(PARAMETERS)}")
        return Events(
            record_id=arrays["record_id"].astype(np.int64),
            set_index=arrays["set"].astype(np.int64),
            died=arrays["y"].astype(np.int64),
            offsets=arrays["offsets"].astype(np.int64),
            minute=arrays["minute"],
            parameter=arrays["parameter"],
            value=arrays["value"],
        )
    except KeyError as error:
        raise DataError(f"{source}: no array {error}") from error


def parse_archives(archives: Mapping[str, bytes], outcomes: Mapping[str, bytes]) -> Events:
    """Events from the publisher's archives of one text file a stay, stays sorted by set and id.

    Lines without a parameter name (2,403 in set C) and the RecordID line are no observations.

    Args:
        archives: By set ("a", "b", "c"), the content of set-*.tar.gz or set-*.zip.
        outcomes: By set, the content of Outcomes-*.txt.

    Raises:
        DataError: A damaged archive, a malformed line (file, line and reason are named), or
            stays that do not match the outcomes.
    """
    parts = [
        _parse_set(archives[letter], outcomes[letter], letter)
        for letter in SETS
        if letter in archives
    ]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    record_id, set_index, died, counts, minute, parameter, value = joined
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Events(record_id, set_index, died, offsets, minute, parameter, value)


def _parse_set(archive: bytes, outcomes: bytes, letter: str) -> list[NDArray[Any]]:
    source = f"set-{letter}"
    names, lines, lengths = [], [], []
    for name, content in sorted(_records(archive, source)):
        body = decode_text(content, name).splitlines()
        if not body or body[0] != "Time,Parameter,Value":
            raise DataError(f"{name}, line 1: expected the header Time,Parameter,Value")
        names.append(name)
        lines += body[1:]
        lengths.append(len(body) - 1)
    if not names:
        raise DataError(f"{source}: no stays in the archive")
    stay = np.repeat(np.arange(len(names)), lengths)
    starts = np.cumsum([0, *lengths])

    def place(row: int) -> str:
        return f"{names[stay[row]]}, line {row - starts[stay[row]] + 2}"

    minute, parameter, value = _parse_lines(lines, place)
    ids = _record_ids(parameter, value, stay, names)
    observed = parameter < len(PARAMETERS)
    order = np.argsort(ids, kind="stable")
    rank = np.argsort(order)[stay]
    rows = np.argsort(rank, kind="stable")
    rows = rows[observed[rows]]
    return [
        ids[order],
        np.full(len(names), SETS.index(letter)),
        _deaths(outcomes, ids[order], f"Outcomes-{letter}.txt"),
        np.bincount(rank[observed], minlength=len(names)),
        minute[rows].astype(np.int16),
        parameter[rows].astype(np.uint8),
        value[rows].astype(np.float32),
    ]


def _records(archive: bytes, source: str) -> Iterator[tuple[str, bytes]]:
    stream = io.BytesIO(archive)
    try:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as files:
                for name in files.namelist():
                    if name.endswith(".txt"):
                        yield name, files.read(name)
            return
        stream.seek(0)
        with tarfile.open(fileobj=stream) as files:
            for member in files:
                content = files.extractfile(member) if member.name.endswith(".txt") else None
                if content:
                    yield member.name, content.read()
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source}: damaged archive ({error})") from error


def _parse_lines(
    lines: list[str], place: Callable[[int], str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only here

    codes = {name: index for index, name in enumerate(PARAMETERS)}
    record, nothing = len(PARAMETERS), len(PARAMETERS) + 1
    frame = pl.DataFrame({"line": lines}, schema={"line": pl.String}).select(
        commas=pl.col("line").str.count_matches(",", literal=True),
        cells=pl.col("line").str.split(","),
    )
    _refuse(frame["commas"] != 2, place, "expected Time,Parameter,Value")  # noqa: PLR2004
    cells = frame.select(
        hours=pl.col("cells").list.get(0).str.extract(r"^(\d\d):[0-5]\d$").cast(pl.Int64),
        minutes=pl.col("cells").list.get(0).str.extract(r"^\d\d:([0-5]\d)$").cast(pl.Int64),
        parameter=pl.col("cells")
        .list.get(1)
        .replace_strict({**codes, "RecordID": record, "": nothing}, default=None),
        value=pl.col("cells").list.get(2).cast(pl.Float64, strict=False),
    )
    minute = cells["hours"] * 60 + cells["minutes"]
    _refuse(minute.is_null() | (minute > _LAST_MINUTE), place, "expected a time 00:00 to 48:00")
    _refuse(cells["parameter"].is_null(), place, "unknown parameter")
    named = cells["parameter"] != nothing
    _refuse(named & ~cells["value"].is_finite().fill_null(False), place, "value is not a number")
    return (
        minute.to_numpy(),
        cells["parameter"].cast(pl.Int64).to_numpy(),
        cells["value"].fill_null(0.0).to_numpy(),
    )


def _refuse(bad: "pl.Series", place: Callable[[int], str], reason: str) -> None:
    if bad.any():
        raise DataError(f"{place(int(bad.arg_true()[0]))}: {reason}")


def _record_ids(
    parameter: NDArray[np.int64],
    value: NDArray[np.float64],
    stay: NDArray[np.int64],
    names: list[str],
) -> NDArray[np.int64]:
    rows = np.flatnonzero(parameter == len(PARAMETERS))
    found = np.bincount(stay[rows], minlength=len(names))
    if (found != 1).any():
        bad = int(np.flatnonzero(found != 1)[0])
        raise DataError(f"{names[bad]}: {found[bad]} RecordID lines, expected 1")
    ids = value[rows].astype(np.int64)
    if np.unique(ids).size < ids.size:
        raise DataError(f"{names[0].split('/')[0]}: the same RecordID in more than one file")
    return ids


def _deaths(content: bytes, ids: NDArray[np.int64], source: str) -> NDArray[np.int64]:
    header, table = parse_csv(content, source)
    if not {"RecordID", "In-hospital_death"} <= set(header):
        raise DataError(f"{source}, line 1: expected columns RecordID and In-hospital_death")
    known = dict(
        zip(
            table[:, header.index("RecordID")].astype(np.int64).tolist(),
            table[:, header.index("In-hospital_death")].astype(np.int64).tolist(),
            strict=True,
        )
    )
    missing = [record for record in ids.tolist() if record not in known]
    if missing:
        raise DataError(f"{source}: no outcome for {len(missing)} stays, the first is {missing[0]}")
    return np.array([known[record] for record in ids.tolist()])
