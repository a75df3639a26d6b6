"""`securevfl relay`: where parties meet that nobody can connect to."""

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from securevfl.parties.door import Limits

# A job of 17 parties has two connections a pair. Behind one gateway all have one address, and they
# connect anew before the relay has noticed that the old connections are dead.
OF_ADDRESS = 2 * (17 * 16)
CONNECTIONS = 768  # with files and sockets of its own fewer than the 1,024 that systems allow


def relay(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where parties connect to.")
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KEY", help="Only parties with these public keys."),
    ] = None,
    connections: Annotated[
        int, typer.Option("--connections", min=2, help="At most so many at once.")
    ] = CONNECTIONS,
    of_address: Annotated[
        int, typer.Option("--of-address", min=1, help="At most so many of one network address.")
    ] = OF_ADDRESS,
) -> None:
    """Pass sealed messages between parties, which both connect outward.

    It sees public keys, sizes and times. It ends when it is interrupted or terminated.
    """
    import asyncio

    from securevfl.parties.door import Limits
    from securevfl.parties.identity import parse_public

    keys = [parse_public(text) for text in allow] if allow else None
    limits = Limits(connections=connections, of_address=of_address)
    asyncio.run(_run(listen, keys, limits))


async def _run(listen: str, keys: "list[bytes] | None", limits: "Limits") -> None:
    import asyncio

    from securevfl.parties.relay import serve

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serve(listen, _say, limits=limits, allow=keys) as door:
        _say(f"listens at {door.address}")
        await stop.wait()
        _say("ends")


def _say(line: str) -> None:
    sys.stderr.write(f"relay: {line}\n")
    sys.stderr.flush()
