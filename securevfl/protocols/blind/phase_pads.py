"""What one party holds for logistic residuals of rows to come; every row is handed out once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.residues import uniform_words
from securevfl.errors import CryptoError
from securevfl.protocols.blind.phases import PhaseArray, PhaseFormat


class RowPads(NamedTuple):
    """For some rows: the party's share of ρ, and of cos(mρ) and sin(mρ)."""

    phases: PhaseArray
    tables: RingArray


class PhasePads:
    """Pads in the order of use.

    Args:
        phases: this party's share of ρ, shape (rows,).
        tables: its shares of cos(mρ), then of sin(mρ), modulo 2^64, shape (rows, 2·terms).

    Raises:
        CryptoError: arrays of other shapes or types.
    """

    def __init__(self, phases: PhaseArray, tables: RingArray) -> None:
        fits = phases.dtype == np.uint16 and tables.dtype == np.uint64
        if not fits or phases.ndim != 1 or tables.shape[:1] != phases.shape or tables.ndim != 2:  # noqa: PLR2004
            raise CryptoError(
                f"pads of {phases.dtype} {phases.shape} and {tables.dtype} {tables.shape}: uint16 "
                "(rows,) and uint64 (rows, 2·terms) expected"
            )
        self._phases, self._tables = phases, tables
        self._used = 0

    @classmethod
    def none(cls, phase_format: PhaseFormat) -> "PhasePads":
        """Of no row."""
        return cls(np.empty(0, np.uint16), np.empty((0, 2 * phase_format.terms), np.uint64))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "PhasePads":
        """What `arrays` gave.

        Raises:
            CryptoError: arrays of other shapes or types.
        """
        return cls(arrays["phases"], arrays["tables"])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is left, by name."""
        return {"phases": self._phases[self._used :], "tables": self._tables[self._used :]}

    def __len__(self) -> int:
        """Rows that are left."""
        return len(self._phases) - self._used

    def take(self, rows: int) -> RowPads:
        """The next rows' pads, which are gone then.

        Raises:
            CryptoError: fewer are left.
        """
        if rows > len(self):
            raise CryptoError(f"pads for {len(self)} rows are left, {rows} needed")
        part = slice(self._used, self._used + rows)
        self._used += rows
        return RowPads(self._phases[part], self._tables[part])

    def followed_by(self, others: "PhasePads") -> "PhasePads":
        """Both, one after the other; neither of the two hands out anything after that."""
        parts = [self.take(len(self)), others.take(len(others))]
        return PhasePads(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def uniform_phases(rows: int) -> PhaseArray:
    """Uniform phases from the operating system, shape (rows,)."""
    return uniform_words(-(-rows // 4)).view(np.uint16)[:rows]
