"""Columns that tables of several experiments have."""

from typing import Any

from securevfl.reports.rows import HOMOMORPHIC
from securevfl.reports.tables import TRADEOFF, Column, Row


def shown(*names: str) -> tuple[Column[Any], ...]:
    """Columns of `bench tradeoff` by their headings."""
    columns = dict(TRADEOFF)
    return tuple((name, columns[name]) for name in names)


def homomorphic_s(row: Row) -> float:
    """Seconds of encryption, products and decryption in all rounds."""
    return float(sum(row["compute_by_phase_s"][phase] for phase in HOMOMORPHIC))
