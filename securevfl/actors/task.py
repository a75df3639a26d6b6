"""The messages between a supervisor and its actors: plain values in JSON."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, TypeAdapter

from securevfl.errors import ConfigError
from securevfl.workers import Gone, reports_of


@dataclass(frozen=True)
class ActorTask:
    """One actor's part of a job: where things are, and never what is in them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str  # of its party, or of a server without data
    job: dict[str, Any]  # its sections, as in the job file
    job_hash: str  # in hex
    names: tuple[str, ...]  # of all that take part in the job
    beside: str  # folder that the paths of the parties' files are relative to
    data_dir: str  # where named data sets are looked for first; empty for the usual places
    work: str  # folder that all actors share: facts, aligned ids, and what each leaves at its end
    output: str  # folder of its model and its states
    resume_rounds: int | None  # resume from its state after so many rounds; None starts
    listen: str  # unix:PATH or tcp:HOST:PORT, with port 0 for a free one
    guard_directory: str  # where key owners record what jobs revealed
    pads: tuple[str, ...] = ()  # folders of pads made offline and of their keys, if any
    threads: int = 1  # of linear algebra


TASK = TypeAdapter(ActorTask)


@dataclass(frozen=True)
class Peer:
    """How to reach and authenticate an actor."""

    address: str  # unix:PATH or tcp:HOST:PORT
    certificate: str = ""  # PEM; empty over a Unix socket, whose folder only its owner can enter


PEERS = TypeAdapter(dict[str, Peer])


@dataclass(frozen=True)
class Event:
    """A report of an actor, or of whatever watches it.

    The kinds: alive; introduced, when it listens; progress, when rounds are done; finished, when
    its files are written; failed, when an error ended it; gone, when it died without a word.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["alive", "introduced", "progress", "finished", "failed", "gone"]
    peer: Peer | None = None  # how to reach it
    rounds: int = 0  # done
    error: str = ""  # class of the error
    text: str = ""  # of the error, or how it died


EVENT = TypeAdapter(Event)
Tell = Callable[[Event], None]


def watch(listen: Callable[[float], Iterable[str]], silence_seconds: float, tell: Tell) -> None:
    """Pass on an actor's events, and at last that it died or could not be made.

    Args:
        listen: see `workers.reports_of`; yields events as JSON.
        silence_seconds: after which the actor counts as dead.
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
    """An actor that runs somewhere."""

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Send it the addresses of all actors; it takes part from then on."""

    def stop(self) -> None:
        """End the actor, whatever it is doing, if it has not ended yet."""


class Host(Protocol):
    """A place where actors run; an actor that is silent for too long counts as dead."""

    def start(self, task: ActorTask, tell: Tell) -> Handle:
        """Start an actor; `tell` is called with its events, on another thread."""
