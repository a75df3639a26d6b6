"""Messages that are changed on their way."""

from collections.abc import Callable
from typing import Any

from securevfl.runtime.simulation import Tamper
from securevfl.wire.codec import Message, decode, encode


def changed(
    kind: type[Message],
    change: Callable[[Any], Message | None],
    sender: str | None = None,
    receiver: str | None = None,
    step: int | None = None,
) -> Tamper:
    """Delivers a changed message, or none, in place of every one of a kind.

    Where a sender, a receiver or a step is given, other messages of the kind pass; one that has
    no step is of every step.
    """

    def tamper(by: str, to: str, data: bytes) -> bytes | None:
        message = decode(data)
        wanted = isinstance(message, kind) and sender in (None, by) and receiver in (None, to)
        if not wanted or step not in (None, getattr(message, "step", step)):
            return data
        other = change(message)
        return None if other is None else encode(other)

    return tamper
