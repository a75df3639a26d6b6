"""What an experiment is made of: named runs, rows, tables, and the page that shows them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from bench.documents import MakeCells, by_columns, page
from securevfl.benchmarks.progress import Report
from securevfl.cli.app import run_and_exit
from securevfl.cli.options import Output
from securevfl.cli.reporting import leave_if_cut, measured, say, show
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import NetworkSettings
from securevfl.job.keys import parted, values_of
from securevfl.reports import results
from securevfl.reports.tables import Column
from securevfl.training import Environment

HERE = Path(__file__).parent
S = TypeVar("S", bound="Settings")
T = TypeVar("T")
Shown = tuple[str, Sequence[Column[Any]], Sequence[Any]]
# `--set KEY=VALUE` has one value of a setting that may have several.
Several = Annotated[
    tuple[T, ...], BeforeValidator(lambda v: v if isinstance(v, (tuple, list)) else (v,))
]


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    latency, colon, bandwidth = value.partition(":")
    if colon:
        return NetworkSettings(latency_ms=float(latency), bandwidth_mbit=float(bandwidth))
    preset = NetworkSettings(preset=value)
    preset.resolve()  # refuses a name that is none
    return preset


Network = Annotated[NetworkSettings, BeforeValidator(_network)]
"""`wan`, `20:100` for milliseconds and Mbit/s, or {latency_ms = 20, bandwidth_mbit = 100}."""


class Settings(BaseModel):
    """What a run sets; an experiment adds fields of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    data_dir: Path | None = None


class DataSettings(Settings):
    """The same, with a data set by name."""

    dataset: str = "breast_cancer"
    parties: int | None = None

    def load(self, name: str | None = None) -> VerticalDataset:
        """The data set, split among its parties.

        Raises:
            DataError: its files are missing or malformed.
        """
        return load(name or self.dataset, parties=self.parties, data_dir=self.data_dir)


