import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from securevfl.runtime.simulation import Stalled, VirtualTimeLoop


def run(program: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)


def test_sleeps_timeouts_and_tasks_take_virtual_time() -> None:
    async def program() -> list[float]:
        loop, moments = asyncio.get_running_loop(), []

        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)
            moments.append(loop.time())

        await asyncio.gather(nap(3e6), nap(2.0), nap(1.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await loop.create_future()
        return [*moments, loop.time()]

    assert run(program()) == [1.0, 2.0, 3e6, 3e6 + 5]


def test_what_is_due_at_one_moment_runs_in_order_before_what_it_wakes() -> None:
    async def program() -> list[str]:
        loop, done = asyncio.get_running_loop(), []
        first: asyncio.Future[None] = loop.create_future()
        first.add_done_callback(lambda _: done.append("woken"))
        loop.call_at(2.0, done.append, "later")
        loop.call_at(1.0, first.set_result, None)
        for place in range(10):
            loop.call_at(1.0, done.append, str(place))
        loop.call_later(1.0, done.append, "cancelled").cancel()
        await asyncio.sleep(3)
        return done

    assert run(program()) == [*map(str, range(10)), "woken", "later"]


def test_a_wait_for_nothing_is_reported() -> None:
    async def program() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled):
        run(program())


def test_the_clock_can_be_set_back_and_what_was_due_stays_due() -> None:
    async def program() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        moments: list[float] = []
        loop.call_at(10.0, lambda: moments.append(loop.time()))
        await asyncio.sleep(5)
        loop.set_back(2.0)
        loop.set_back(4.0)
        loop.call_at(3.0, lambda: moments.append(loop.time()))
        await asyncio.sleep(20)
        return [*moments, loop.time()]

    assert run(program()) == [3.0, 10.0, 22.0]


def test_an_error_of_a_callback_is_raised_and_not_logged() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(program())


def test_real_things_are_none_of_its_business() -> None:
    async def program() -> None:
        await asyncio.open_connection("localhost", 1)

    with pytest.raises(NotImplementedError):
        run(program())
