"""One-time blinders, made ahead while a party waits for the network."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BlinderPool(Generic[T]):
    """A stock of one-time items; what has been taken never comes back.

    A pool lives as long as its evaluator, and so its key: it is never stored.

    Args:
        make: makes one item from the operating system's generator.
        capacity: what `make_one` fills it to: a round's worth.
    """

    def __init__(self, make: Callable[[], T], capacity: int) -> None:
        self._make = make
        self._capacity = capacity
        self._stock: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._stock)

    def make_one(self) -> bool:
        """Add one item; False, and nothing done, where the pool is full."""
        if len(self._stock) >= self._capacity:
            return False
        self._stock.append(self._make())
        return True

    def take(self) -> T:
        """The oldest item, or a new one where there is none."""
        return self._stock.popleft() if self._stock else self._make()
