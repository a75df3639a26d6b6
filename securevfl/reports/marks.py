"""What every reader of a result must see first: that it is partial, or a first look."""

from collections.abc import Mapping, Sequence
from typing import Any


def marks(missing: Sequence[str], *, quick: bool = False) -> list[str]:
    """A line for each.

    Args:
        missing: what an interrupt left undone.
        quick: whether it was run small to be quick.
    """
    cut = [f"PARTIAL, interrupted: missing {'; '.join(missing)}"] if missing else []
    return cut + (["QUICK: a first look, no basis for a policy or a decision"] if quick else [])


def marks_of(result: Mapping[str, Any]) -> list[str]:
    """The same of what a result file holds."""
    return marks(result.get("missing", ()), quick=result["settings"].get("quick", False))
