"""How long work ends: done, or cut short by an interrupt with what was done until then."""

from collections.abc import Callable, Sequence
from typing import Any

import typer

from securevfl.interrupts import INTERRUPTED, Interrupted, leave_at_the_next


def finished(run: Callable[[], Sequence[Any]]) -> tuple[list[Any], tuple[str, ...]]:
    """What work gives, or gave before an interrupt, and what is missing then.

    After an interrupt the next one ends the process at once.

    Raises:
        KeyboardInterrupt: it came before anything was done.
    """
    try:
        return list(run()), ()
    except Interrupted as interrupt:
        if not interrupt.rows:
            raise KeyboardInterrupt from None
        leave_at_the_next()
        return interrupt.rows, interrupt.missing


def leave_if_cut(missing: Sequence[str]) -> None:
    """End a command whose work was interrupted as such, once its results are out.

    Raises:
        Exit: something is missing.
    """
    if missing:
        raise typer.Exit(INTERRUPTED)
