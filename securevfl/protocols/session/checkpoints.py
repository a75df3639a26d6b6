"""Checkpoints: what a party needs to resume after a round, and the last two of them on disk.

They hold no masks, keys or noise: a resumed session agrees on new ones. All parties write after the
same rounds, and no party is more than one round ahead of another. So whenever they are killed, some
round is among the last two checkpoints of every party. A power cut takes what is not on disk yet:
where that must not lose a job, a state is on disk two rounds before the next one is due.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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
        job_hash: in hexadecimal.
        rounds: done so far.
        weights: θ of the local model.
        revealed: counts of the label guard, see `LeakageCount`.
        in_flight: other arrays of the algorithm and its exchange, by name.
        data: `PartyData.fingerprint` of this party.
    """

    job_hash: str
    party: str
    rounds: int
    weights: FloatArray
    revealed: Revealed = field(default_factory=dict)
    in_flight: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    data: str = ""

    def content(self) -> bytes:
        """The bytes of its file."""
        header = _StateHeader(**{name: getattr(self, name) for name in _StateHeader.model_fields})
        arrays = {IN_FLIGHT + name: values for name, values in self.in_flight.items()}
        return save({WEIGHTS: self.weights, **arrays}, {HEADER: header.model_dump_json()})

    @classmethod
    def load(cls, path: Path) -> "SessionState":
        """Read a state; a DataError if the file cannot be read, or is not a state."""
        with reading(f"session state {path}"):
            texts, arrays = read_arrays(path)
            header = _StateHeader.model_validate_json(texts[HEADER])
            weights = arrays.pop(WEIGHTS)
        if not all(name.startswith(IN_FLIGHT) for name in arrays):
            raise DataError(f"session state {path} is damaged")
        in_flight = {name.removeprefix(IN_FLIGHT): values for name, values in arrays.items()}
        return cls(**header.model_dump(), weights=weights, in_flight=in_flight)


class Checkpoints:
    """One party's last two states, in a folder.

    If `durable`, states are written beside the rounds, and outlive a power cut once `settle`
    returns; leaving a `with` block waits for the last one.
    """

    def __init__(self, folder: Path, party: str, *, durable: bool = False) -> None:
        self.newest = folder / f"{party}.state"
        self.before = folder / f"{party}.state.before"
        self._writer = ThreadPoolExecutor(1) if durable else None
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.shutdown()

    def keep(self, state: SessionState) -> None:
        """Write a state and drop the third last; at round 0, drop all of an earlier session."""
        self.settle()
        if state.rounds == 0:
            self.clear()
        if self._writer is None:
            self._write(state.content(), durable=False)
        else:
            self._writing = self._writer.submit(self._write, state.content(), durable=True)

    def settle(self) -> None:
        """Wait until the last state is written; a DataError if it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, data: bytes, *, durable: bool) -> None:
        try:
            self.newest.replace(self.before)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DataError(f"session state {self.newest}: {error.strerror}") from error
        replace_file(self.newest, data, "session state", durable=durable)

    def load(self) -> dict[int, SessionState]:
        """The states on disk, by rounds done."""
        states = [SessionState.load(each) for each in (self.before, self.newest) if each.exists()]
        return {state.rounds: state for state in states}

    def return_to(self, rounds: int) -> None:
        """Drop a state after more rounds, which would otherwise take the place of this one."""
        if rounds < max(states := self.load(), default=0) and rounds in states:
            self.before.replace(self.newest)

    def clear(self) -> None:
        """Delete all states, and what a killed process has left half written."""
        self.newest.unlink(missing_ok=True)
        self.before.unlink(missing_ok=True)
        remove_unfinished(self.newest)


def last_session(folder: Path, parties: Collection[str]) -> Mapping[str, SessionState]:
    """Every party's state of the newest round that all have; empty where there is none."""
    kept = {party: Checkpoints(folder, party).load() for party in parties}
    common = set.intersection(*(set(states) for states in kept.values()))
    return {party: states[max(common)] for party, states in kept.items()} if common else {}
