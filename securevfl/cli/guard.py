"""`securevfl guard`: what this machine's guards remember of earlier jobs, and forgetting it."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.reports.results import keep

if TYPE_CHECKING:
    from securevfl.protocols.guards.people import Population
    from securevfl.protocols.guards.person_record import PersonRecord
    from securevfl.protocols.guards.row_record import RowRecord

guard = typer.Typer(help="What guards remember of earlier jobs.", no_args_is_help=True)


class GuardRow(TypedDict):
    """One population in one record.

    Attributes:
        counts: what the record counts.
        party: whose rows, or predictions, they are; None for labels.
        also: other names under which some of them have come since.
        people: how many of them.
        first: day of the first job.
        last: the last job.
        shown: what all jobs together have shown.
    """

    counts: str
    party: str | None
    population: str
    also: list[str]
    people: int
    jobs: int
    first: str
    last: str
    shown: str


@dataclass(frozen=True)
class _Kept:
    """A record on disk."""

    counts: str
    party: str | None
    path: Path
    record: "PersonRecord | RowRecord"

    def rows(self) -> Iterator[GuardRow]:
        for number, each in enumerate(self.record.populations):
            people, shown = self._shown(number, each)
            if each.jobs:
                yield {
                    "counts": self.counts,
                    "party": self.party,
                    "population": each.name,
                    "also": each.also,
                    "people": people,
                    "jobs": len(each.jobs),
                    "first": each.jobs[0].day,
                    "last": each.last.partition(" and ")[0],
                    "shown": shown,
                }

    def _shown(self, number: int, population: "Population") -> tuple[int, str]:
        import numpy as np

        from securevfl.protocols.guards.label_ends import BITS
        from securevfl.protocols.guards.person_record import (
            MODEL_LIMIT,
            OTHERS_LIMIT,
            PersonRecord,
        )

        record, there = self.record, np.flatnonzero(self.record.of == number)
        if isinstance(record, PersonRecord):
            shown, ends = "no gradient", BITS * float(record.ends[there].max(initial=0.0))
            if population.variance is not None:
                model, others = record.revealed(there, population.variance)
                shown = (
                    f"{model / MODEL_LIMIT:.0%} of what gradients of all rows may, "
                    f"{others / OTHERS_LIMIT:.0%} of what others may"
                )
            if ends:
                shown += f"; {ends:.2g} bits of each label by final models of 'blind'"
            return len(there), shown
        trained, scored = (int(n[there].max(initial=0)) for n in (record.trained, record.scored))
        shown = f"{trained} columns of predictions by rounds, {scored} by scorings"
        return population.people, shown


def _kept(directory: Path) -> Iterator[_Kept]:
    from securevfl.protocols.guards.person_record import PersonRecord
    from securevfl.protocols.guards.row_record import RowRecord

    if (path := directory / "labels.safetensors").exists():
        yield _Kept("labels", None, path, PersonRecord.load(path))
    for path in sorted(directory.glob("*/predictions.safetensors")):
        yield _Kept("predictions", path.parent.name, path, PersonRecord.load(path))
    if (path := directory / "rows.safetensors").exists():
        yield _Kept("rows", None, path, RowRecord.load(path))


@guard.command("show")
def show(*, json: options.Json = None, quiet: options.Quiet = False) -> None:
    """Say of whom the guards remember what: populations, jobs, and what these have shown."""
    from securevfl.protocols.guards.failed_checks import checks

    rows = [row for kept in _kept(options.guard_directory()) for row in kept.rows()]
    on_record = checks(options.guard_directory())
    settings = {
        "directory": str(options.guard_directory()),
        "checks": [each.model_dump() for each in on_record],
    }
    keep(json, command="guard show", seed=0, settings=settings, rows=rows)
    if quiet:
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for each in on_record:
        what = "failed" if each.failed else "left"
        console.print(
            f"{each.peer}: {what} a check of encrypted replies in job {each.job.name!r} of "
            f"{each.job.day} (`securevfl guard trust {each.peer}`)"
        )
    if not rows:
        console.print(f"no job has been counted in {options.guard_directory()}")
    for row in rows:
        whose = row["counts"] if row["party"] is None else f"{row['counts']} of {row['party']}"
        console.print(f"{whose}: {row['people']} people of population {row['population']!r}")
        if row["also"]:
            console.print(f"  also known as: {', '.join(map(repr, row['also']))}")
        console.print(f"  shown: {row['shown']}")
        console.print(f"  jobs: {row['jobs']} since {row['first']}")
        console.print(f"  the last: {row['last']}")


@guard.command("trust")
def trust(
    peer: Annotated[str, typer.Argument(help="As `securevfl guard show` names it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Allow jobs with a party again that failed a check of encrypted replies, or left it."""
    from securevfl.protocols.guards import failed_checks

    directory = options.guard_directory()
    found = [each for each in failed_checks.checks(directory) if each.peer == peer]
    if not found:
        raise ConfigError(f"no check of {peer!r} is on record in {directory}")
    failed = sum(each.failed for each in found)
    typer.echo(f"{peer}: checks that failed: {failed}, that it left: {len(found) - failed};")
    typer.echo(f"the last in job {found[-1].job.name!r} of {found[-1].job.day}.")
    typer.echo(
        "A party that cheats passes one check in 2^κ, and learns a bit from each that fails."
    )
    if not yes:
        typer.confirm("Trust it again?", abort=True)
    failed_checks.trust(directory, peer)
    typer.echo("trusted")


@guard.command("forget")
def forget(
    population: Annotated[str, typer.Argument(help="As `securevfl guard show` names it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget what earlier jobs have shown of a population, at every party on this machine."""
    found = list(_kept(options.guard_directory()))
    names = {each.name for kept in found for each in kept.record.populations}
    if population not in names:
        near = difflib.get_close_matches(population, names, 1, cutoff=0.5) or sorted(names)[:3]
        known = f"; known: {', '.join(map(repr, near))}" if near else ": nothing has been counted"
        raise ConfigError(f"population {population!r} is in no record{known}")
    rows = [r for kept in found for r in kept.rows() if r["population"] == population]
    for row in rows:
        typer.echo(f"{row['counts']}: {row['people']} people, jobs: {row['jobs']}, {row['shown']}")
    typer.echo("Peers keep what these jobs have shown them. Later jobs would be allowed as if they")
    typer.echo("had shown nothing.")
    if not yes:
        typer.confirm("Forget them?", abort=True)
    for kept in found:
        with type(kept.record).changed(kept.path) as record:
            record.forget(population)
    typer.echo("forgotten")
