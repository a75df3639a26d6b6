"""A relay: parties connect to it outward, and it copies sealed messages between two that want it.

It learns which public keys meet, when, and how many bytes pass. It is no open proxy: it connects to
nobody, and pairs only callers that name each other and prove it, or that know one nameplate.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from securevfl.errors import PeerError
from securevfl.parties.door import (
    REFUSED,
    REPLACED,
    Caller,
    Door,
    Limits,
    Stream,
    bring_together,
    keep_waiting,
)


@dataclass(eq=False)
class _Guest:
    """One end.

    Attributes:
        other: the other end, once it is there.
    """

    stream: Stream
    caller: Caller
    other: "asyncio.Future[_Guest]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Relay:
    """Who is here; `serve` runs one.

    Args:
        limits: see there.
        allow: public keys of the parties that may use it; None for all.
        say: takes a line an event.
    """

    def __init__(
        self, limits: Limits, allow: Collection[bytes] | None, say: Callable[[str], None]
    ) -> None:
        self._limits, self._allow, self._say = limits, allow, say
        self._guests: dict[Caller, _Guest] = {}

    def admits(self, caller: Caller) -> bool:
        """Whether a caller may come in."""
        if caller.is_party:
            return caller.own != caller.other and (
                self._allow is None or {caller.own, caller.other} <= set(self._allow)
            )
        if self._allow is not None:  # two guests prove nothing, and may be anybody
            return False
        open_ones = {each.salt for each in self._guests if not each.is_party}
        return caller not in self._guests and (
            caller.salt in open_ones or len(open_ones) < self._limits.nameplates
        )

    async def welcome(self, stream: Stream, caller: Caller) -> None:
        """Keep a caller until the other end is there, and then copy what it sends."""
        guest = _Guest(stream, caller)
        older = self._guests.get(caller)
        self._guests[caller] = guest
        try:
            if older is not None:
                await self._replace(older)
            other = await self._other(guest)
            if other is None:
                await stream.close(REFUSED)
            else:
                await self._copy(stream, other)
        finally:
            if self._guests.get(caller) is guest:
                del self._guests[caller]

    async def _replace(self, older: _Guest) -> None:
        """A caller has left its older connection, and with it whom it was paired with."""
        streams = [older.stream]
        if older.other.done():
            other = older.other.result()
            if self._guests.get(other.caller) is other:
                del self._guests[other.caller]
            streams.append(other.stream)
        await asyncio.gather(*(each.close(REPLACED) for each in streams))

    async def _other(self, guest: _Guest) -> _Guest | None:
        """The other end, as soon as it is there; None if it does not come."""
        other = self._guests.get(guest.caller.meets())
        if other is not None and not other.other.done() and not guest.other.done():
            other.other.set_result(guest)
            guest.other.set_result(other)
            self._say(f"{guest.caller.short} and {other.caller.short} meet")
            await bring_together(other.stream)
            await bring_together(guest.stream)
            return other
        self._say(f"{guest.caller.short} waits, from {guest.stream.address}")
        await keep_waiting(guest.stream)
        gone = asyncio.ensure_future(guest.stream.closed())
        seconds = (
            self._limits.waiting_seconds
            if guest.caller.is_party
            else self._limits.nameplate_seconds
        )
        try:
            either: list[asyncio.Future[Any]] = [gone, guest.other]
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not guest.other.done():
            self._say(f"{guest.caller.short} leaves, alone")
            return None
        return guest.other.result()

    async def _copy(self, stream: Stream, other: _Guest) -> None:
        count = 0
        try:
            while True:
                data = await stream.receive()
                await other.stream.send(data)
                count += len(data)
        except PeerError:
            pass
        finally:
            self._say(f"{other.caller.short} was sent {count} bytes; its pair ends")
            await other.stream.close()


@asynccontextmanager
async def serve(
    listen: str,
    say: Callable[[str], None],
    *,
    limits: Limits | None = None,
    allow: Collection[bytes] | None = None,
) -> AsyncIterator[Door]:
    """A relay at HOST:PORT, while it is entered.

    Raises:
        ConfigError: it cannot listen there.
    """
    limits = limits or Limits()
    relay = Relay(limits, allow, say)
    door = Door(listen, relay.admits, relay.welcome, say, limits)
    await door.open()
    try:
        yield door
    finally:
        await door.close()
