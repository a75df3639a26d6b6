"""What whoever trained has to know of a model, and the exit status that it makes."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["learned nothing", "went wrong", "better alone"]
STATUSES: Mapping[Kind, int] = {"learned nothing": 3, "went wrong": 5, "better alone": 4}
"""Exit statuses; of several warnings the first in this order counts."""


class Warned(NamedTuple):
    """Something that whoever trained has to know, in plain language, with the remedy."""

    kind: Kind
    text: str


def status_of(warnings: tuple[Warned, ...]) -> int:
    """The exit status: 0 where there is nothing to warn of."""
    kinds = {each.kind for each in warnings}
    return next((status for kind, status in STATUSES.items() if kind in kinds), 0)
