"""An event loop whose clock jumps to the next event instead of waiting for it.

It knows of nothing but its own callbacks and futures: no sockets, signals, threads or processes.
What asyncio asks of a loop beside these raises NotImplementedError.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from typing import Any

from typing_extensions import override


class Stalled(Exception):
    """Everyone waits and nothing is under way."""


class _Due:
    """A callback that is to run; fills what asyncio expects of handles."""

    __slots__ = ("_when", "arguments", "callback", "context", "is_cancelled")

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._when, self.callback, self.arguments = when, callback, arguments
        self.context = context or copy_context()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


class VirtualTimeLoop(asyncio.AbstractEventLoop):
    """The loop of a simulation; what is due at one moment runs in the order it was asked for."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Due] = deque()
        self._scheduled: list[tuple[float, int, _Due]] = []
        self._order = count()
        self._is_running = self._is_closed = False

    @override
    def time(self) -> float:
        return self._now

    def set_back(self, moment: float) -> None:
        """Let the clock show an earlier moment."""
        self._now = min(self._now, moment)

    @override
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(self._now, callback, args, context)
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        due = _Due(when, callback, args, context)
        heapq.heappush(self._scheduled, (when, next(self._order), due))
        return due

    @override
    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Due:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **named)

    @override
    def run_until_complete(self, future: Any) -> Any:
        """As asyncio has it.

        Raises:
            Stalled: nothing is due, and the future is not done.
        """
        awaited = asyncio.ensure_future(future, loop=self)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not awaited.done():
                self._run_what_is_due()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
        return awaited.result()

    def _run_what_is_due(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            if not scheduled:
                raise Stalled
            self._now = max(self._now, scheduled[0][0])
            while scheduled and scheduled[0][0] <= self._now:
                ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            due = ready.popleft()
            if not due.is_cancelled:
                due.context.run(due.callback, *due.arguments)

    @override
    def is_running(self) -> bool:
        return self._is_running

    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @override
    def close(self) -> None:
        self._is_closed = True

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def set_debug(self, enabled: bool) -> None:
        """Nothing: it has no such mode."""

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing: whoever runs programs waits for all of them, and gets their errors."""

    @override
    async def shutdown_asyncgens(self) -> None:
        """Nothing: it follows none."""

    @override
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing: it has none."""


class PartyClock:
    """A party's own time, at or ahead of the loop's.

    A party that computes need not wait until the loop gets there: whatever it sends lies in the
    loop's future, and the loop goes on only when every party waits for a message. So messages are
    carried in the order of their senders' times all the same.

    Scoring is no part of training, yet the parties wait for each other in it. A party that
    waited resumes at its own earlier time, and the loop's clock is set back to it.
    """

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        """Seconds since the start of the job."""
        return self._time

    async def spend(self, seconds: float) -> None:
        """Let the time of a finished computation pass."""
        self._time += seconds

    def reach(self, moment: float) -> None:
        """Be at a moment."""
        self._time = moment

    def resume(self) -> None:
        """Be where the party stood before it waited."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)  # noqa: S101
        loop.set_back(self._time)
