"""How a benchmark says what it is doing."""

from typing import Protocol


class Report(Protocol):
    """Told what runs now."""

    def __call__(self, what: str, done: float = 0, total: int | None = None) -> None:
        """Take note.

        Args:
            what: in a few words.
            done: rounds done, or whatever else there are `total` of, in parts too.
            total: None where it is not known.
        """


def rounds_done(report: Report, what: str, rounds: int, done: int) -> None:
    """Report rounds done of so many; a `progress` of training once all but `done` is given."""
    report(what, done, rounds)


def silent(what: str, done: float = 0, total: int | None = None) -> None:
    """The report that nobody reads."""
