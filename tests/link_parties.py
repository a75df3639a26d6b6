"""Parties that agreed on nothing but identities and addresses, for tests of their links."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from securevfl.parties.identity import Identity
from securevfl.parties.links import Link, Links
from tests.unit.parties.agreements import TEXT, of

T = TypeVar("T")
SECONDS = 60.0  # far above what anything here takes; a test that hangs ends


# Not those of outgoing connections, which might take one before it is listened at.
_ports = iter(random.SystemRandom().sample(range(10_000, 30_000), 20_000))


def free_address() -> str:
    """An address of loopback at which nobody listens, each time another."""
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return f"127.0.0.1:{port}"
    raise OSError("no free port from 10,000 to 29,999")


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end; a TimeoutError if it hangs."""

    async def limited() -> T:
        async with asyncio.timeout(SECONDS):
            return await program

    return asyncio.run(limited())


class Group:
    """Parties by name, with keys; those in `listening` have addresses, others use the relay."""

    def __init__(self, names: str, listening: str = "", relay: str | None = None) -> None:
        self.keys = {name: Identity.generate() for name in names.split()}
        self.listen = {name: free_address() for name in listening.split()}
        self.said: dict[str, list[str]] = {name: [] for name in self.keys}
        self.agreed = replace(
            of(TEXT),
            identities={name: key.public for name, key in self.keys.items()},
            addresses={name: f"ws://{at}" for name, at in self.listen.items()},
            relay=f"ws://{relay}" if relay else None,
        )
        self.salt = self.agreed.meeting_point

    def moved(self, **addresses: str) -> None:
        """Agree on other addresses of parties."""
        new = {name: f"ws://{at}" for name, at in addresses.items()}
        self.agreed = replace(self.agreed, addresses={**self.agreed.addresses, **new})

    def links(self, name: str, **changes: Any) -> Links:  # noqa: ANN401
        settings: dict[str, Any] = {
            "agreement": self.agreed,
            "own": name,
            "identity": self.keys[name],
            "listen": self.listen.get(name),
            "proxy": None,
            "say": self.said[name].append,
        }
        return Links(**settings | changes)

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Link, Link]]:
        """The link of the bank to the shop, and the other end."""
        async with self.links("bank") as bank, self.links("shop") as shop:
            one, other = await connected(bank, shop)
            yield one["shop"], other["bank"]


async def connected(*parties: Links) -> list[dict[str, Link]]:
    """Connect all at once."""
    return list(await asyncio.gather(*(each.connect() for each in parties)))
