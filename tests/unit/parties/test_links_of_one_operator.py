"""Links within one operator: sockets in the file system, frames that leave at once, no pings."""

import asyncio
import select
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from securevfl.parties.links import PART_BYTES, Link
from tests.link_parties import Group, connected, free_address, run


def group_at(folder: Path) -> Group:
    group = Group("bank shop")
    group.listen = {name: f"unix:{folder / name}" for name in group.keys}
    group.agreed = replace(group.agreed, addresses=group.listen)
    return group


def socket_of(link: Link) -> socket.socket:
    end = link._stream._connection.transport.get_extra_info("socket")
    assert end is not None
    return end  # type: ignore[no-any-return]


def test_frames_arrive_whole_and_in_order_over_a_socket_in_the_file_system(tmp_path: Path) -> None:
    group = group_at(tmp_path)
    frames = [b"first", bytes(3 * PART_BYTES), b"", b"last", bytes(PART_BYTES - 1)]

    async def program() -> None:
        async with group.links("bank") as bank, group.links("shop") as shop:
            assert shop.listens == group.listen["shop"]
            ends = [*(await connected(bank, shop))]
            for link in (ends[0]["shop"], ends[1]["bank"]):
                for frame in frames:
                    link.post(frame)
            for link in (ends[0]["shop"], ends[1]["bank"]):
                assert [await link.receive() for _ in frames] == frames

    run(program())


@pytest.mark.parametrize("waiting", [False, True])
def test_a_small_frame_leaves_at_once_unless_others_wait(waiting: bool, tmp_path: Path) -> None:
    """The program computes on, and the loop of its links with it."""
    group = group_at(tmp_path)

    async def program() -> None:
        async with group.links("bank") as bank, group.links("shop") as shop:
            ends = await connected(bank, shop)
            await asyncio.sleep(0.01)  # nothing of the handshake is left
            there = socket_of(ends[1]["bank"])
            assert not select.select([there], [], [], 0)[0]
            if waiting:
                ends[0]["shop"].post(bytes(PART_BYTES))
            ends[0]["shop"].post(b"now")
            assert bool(select.select([there], [], [], 0)[0]) != waiting
            found = [await ends[1]["bank"].receive() for _ in range(1 + waiting)]
            assert found[-1] == b"now"

    run(program())


@pytest.mark.parametrize("pings", [False, True])
def test_without_pings_the_machines_answer_for_the_parties(pings: bool) -> None:
    group = Group("bank shop", "bank shop")

    async def program() -> None:
        async with (
            group.links("bank", pings=pings) as bank,
            group.links("shop", pings=pings) as shop,
        ):
            for links in await connected(bank, shop):
                for link in links.values():
                    end = socket_of(link)
                    kept = end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    patience = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                    assert (kept, patience) == ((0, 0) if pings else (1, 60_000))
                    assert (link._stream._connection.ping_interval is None) == (not pings)

    run(program())


def test_a_peer_that_comes_back_elsewhere_is_found() -> None:
    """Nobody has told its peers yet when they first look for it."""
    group = Group("bank shop", "bank shop")
    addresses = {**group.agreed.addresses}
    group.agreed = replace(group.agreed, addresses=addresses)

    async def program() -> None:
        async with group.links("bank") as bank:
            looking = asyncio.ensure_future(bank.connect())
            await asyncio.sleep(0.05)
            elsewhere = free_address()
            async with group.links("shop", listen=elsewhere) as shop:
                addresses["shop"] = f"ws://{elsewhere}"
                await shop.connect()
                assert set(await looking) == {"shop"}

    run(program())
