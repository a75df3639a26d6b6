"""What is noticed in a party's own data before training, and told."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "ids", "preprocess", "unused", "constant", "duplicate", "id", "label"]


@dataclass(frozen=True)
class Note:
    """One thing worth knowing.

    Attributes:
        kind: what it is about.
        party: whose data.
        column: which column, if one.
        text: in words, party and column not repeated.
        warning: whether the result may be worth nothing because of it, so that it is told even
            where little is.
    """

    kind: Kind
    party: str
    column: str | None
    text: str
    warning: bool = False

    @property
    def line(self) -> str:
        """One line."""
        where = "" if self.column is None else f"column {self.column!r} "
        return f"party {self.party!r}: {where}{self.text}"
