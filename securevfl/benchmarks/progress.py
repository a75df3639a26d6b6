"""How a benchmark says what it is doing, and how long it will take."""

import time
from collections.abc import Callable
from typing import Protocol

ENOUGH_PART, ENOUGH_SECONDS, WRONG = 0.08, 2.0, 1.5


class Report(Protocol):
    """Told what runs now."""

    def __call__(self, what: str, done: float = 0, total: int | None = None) -> None:
        """Take note.

        Args:
            what: in a few words.
            done: rounds done, or whatever else there are `total` of, in parts too.
            total: None where it is not known.
        """


class TimeLeft:
    """Passes on what runs, and says what there is to do, and how long the rest will take.

    The former as work begins, which is after whatever can be refused; the latter from what was done
    since the first report, once that is a part of all that tells something, and again where it
    turns out to have been wrong.

    Args:
        report: told what runs now.
        say: told a line.
        todo: what there is to do.
        clock: seconds.
        by_piece: whether what runs begins with the name of a piece of work, up to a comma, that is
            all that `total` is about: each piece has a forecast of its own.
    """

    def __init__(
        self,
        report: Report,
        say: Callable[[str], None],
        todo: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        by_piece: bool = False,
    ) -> None:
        self._report, self._say, self._clock = report, say, clock
        self._todo = todo
        self._by_piece, self._piece = by_piece, ""
        self._start: tuple[float, float] | None = None
        self._whole = 0.0

    def __call__(self, what: str, done: float = 0, total: int | None = None) -> None:
        """Take note, see `Report`."""
        if self._todo:
            self._say(self._todo)
            self._todo = ""
        self._report(what, done, total)
        piece = what.split(",", maxsplit=1)[0] if self._by_piece else ""
        if piece != self._piece:
            self._piece, self._start, self._whole = piece, None, 0.0
        if total is None:
            return
        now = self._clock()
        if self._start is None:
            self._start = now, done
            return
        since, before = self._start
        seconds, part = now - since, (done - before) / max(total - before, 1)
        if seconds < ENOUGH_SECONDS or not ENOUGH_PART <= part < 1:
            return
        whole = seconds / part
        if not self._whole / WRONG <= whole <= self._whole * WRONG:
            now_or_not = "now " if self._whole else ""
            self._whole = whole
            name = f"{piece}: " if piece else ""
            self._say(f"{name}{now_or_not}about {duration(whole - seconds)} left")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, to two digits or so."""
    if seconds < 90:  # noqa: PLR2004
        return f"{max(seconds, 1):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"  # noqa: PLR2004


def silent(what: str, done: float = 0, total: int | None = None) -> None:
    """The report that nobody reads."""
