"""A party's session in its folder: the last two states, so that all parties have one in common.

Parties write after the same rounds, and none ends a round before all others have ended the one
before it. So whenever they are killed, the newest state of the last is the older one of the first.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from securevfl.errors import DataError
from securevfl.files import remove_unfinished
from securevfl.protocols.session.state import SessionState


class Checkpoints:
    """One party's.

    Args:
        folder: where.
        party: whose.
    """

    def __init__(self, folder: Path, party: str) -> None:
        self.newest = folder / f"{party}.state"
        self.before = folder / f"{party}.state.before"

    def keep(self, state: SessionState) -> None:
        """Write a state, and drop the one before the last; at round 0, all of another session.

        Raises:
            DataError: it cannot be written.
        """
        if state.rounds == 0:
            self.clear()
        try:
            self.newest.replace(self.before)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DataError(f"session state {self.newest}: {error.strerror}") from error
        state.save(self.newest)

    def load(self) -> dict[int, SessionState]:
        """What there is, by rounds done.

        Raises:
            DataError: a state cannot be read, or is damaged.
        """
        states = [SessionState.load(each) for each in (self.before, self.newest) if each.exists()]
        return {state.rounds: state for state in states}

    def clear(self) -> None:
        """Drop all of it, with what a killed process was about to write."""
        self.newest.unlink(missing_ok=True)
        self.before.unlink(missing_ok=True)
        remove_unfinished(self.newest)


def last_session(folder: Path, parties: Collection[str]) -> Mapping[str, SessionState]:
    """By party the states of the last round that all of them have; none where there is none.

    Raises:
        DataError: a state cannot be read, or is damaged.
    """
    kept = {party: Checkpoints(folder, party).load() for party in parties}
    common = set.intersection(*(set(states) for states in kept.values()))
    return {party: states[max(common)] for party, states in kept.items()} if common else {}
