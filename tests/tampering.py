"""Messages that are changed on their way."""

from collections.abc import Callable
from typing import Any

from securevfl.runtime.simulation import Tamper
from securevfl.wire.codec import Message, decode, encode


def changed(
    kind: type[Message], change: Callable[[Any], Message], sender: str | None = None
) -> Tamper:
    """Delivers a changed message in place of every one of a kind, of all senders or of one."""

    def tamper(by: str, receiver: str, data: bytes) -> bytes:
        del receiver
        message = decode(data)
        wanted = isinstance(message, kind) and sender in (None, by)
        return encode(change(message)) if wanted else data

    return tamper
