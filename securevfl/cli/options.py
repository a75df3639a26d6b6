"""Options that several commands share, and the progress that they show."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from securevfl.benchmarks.progress import Report, TimeLeft, silent
from securevfl.errors import ConfigError
from securevfl.job import Job, check_job, read_job
from securevfl.ray_cluster import require_ray
from securevfl.warned import Warned, status_of

if TYPE_CHECKING:
    from securevfl.benchmarks.journal import Journal
    from securevfl.data.tables import VerticalDataset
    from securevfl.sparse import Matrix, SameRows

T = TypeVar("T")
QUICK_ROWS = 1000

DataDir = Annotated[Path | None, typer.Option(help="Folder to search first for data files.")]
JobFile = Annotated[Path | None, typer.Argument(help="Job file: its data, parties and settings.")]
Parties = Annotated[int | None, typer.Option(help="Split the columns among K parties.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result rows to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page for people to this file.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table.")]


def _require_ray(address: str | None) -> str | None:
    if address is not None:
        require_ray()
    return address


Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        callback=_require_ray,
        help="Run on the Ray cluster at this address; `local` starts one here.",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="A first look: one seed and fewer rows.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of batches and starts (never of keys).")
]
LabelParty = Annotated[
    str | None, typer.Option(help="Party that holds the labels, instead of the usual one.")
]


Fresh = Annotated[
    bool, typer.Option("--fresh", help="Discard what an interrupted run of this command has done.")
]


@dataclass(frozen=True)
class Output:
    """Where results go; what an interrupt left undone is noted in `missing`."""

    json: Path | None = None
    quiet: bool = False
    html: Path | None = None
    missing: list[str] = field(default_factory=list)


def end_with(warnings: tuple[Warned, ...]) -> None:
    """Say what there is to warn of in a model, and end with its status."""
    for warning in warnings:
        sys.stderr.write(f"securevfl: warning: {warning.text}\n")
    if status := status_of(warnings):
        sys.stderr.write(f"securevfl: status {status}\n")
        raise typer.Exit(status)


def journal(folder: str, work: Mapping[str, Any], *, fresh: bool, quiet: bool) -> "Journal":
    """The journal of such work, empty if `fresh`; says how much of it was done before."""
    import platformdirs

    from securevfl.benchmarks.journal import Journal

    found = Journal(platformdirs.user_cache_path("securevfl") / folder, work)
    if fresh:
        found.forget()
    earlier = len(found.done())
    if earlier and not quiet:
        sys.stderr.write(f"going on: {earlier} pieces of work were done before\n")
    return found


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated option."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def by_commas(option: str, text: str, kind: Callable[[str], T], what: str) -> tuple[T, ...]:
    """Values as typed, separated by commas; `what` they are is for the error.

    Raises:
        ConfigError: a value is empty, or no such value.
    """
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text}: expected {what}, separated by commas") from None


def word(text: str) -> str:
    """Any text; ValueError if there is none."""
    if not text:
        raise ValueError
    return text


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers as typed, see `by_commas`."""
    return by_commas(option, text, float, "numbers")


def count(text: str) -> int:
    """A whole number from 1 on; ValueError if it is none."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def runs(repeats: int | None, default: int, *, quick: bool) -> int:
    """How often to repeat each run.

    Raises:
        ConfigError: a first look, which is one run of each, should repeat.
    """
    if quick and repeats is not None:
        raise ConfigError("--quick is one run of each: drop --repeats")
    return 1 if quick else repeats or default


def read(path: Path | None, only_without_job: Mapping[str, object]) -> Job | None:
    """The job of the file that was given, if any.

    Raises:
        ConfigError: a malformed job, or an option for what a job file always says.
    """
    if path is None:
        return None
    for option, value in only_without_job.items():
        if value is not None:
            raise ConfigError(f"{option} {value}: the job file {path} says that")
    from securevfl.protocols.catalogue import check_names

    job = read_job(path)
    check_names(job)
    return job


def number_or(word: str, option: str, text: str, kind: Callable[[str], float]) -> float | str:
    """A setting as typed: the word, or a number of this kind, which raises ValueError for others.

    Raises:
        ConfigError: neither of them.
    """
    try:
        return word if text == word else kind(text)
    except ValueError:
        from_one = " from 1 on" if kind is count else ""
        expected = f"expected a number{from_one}, or {word}"
        raise ConfigError(f"{option} = {text!r}: {expected}") from None


def dataset(name: str, parties: int | None, data_dir: Path | None) -> "VerticalDataset":
    """A data set by name, split among its parties."""
    from securevfl.data.sources import load

    return load(name, parties=parties, data_dir=data_dir)


def guard_directory() -> Path:
    """Where the guards of parties on this machine keep their records."""
    import platformdirs

    return platformdirs.user_state_path("securevfl") / "label-guard"


def job_dataset(job: Job, path: Path, data_dir: Path | None) -> "VerticalDataset[Matrix]":
    """The data of a job file, by the job's name where they are its parties' own."""
    from securevfl.training.job_data import job_data

    data = job_data(job, path.parent, data_dir)
    return replace(data, name=job.job.dataset or job.job.name)


def class_data(
    job: Job, path: Path | None, label_party: str | None, data_dir: Path | None
) -> "VerticalDataset":
    """The data of a job as arrays, for what needs an AUC.

    Args:
        job: with its data set or its parties' files.
        path: the job's file, if it has one.
        label_party: in place of the usual one.
        data_dir: searched first.

    Raises:
        ConfigError: targets are real.
    """
    from securevfl.data.tables import as_arrays

    check_job(job)
    data = as_arrays(job_dataset(job, path or Path(), data_dir))
    if data.classes == 0:
        raise ConfigError(
            f"{path or data.name}: targets are real, and this is about the AUC of classes"
        )
    return replace(data, label_party=label_party or data.label_party)


def fewer_rows(
    data: "VerticalDataset[SameRows]", size: int | str | None
) -> "VerticalDataset[SameRows]":
    """The rows for a first look: so many, or a batch of this size, spread over the classes.

    Held-out rows are as many at most where they are sparse, as they may be millions.
    """
    from securevfl.data.tables import some_rows, some_test_rows
    from securevfl.sparse import SparseRows

    rows = max(QUICK_ROWS, size if isinstance(size, int) else 0)
    if any(isinstance(p.test, SparseRows) for p in data.parties) and len(data.test_labels) > rows:
        data = some_test_rows(data, rows)
    return data if len(data.train_labels) <= rows else some_rows(data, rows)


def say(line: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def progress(quiet: bool, forecast: str = "", *, by_piece: bool = False) -> Iterator[Report]:
    """A bar that shows what runs now, on a terminal; yields a function that is told.

    `forecast` is what there is to do: it is said as work begins, and so is how long it takes, see
    `TimeLeft`.
    """
    if quiet:
        yield silent
        return
    if not sys.stderr.isatty():
        yield TimeLeft(silent, say, forecast, by_piece=by_piece) if forecast else silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: float = 0, total: int | None = None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield (
            TimeLeft(report, bar.console.print, forecast, by_piece=by_piece) if forecast else report
        )
