"""Long work that goes on where an interrupt ended it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from securevfl.benchmarks.journal import Journal


@dataclass(frozen=True)
class Journaled:
    """Whether to go on where the same command was interrupted."""

    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an interrupted run of this has done.")
    ] = False

    def journal(self, folder: str, work: Mapping[str, Any], *, quiet: bool) -> "Journal":
        """Of such work; says how much of it was done before.

        Raises:
            DataError: it cannot be read.
        """
        import platformdirs

        from securevfl.benchmarks.journal import Journal

        journal = Journal(platformdirs.user_cache_path("securevfl") / folder, work)
        if self.fresh:
            journal.forget()
        earlier = len(journal.done())
        if earlier and not quiet:
            sys.stderr.write(f"going on: {earlier} pieces of work were done before\n")
        return journal