@dataclass(frozen=True)
class Run:
    """One run of an experiment.

    Attributes:
        seconds: about how long it takes on two cores.
        settings: what it sets, or the words of a `securevfl` command.
        quick: words that make this command small, where those of the experiment do not fit it.
    """

    seconds: int
    settings: Mapping[str, Any] | str = field(default_factory=dict)
    quick: str | None = None


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One question, and the runs that answer it.

    Attributes:
        name: the folder's.
        about: a line of what is asked, then more.
        runs: by name, which is also that of the result file.
        quick: what makes a run small enough for a first look, and for tests: settings, or words to
            add to a command.
        settings: the kind of the runs' settings; None where all are commands.
        measure: from settings to rows; it is told how to report progress.
        columns: of the table on the terminal, and of the page's tables of the experiment's name.
        notes: lines below that table.
        tables: of the page by kind, beside those that the package has.
        html: from a result to a page of plots.
        below: more tables on the terminal: each a title, columns and rows.
    """

    name: str
    about: str
    runs: Mapping[str, Run]
    quick: Mapping[str, Any] | str
    settings: type[S] | None = None
    measure: Callable[[S, Report], Iterator[Any]] | None = None
    columns: Sequence[Column[Any]] = ()
    notes: Callable[[Sequence[Any]], Sequence[str]] = lambda _: ()
    tables: Mapping[str, MakeCells] = field(default_factory=dict)
    html: Callable[[Mapping[str, Any]], str] | None = None
    below: Callable[[Sequence[Any]], Sequence[Shown]] = lambda _: ()

    @property
    def folder(self) -> Path:
        """Where its page and its result files lie."""
        return HERE / self.name

    def write_tables(self) -> str:
        """The experiment's page with its tables as the result files have them.

        Raises:
            ConfigError: a kind of table that is not known.
            DataError: a file or a row that is not there.
        """
        own = {self.name: by_columns(*self.columns)} if self.columns else {}
        text = (self.folder / "README.md").read_text(encoding="utf-8")
        return page(text, self.folder, {**own, **self.tables})


def experiments() -> list[str]:
    """The names of all experiments."""
    return sorted(path.parent.name for path in HERE.glob("*/__main__.py"))


def experiment(name: str) -> Experiment[Any]:
    """An experiment by the name of its folder."""
    found: Experiment[Any] = import_module(f"bench.{name}.__main__").EXPERIMENT
    return found


def main(of: Experiment[Any]) -> None:
    """The command line of an experiment."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    def command(
        names: Annotated[
            list[str] | None, typer.Argument(help="Runs whose names begin so; all if absent.")
        ] = None,
        *,
        only_list: Annotated[bool, typer.Option("--list", help="List the runs.")] = False,
        changes: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every run."),
        ] = None,
        quick: Annotated[bool, typer.Option("--quick", help="A first look: small runs.")] = False,
        data_dir: Annotated[Path | None, typer.Option(help="Where to look for data.")] = None,
        to: Annotated[
            Path | None,
            typer.Option(help="Folder for the result files; without it none is written."),
        ] = None,
        html: Annotated[Path | None, typer.Option(help="Folder for pages of plots.")] = None,
        record: Annotated[
            bool, typer.Option("--record", help="Write result files and tables in the experiment.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
    ) -> None:
        chosen = _chosen(of, names or ())
        if only_list:
            for name, run in chosen.items():
                what = run.settings if isinstance(run.settings, str) else _typed(run.settings)
                sys.stdout.write(f"{name} (about {run.seconds} s): {what or 'as it is'}\n")
            return
        if html and of.measure and not of.html:
            raise ConfigError(f"--html: {of.name} has no page of plots")
        folder = of.folder if record else to
        for name, run in chosen.items():
            output = Output(
                folder and folder / f"{name}.json", quiet, html=html and html / f"{name}.html"
            )
            run_one(of, run, output, changes or (), data_dir, quick=quick)
            leave_if_cut(output.missing)
        if record:
            (of.folder / "README.md").write_text(of.write_tables(), encoding="utf-8")

    command.__doc__ = of.about
    app.command()(command)
    run_and_exit(lambda: app(standalone_mode=False))


def with_progress(report: Report, what: str, rounds: int) -> Environment:
    """An environment in which training reports how many of so many rounds are done."""
    return Environment(progress=lambda done: report(what, done, rounds))


def run_one(
    of: Experiment[Any],
    run: Run,
    output: Output,
    changes: Sequence[str] = (),
    data_dir: Path | None = None,
    *,
    quick: bool = False,
) -> None:
    """Do one run, show its rows and write its result file.

    Raises:
        ConfigError: a setting that is not known or out of range.
    """
    if isinstance(run.settings, str):
        words = [*shlex.split(run.settings)]
        for key, text in map(parted, changes):
            words += [f"--{key.replace('_', '-')}", text]
        words += shlex.split(run.quick or str(of.quick)) if quick else []
        words += ["--data-dir", str(data_dir)] if data_dir else []
        words += ["--json", os.path.relpath(output.json)] if output.json else []
        words += ["--quiet"] if output.quiet else []
        words += ["--html", str(output.html)] if output.html else []
        # As people type it, since result files keep the command line.
        program = Path(sys.executable).with_name("securevfl")
        done = subprocess.run([program, *words], check=False)  # noqa: S603
        if done.returncode:
            raise typer.Exit(done.returncode)
        return
    assert of.settings is not None  # noqa: S101
    assert of.measure is not None  # noqa: S101
    measure = of.measure
    changed = {}
    for key, text in map(parted, changes):
        values = values_of(text)
        changed[key] = values[0] if len(values) == 1 else values
    small = of.quick if quick and isinstance(of.quick, Mapping) else {}
    place = {"data_dir": data_dir} if data_dir else {}
    try:
        settings = of.settings(**{**run.settings, **small, **changed, **place})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"--set {where}: {problem['msg']}") from None
    rows = measured(output, lambda report: measure(settings, report))
    results.keep(
        output.json,
        output.html,
        of.html,
        command=f"bench.{of.name}",
        seed=settings.seed,
        settings=settings.model_dump(mode="json", exclude={"data_dir"}),
        rows=rows,
        missing=output.missing,
    )
    show(output, of.columns, rows, _typed(run.settings))
    for title, columns, own in of.below(rows):
        show(output, columns, own, title)
    say(output, *of.notes(rows))


def _chosen(of: Experiment[Any], names: Sequence[str]) -> dict[str, Run]:
    for name in names:
        if not any(each.startswith(name) for each in of.runs):
            raise ConfigError(f"no run {name!r}: there are {', '.join(of.runs)}")
    return {
        name: run
        for name, run in of.runs.items()
        if not names or any(name.startswith(each) for each in names)
    }


def _typed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
