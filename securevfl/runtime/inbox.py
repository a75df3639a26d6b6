"""What has reached a party and was not asked for yet."""

import asyncio
from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from securevfl.errors import PeerError


@dataclass(frozen=True)
class Arrived:
    """An envelope that a party holds.

    Attributes:
        order: increases among those of one sender.
        at: when it arrived, in seconds on the clock that its receiver waits by.
    """

    order: int
    at: float


A = TypeVar("A", bound=Arrived)


class Inbox(Generic[A]):
    """Envelopes by sender, for one that waits; all on the event loop of the party's program."""

    def __init__(self) -> None:
        self._queues: dict[str, list[A]] = {}
        self._lost: dict[str, tuple[float, PeerError]] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, sender: str, arrived: A) -> None:
        """Keep an envelope."""
        # A loop runs what is due at one moment in any order; a line keeps the order of sending.
        queue = self._queues.setdefault(sender, [])
        if not queue or queue[-1].order < arrived.order:
            queue.append(arrived)
        else:
            insort(queue, arrived, key=lambda each: each.order)
        self._wake()

    def lose(self, sender: str, at: float, error: PeerError) -> None:
        """Nothing more will come from a sender: who waits for it in vain gets the error."""
        self._lost.setdefault(sender, (at, error))
        self._wake()

    def since(self, senders: Collection[str]) -> float | None:
        """When a wait for one of the senders was over; None while it goes on."""
        heads = [self._queues[name][0].at for name in senders if self._queues.get(name)]
        losses = [self._lost[name][0] for name in senders if name in self._lost]
        return min(heads or losses, default=None)

    async def take(self, senders: Collection[str], deadline: float | None = None) -> tuple[str, A]:
        """The first envelope to have arrived from one of the senders, waited for if need be.

        Raises:
            PeerError: there is none, and one of the senders is lost.
            TimeoutError: the loop's clock passed the deadline, or what is under way comes after it.
        """
        while True:
            heads = [(self._queues[s][0].at, s) for s in senders if self._queues.get(s)]
            if heads:
                at, sender = min(heads)
                if deadline is not None and at > deadline:
                    raise TimeoutError
                return sender, self._queues[sender].pop(0)
            for name in senders:
                if name in self._lost:
                    raise self._lost[name][1]
            self._waiter = asyncio.get_running_loop().create_future()
            if deadline is None:
                await self._waiter
                continue
            async with asyncio.timeout_at(deadline):
                await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
