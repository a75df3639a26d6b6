"""How ids of several parties' files are compared, and why they may not meet.

Real parties never see each other's ids; this is for one place that has all files, as a simulation.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from securevfl.errors import DataError

if TYPE_CHECKING:
    import polars as pl

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
    """Ids as they are compared.

    Args:
        ids: as text.
        how: as they stand, as whole numbers, or without case and blanks at the ends.
        where: for messages.

    Raises:
        DataError: ids that are no whole numbers.
    """
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
    """What tells two files' ids apart, in words; None where they are mostly in common.

    Args:
        parties: their ids.
        common: how many are in all of them.
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
