"""How long a job will take on this machine, from its first round."""

import time
from dataclasses import dataclass

from typing_extensions import override

from securevfl.reports.tables import seconds
from securevfl.runtime.costs import SETUP, Stopwatch

# A round that took as long says enough; after a shorter one the next, which has less to prepare,
# costs nobody any patience.
LONG_SECONDS = 1.0


class SetupWatch(Stopwatch):
    """Measures as any other, and notes when set-up was over: keys are made, rounds begin."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds_began: float | None = None

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        if phase != SETUP and self.rounds_began is None:
            self.rounds_began = time.perf_counter() - elapsed
        return elapsed


@dataclass
class Forecast:
    """Says once how long all rounds will take.

    Attributes:
        rounds: to be done, at most.
        may_end: whether training may end before.
        watch: of the job.
    """

    rounds: int
    may_end: bool
    watch: SetupWatch
    started: float
    _last: float = 0.0
    _told: bool = False

    def after(self, done: int, now: float) -> str | None:
        """What to say after so many rounds of this run, if it is time.

        Args:
            done: rounds of this run.
            now: on the clock of `started`.
        """
        began = self.watch.rounds_began or self.started
        one = now - (began if done == 1 else self._last)
        self._last = now
        if self._told or (done == 1 and one < LONG_SECONDS and self.rounds > 1):
            return None
        self._told = True
        most = now - began + (self.rounds - done) * one
        ends = "; it may end before" if self.may_end and self.rounds > done else ""
        return (
            f"set-up took {seconds(began - self.started)}, a round takes {seconds(one)}: "
            f"at most {self.rounds} rounds take about {seconds(most)}{ends}"
        )
