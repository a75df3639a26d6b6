"""How long a job will take on this machine, from its first round."""

import time
from dataclasses import dataclass

from typing_extensions import override

from securevfl.reports.tables import seconds
from securevfl.runtime.costs import AHEAD, OFFLINE, SETUP, Stopwatch

# A round that took as long says enough; after a shorter one the next, which has nothing to prepare,
# is worth waiting for.
LONG_SECONDS = 10.0


class SetupWatch(Stopwatch):
    """Measures as any other, and notes when set-up was over: keys are made, rounds begin.

    Attributes:
        rounds_began: when.
        ahead_s: seconds in which something was made ahead of rounds.
        ahead_before_s: those before rounds began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rounds_began: float | None = None
        self.ahead_s = self.ahead_before_s = 0.0

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        if phase == AHEAD:
            self.ahead_s += elapsed
        # There are waits in a set-up too, and work in them.
        elif phase not in {SETUP, OFFLINE} and self.rounds_began is None:
            self.rounds_began = time.perf_counter() - elapsed
            self.ahead_before_s = self.ahead_s
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
        watch = self.watch
        began = watch.rounds_began or self.started
        # A clock that stands still while something is made ahead.
        now -= watch.ahead_s - watch.ahead_before_s
        one = now - (began if done == 1 else self._last)
        self._last = now
        if self._told or (done == 1 and one < LONG_SECONDS and self.rounds > 1):
            return None
        self._told = True
        most = now - began + (self.rounds - done) * one
        ends = "; it may end before" if self.may_end and self.rounds > done else ""
        setup = seconds(began - self.started - watch.ahead_before_s)
        ahead = f"what was made ahead {seconds(watch.ahead_s)}, " if watch.ahead_s else ""
        told = f"at most {self.rounds} rounds take about {seconds(most)}{ends}"
        return (
            f"set-up took {setup}, {ahead}a round takes {seconds(one)}: "
            f"{told if self.rounds > 1 else 'it is the only one'}"
        )
