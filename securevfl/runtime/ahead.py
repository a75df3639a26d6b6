"""Work ahead: what a party does while it waits for a message.

The same pieces fill waits in virtual time, where the end of a wait is known when it is taken, and
in real time, where nobody knows it before the message is there.
"""

import asyncio
from collections.abc import Callable

from securevfl.runtime.costs import OFFLINE, Costs


class WorkAhead:
    """Fills a party's waits with the work that its ledger lists, piece by piece."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def during(self, wait_seconds: float) -> float:
        """Fill a wait of so many seconds.

        Returns:
            Seconds by which the last piece outlasted the wait: a party finishes what it has begun.
        """
        left = max(wait_seconds, 0.0)
        while left > 0 and (spent := self._piece()) is not None:
            self._costs.hidden_s += min(spent, left)
            left -= spent
        return max(-left, 0.0)

    async def until(self, over_for: Callable[[], float | None]) -> float:
        """Fill a wait whose end nobody knows.

        Args:
            over_for: for how many seconds the wait has been over; None while it goes on.

        Returns:
            As `during`.
        """
        outlasted = 0.0
        while over_for() is None and (spent := self._piece()) is not None:
            await asyncio.sleep(0)  # lets in what has come meanwhile
            outlasted = min(over_for() or 0.0, spent)
            self._costs.hidden_s += spent - outlasted
        return outlasted

    def _piece(self) -> float | None:
        """Seconds of one piece of work; None if there is none to do."""
        costs = self._costs
        costs.stopwatch.start()
        # The first that has a piece to do does it.
        worked = any(work() for work in costs.ahead)
        spent = costs.stopwatch.stop(OFFLINE)
        if not worked:
            return None
        costs.seconds[OFFLINE] = costs.seconds.get(OFFLINE, 0.0) + spent
        return spent
