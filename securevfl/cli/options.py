"""Options and values that several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from securevfl.benchmarks.progress import Report
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import NetworkSettings
from securevfl.protocols.vertical.fdml_server import Staleness

T = TypeVar("T", int, float)

Dataset = Annotated[str, typer.Option(help="Data set by name; `securevfl data list` shows all.")]
DataDir = Annotated[Path | None, typer.Option(help="Where to look for data files first.")]
Parties = Annotated[int | None, typer.Option(help="Split the columns among K parties.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result rows to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page for people to this file.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of batches and starts (never of keys).")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table.")]
LabelParty = Annotated[
    str | None, typer.Option(help="Give the labels to this party in place of the usual one.")
]
NetworkName = Annotated[
    str, typer.Option("--network", help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
]
BatchSize = Annotated[str, typer.Option(help="Rows a batch, or `full`.")]


def numbers(text: str, option: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """The numbers of a comma-separated option.

    Raises:
        ConfigError: something that is no such number, or nothing.
    """
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} = {text!r}: expected {kind.__name__} numbers separated by commas"
        ) from error


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated option."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def batch_size(text: str) -> int | Literal["full"]:
    """A batch size as typed.

    Raises:
        ConfigError: neither a whole number from 1 on nor `full`.
    """
    if text == "full":
        return "full"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--batch-size = {text!r}: expected a number from 1 on, or full")
    return int(text)


def staleness(text: str) -> tuple[Staleness, ...]:
    """Values of τ as typed.

    Raises:
        ConfigError: something that is neither a number from 0 on nor `unbounded`.
    """
    values: list[Staleness] = []
    for part in names(text):
        if part == "unbounded":
            values.append("unbounded")
        elif part.isdecimal():
            values.append(int(part))
        else:
            raise ConfigError(f"--staleness {part!r}: expected numbers from 0 on, or unbounded")
    return tuple(values)


def network(text: str) -> NetworkSettings:
    """A network as typed: a preset, or latency and bandwidth.

    Raises:
        ConfigError: a custom network that is no pair of numbers.
    """
    if ":" not in text:
        return NetworkSettings(preset=text)
    latency, _, bandwidth = text.partition(":")
    try:
        return NetworkSettings(latency_ms=float(latency), bandwidth_mbit=float(bandwidth))
    except ValueError as error:
        raise ConfigError(
            f"--network = {text!r}: expected a preset or LATENCY_MS:MBIT_PER_S, as in 20:100"
        ) from error


def dataset(name: str, parties: int | None, data_dir: Path | None) -> VerticalDataset:
    """A data set by name, split among its parties."""
    return load(name, parties=parties, data_dir=data_dir)


@contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """A bar that shows what runs now, on a terminal; yields a function that is told."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int = 0, total: int | None = None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report
