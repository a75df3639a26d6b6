"""An event loop whose clock jumps to the next event instead of waiting for it."""

import asyncio
import selectors

from typing_extensions import override


class Stalled(Exception):
    """Everyone waits and nothing is under way."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for `timeout` it moves the loop's clock on."""

    virtual_now = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise Stalled
            self.virtual_now += max(timeout, 0.0)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop of a simulation."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.virtual_now

    def set_back(self, moment: float) -> None:
        """Let the clock show an earlier moment."""
        self._jumping.virtual_now = min(self._jumping.virtual_now, moment)


class PartyClock:
    """A party's own time.

    Scoring is no part of training, yet the parties wait for each other in it. A party that
    waited resumes at its own earlier time: the loop's clock is set back, and whoever is ahead
    sleeps until it gets there again. So parties always act in the order of their own times.
    """

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        """Seconds since the start of the job."""
        return self._time

    async def spend(self, seconds: float) -> None:
        """Let the time of a finished computation pass."""
        await self.reach(self._time + seconds)

    async def reach(self, moment: float) -> None:
        """Be at a moment, once everyone else is."""
        self._time = moment
        ahead = moment - asyncio.get_running_loop().time()
        if ahead > 0:
            await asyncio.sleep(ahead)

    async def resume(self) -> None:
        """Be where the party stood before it waited."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)  # noqa: S101
        loop.set_back(self._time)
        await self.reach(self._time)
