"""How long work ends, and what becomes of its rows: gathered, written to files, shown."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from securevfl.benchmarks.progress import Report
from securevfl.cli import options
from securevfl.interrupts import INTERRUPTED, Interrupted, leave_at_the_next
from securevfl.reports import results, tables

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound=Mapping[str, Any])


def finished(run: Callable[[], Sequence[Any]]) -> tuple[list[Any], tuple[str, ...]]:
    """What work gives, or gave before an interrupt, and what is missing then.

    After an interrupt the next one ends the process at once. One before anything was done is
    passed on.
    """
    try:
        return list(run()), ()
    except Interrupted as interrupt:
        if not interrupt.rows:
            raise KeyboardInterrupt from None
        leave_at_the_next()
        return interrupt.rows, interrupt.missing


def leave_if_cut(missing: Sequence[str]) -> None:
    """End a command whose work was interrupted as such, once its results are out."""
    if missing:
        raise typer.Exit(INTERRUPTED)


def measured(
    output: options.Output, run: Callable[[Report], Iterable[R]], forecast: str = ""
) -> list[R]:
    """The rows; those that were done where an interrupt ends it, which `output` notes.

    `forecast` is what there is to do, for work that says which piece of it runs.
    """
    if output.missing:
        return []
    rows: list[R] = []
    at = ""

    with options.progress(output.quiet, forecast, by_piece=True) as report:

        def note(what: str, done: float = 0, total: int | None = None) -> None:
            nonlocal at
            at = what
            report(what, done, total)

        try:
            for row in run(note):
                rows.append(row)  # kept where the next one is interrupted
        except KeyboardInterrupt:
            if not rows:
                raise
            leave_at_the_next()
            output.missing.append(f"{at}, and what follows it")
    return rows


def keep(
    output: options.Output,
    name: str,
    settings: "DataclassInstance | Mapping[str, Any]",
    rows: Sequence[R],
    page: Callable[[Mapping[str, Any]], str] | None = None,
    **more: object,
) -> None:
    """Write the rows to the files that were asked for, with what they were measured with."""
    kept = {**(settings if isinstance(settings, Mapping) else asdict(settings)), **more}
    if "network" in kept:
        kept["network"] = kept["network"].model_dump(mode="json")
    results.keep(
        output.json,
        output.html,
        page,
        command=name,
        seed=kept.pop("seed"),
        settings=kept,
        rows=rows,
        missing=output.missing,
    )


def show(
    output: options.Output, columns: Sequence[tables.Column[R]], rows: Sequence[R], title: str
) -> None:
    """Show the rows, see `tables.print_tables`, unless there are none."""
    from rich.console import Console

    if rows and not output.quiet:
        tables.print_tables(Console(), columns, rows, title)
        say(output, *results.marks(output.missing))


def say(output: options.Output, *lines: str) -> None:
    """Say more below it."""
    if not output.quiet:
        sys.stdout.writelines(f"{line}\n" for line in lines)
