"""Warnings about a trained model, and the exit status that they cause."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["learned nothing", "went wrong", "better alone"]
STATUSES: Mapping[Kind, int] = {"learned nothing": 3, "went wrong": 5, "better alone": 4}
"""Exit statuses; the first of these kinds that occurs counts."""


class Warned(NamedTuple):
    """A warning in plain language, with its remedy."""

    kind: Kind
    text: str


def status_of(warnings: tuple[Warned, ...]) -> int:
    """The exit status: 0 without warnings."""
    kinds = {each.kind for each in warnings}
    return next((status for kind, status in STATUSES.items() if kind in kinds), 0)
