"""What one operator tells the parties of a local job, and hears of them: plain values in JSON."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, TypeAdapter

from securevfl.errors import ConfigError
from securevfl.workers import Gone, reports_of


@dataclass(frozen=True)
class Task:
    """One party's part of a job: where things are, and never what is in them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    job: dict[str, Any]  # its sections, as in the job file
    job_hash: str  # in hex
    identities: dict[str, str]  # public keys of all parties in hex, in the job's order
    label_party: str
    by_digest: bool  # whether rows are matched by the digests of their ids
    beside: str  # folder that the paths of the parties' files are relative to
    data_dir: str  # where named data sets are looked for first; empty for the usual places
    work: str  # folder that all share: keys, aligned rows, and what each leaves at its end
    output: str  # folder of its model and its states
    addresses: dict[str, str]  # of all parties as they are asked to listen, see `address`
    guard_directory: str  # where key owners record what jobs revealed
    pads: tuple[str, ...] = ()  # folders of pads made offline and of their keys, if any
    threads: int = 1  # of linear algebra


TASK = TypeAdapter(Task)
ADDRESSES = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Event:
    """A report of a party, or of whatever watches it.

    The kinds: alive; introduced, when it listens; begins, when training does, after so many rounds;
    progress, when rounds are done; finished, when its files are written; failed, when an error
    ended it; gone, when it died without a word.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["alive", "introduced", "begins", "progress", "finished", "failed", "gone"]
    address: str = ""  # ws://HOST:PORT or unix:PATH
    rounds: int = 0  # done
    error: str = ""  # class of the error
    text: str = ""  # of the error, or how it died


EVENT = TypeAdapter(Event)
Tell = Callable[[Event], None]


def watch(listen: Callable[[float], Iterable[str]], silence_seconds: float, tell: Tell) -> None:
    """Pass on a party's events, and at last that it died or could not be made.

    Args:
        listen: see `workers.reports_of`; yields events as JSON.
        silence_seconds: after which the party counts as dead.
        tell: called with all events but `alive`.
    """
    try:
        for event in map(EVENT.validate_json, reports_of(listen, silence_seconds)):
            if event.kind != "alive":
                tell(event)
    except ConfigError as error:
        tell(Event("failed", error="ConfigError", text=str(error)))
    except Gone as gone:
        tell(Event("gone", text=str(gone)))


class Handle(Protocol):
    """A party that runs somewhere."""

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Tell it where all parties are now; it takes part from the first time on."""

    def stop(self) -> None:
        """End the party, whatever it is doing, if it has not ended yet."""


class Host(Protocol):
    """A place where parties run; one that is silent for too long counts as dead."""

    def start(self, task: Task, tell: Tell) -> Handle:
        """Start a party; `tell` is called with its events, on another thread."""
