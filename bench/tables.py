"""Columns that tables of several experiments have."""

from collections.abc import Callable
from typing import Any, TypeVar

from bench.documents import MakeCells, by_columns
from securevfl.reports.tables import TRADEOFF, Column, Row, rate

T = TypeVar("T")
HOMOMORPHIC = ("encrypt", "evaluate", "decrypt")
"""The phases of computation that homomorphic work is."""


def or_dash(value: T | None, show: Callable[[T], str]) -> str:
    """How a value is shown; a dash where there is none."""
    return "-" if value is None else show(value)


def shown(*names: str) -> tuple[Column[Any], ...]:
    """Columns of `bench tradeoff` by their headings."""
    columns = dict(TRADEOFF)
    return tuple((name, columns[name]) for name in names)


def by_target(*columns: Column[Any]) -> MakeCells:
    """A table with one line a row, by target."""
    cells = by_columns(*columns)
    return lambda rows: cells(sorted(rows, key=lambda row: row["target_auc"]))


def homomorphic_s(row: Row) -> float:
    """Seconds of encryption, products and decryption in all rounds."""
    return float(sum(row["compute_by_phase_s"][phase] for phase in HOMOMORPHIC))


def network(row: Row) -> str:
    """The network of a run of `bench tradeoff`: a preset, or latency and bandwidth."""
    if chosen := row.get("varied", {}).get("network"):
        return str(chosen)
    settings = row["settings"]
    chosen = settings["network"] if "network" in settings else settings["job"]["network"]
    return chosen["preset"] or f"{chosen['latency_ms']:g} ms, {chosen['bandwidth_mbit']:g} Mbit/s"


NETWORK: Column[Any] = ("network", network)
BATCH: Column[Any] = ("S", lambda row: str(row["batch_size"]))
RATE: Column[Any] = ("η0", lambda row: rate(row["learning_rate"]))
