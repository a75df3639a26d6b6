"""Row ids: how they are compared, and which rows they hold out.

A mismatch of ids can only be explained where all files are in one place, as in a simulation.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from securevfl.errors import DataError
from securevfl.lazy import Lazy
from securevfl.shown import counted

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

IdFormat = Literal["text", "number", "folded"]
FEW, MORE = 0.5, 0.01
EXAMPLES = 3
_NUMBER = r"^\s*\+?(-?\d+)(?:\.0+)?\s*$"
_LEADING_ZEROS = r"^(-?)0+(\d)"
_WAYS = {
    "folded": '`id_format = "folded"` at every party ignores case and surrounding blanks',
    "number": '`id_format = "number"` at every party compares them as numbers',
    "digits": "only their last digits agree: remove the prefix from one of the files",
}


def normalized_ids(ids: "pl.Series", how: IdFormat, where: str) -> "pl.Series":
    """Ids in the form in which they are compared; a DataError if one has no such form."""
    same = _normal(ids, how)
    if wrong := same.null_count():
        first = ids.filter(same.is_null())[0]
        raise DataError(f"{where}: {wrong} ids are not whole numbers, such as {first!r}")
    return same


def id_text(
    column: "pl.Series", where: str, *, floats: bool = False, first: int = 1
) -> "pl.Series":
    """A column of ids as text; a DataError if it has gaps or is neither text nor integers."""
    kind = column.dtype
    if not (kind == pl.String or kind.is_integer() or (floats and kind.is_float())):
        raise DataError(f"{where}: ids in {column.name!r} are {kind}, expected text or integers")
    return gapless_text(column, where, first=first)


def gapless_text(
    column: "pl.Series", where: str, *, missing: Sequence[str] = ("",), first: int = 1
) -> "pl.Series":
    """A column as text; a DataError if values are missing, with rows counted from `first`."""
    text = column.cast(pl.String)
    absent = text.is_null() | text.is_in(list(missing)).fill_null(False)
    if absent.any():
        raise DataError(
            f"{where}: column {column.name!r} has {counted(int(absent.sum()), 'missing value')}, "
            f"the first in row {first + int(absent.arg_max() or 0)}"
        )
    return text


def _normal(ids: "pl.Series", how: str) -> "pl.Series":
    """Ids in a comparable form, null where an id has none."""
    if how == "number":
        return ids.str.extract(_NUMBER, 1).str.replace(_LEADING_ZEROS, "${1}${2}")
    if how == "folded":
        return ids.str.strip_chars().str.to_lowercase()
    if how == "digits":
        return ids.str.extract(r"0*(\d+)\s*$", 1)
    return ids


def ids_alike(ids: "pl.Series | Sequence[str]") -> "pl.Series":
    """Ids without their case, blanks and leading zeros; as they are if two differ in nothing else.

    Guards know people by them, in whatever format a job compares ids.
    """
    ids = pl.Series(ids, dtype=pl.String)
    alike = _normal(ids, "folded").str.replace(_LEADING_ZEROS, "${1}${2}")
    return ids if alike.n_unique() < len(ids) else alike


def explain_mismatch(left: "Mapping[str, pl.Series]", common: int) -> str | None:
    """Explain, from the ids `left` of each file, why only `common` others are in all files.

    None if at least half of the smallest file's are, and no other spelling matches 1 % more of it.
    """
    smallest = common + min(len(ids) for ids in left.values())
    few = common < FEW * smallest
    for how, remedy in _WAYS.items():
        more, pair = _alike(left, how)
        # Last digits agree by chance too.
        by_chance = how == "digits" and not (more > common and common + more > FEW * smallest)
        if more > MORE * smallest and not by_chance:
            example = " and ".join(f"{name!r} has {row_id!r}" for name, row_id in pair.items())
            return f"{example}; {remedy} ({common + more} in common)"
    if not few:
        return None
    return ", ".join(
        f"{name!r} has {', '.join(map(repr, ids.head(EXAMPLES)))}" for name, ids in left.items()
    )


def _alike(parties: "Mapping[str, pl.Series]", how: str) -> tuple[int, dict[str, str]]:
    """How many ids agree in another form, and each party's spelling of one of them."""
    frames = {
        name: ids.alias("id").to_frame().with_columns(_normal(ids, how).alias("same"))
        for name, ids in parties.items()
    }
    first, *others = (frame.drop_nulls("same").unique("same") for frame in frames.values())
    for other in others:
        first = first.join(other, on="same", how="semi")
    if first.is_empty():
        return 0, {}
    # Prefer an id that the parties spell differently.
    common = first["same"].sort().head(1000)
    written = {
        name: dict(frame.filter(frame["same"].is_in(common.to_list()))["same", "id"].iter_rows())
        for name, frame in frames.items()
    }
    ways = [{name: each[same] for name, each in written.items()} for same in common]
    return first.height, max(ways, key=lambda way: len(set(way.values())))


def is_held_out(row_id: str) -> bool:
    """Whether a row is held out by its id, as a fifth are where there are no test files."""
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") * 5 < 1 << 64


def first_problem(error: ValidationError) -> str:
    """The first problem of an invalid JSON file, and its location."""
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place or 'file'}: {problem['msg']}"
