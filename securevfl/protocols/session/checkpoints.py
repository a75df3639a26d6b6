"""What a party must keep to go on after a round, and its last two states in their folder.

Masks, keys and noise are never among it: a session that goes on agrees new ones. Parties write
after the same rounds, and none ends a round before all others have ended the one before it. So
whenever they are killed, the newest state of the last is the older one of the first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from safetensors.numpy import save

from securevfl.arrays import FloatArray
from securevfl.errors import DataError
from securevfl.files import read_arrays, reading, remove_unfinished, replace_file
from securevfl.protocols.session.privacy_account import Revealed

HEADER, WEIGHTS, IN_FLIGHT = "state", "weights", "in flight."


class _StateHeader(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    job_hash: str
    party: str
    rounds: NonNegativeInt
    data: str
    revealed: dict[str, dict[str, PositiveInt]]


@dataclass(frozen=True, eq=False)
class SessionState:
    """A party's part of a job after some rounds.

    Attributes:
        job_hash: as hex.
        rounds: done.
        weights: θ of its local model.
        revealed: what the gradients it decrypted reveal, for the label guard.
        in_flight: what the exchange holds for the next round, by name.
        data: names this party's data, see `PartyData.fingerprint`.
    """

    job_hash: str
    party: str
    rounds: int
    weights: FloatArray
    revealed: Revealed = field(default_factory=dict)
    in_flight: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    data: str = ""

    def save(self, path: Path) -> None:
        """Replace the file in one step."""
        header = _StateHeader(
            job_hash=self.job_hash,
            party=self.party,
            rounds=self.rounds,
            data=self.data,
            revealed=self.revealed,
        )
        arrays = {IN_FLIGHT + name: values for name, values in self.in_flight.items()}
        data = save({WEIGHTS: self.weights, **arrays}, {HEADER: header.model_dump_json()})
        replace_file(path, data, "session state")

    @classmethod
    def load(cls, path: Path) -> "SessionState":
        """The state in a file; DataError where it cannot be read, or is none."""
        with reading(f"session state {path}"):
            texts, arrays = read_arrays(path)
            header = _StateHeader.model_validate_json(texts[HEADER])
            weights = arrays.pop(WEIGHTS)
        if not all(name.startswith(IN_FLIGHT) for name in arrays):
            raise DataError(f"session state {path} is damaged")
        return cls(
            header.job_hash,
            header.party,
            header.rounds,
            weights,
            header.revealed,
            {name.removeprefix(IN_FLIGHT): values for name, values in arrays.items()},
            header.data,
        )


class Checkpoints:
    """One party's last two states, in a folder."""

    def __init__(self, folder: Path, party: str) -> None:
        self.newest = folder / f"{party}.state"
        self.before = folder / f"{party}.state.before"

    def keep(self, state: SessionState) -> None:
        """Write a state, and drop the one before the last; at round 0, all of another session."""
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
        """What there is, by rounds done."""
        states = [SessionState.load(each) for each in (self.before, self.newest) if each.exists()]
        return {state.rounds: state for state in states}

    def clear(self) -> None:
        """Drop all of it, with what a killed process was about to write."""
        self.newest.unlink(missing_ok=True)
        self.before.unlink(missing_ok=True)
        remove_unfinished(self.newest)


def last_session(folder: Path, parties: Collection[str]) -> Mapping[str, SessionState]:
    """By party the states of the last round that all of them have; none where there is none."""
    kept = {party: Checkpoints(folder, party).load() for party in parties}
    common = set.intersection(*(set(states) for states in kept.values()))
    return {party: states[max(common)] for party, states in kept.items()} if common else {}
