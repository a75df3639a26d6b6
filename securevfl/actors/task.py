"""What a supervisor tells an actor, and what it hears: plain values that are JSON."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, TypeAdapter

from securevfl.errors import ConfigError
from securevfl.workers import Gone, heard


@dataclass(frozen=True)
class ActorTask:
    """One actor's part of a job: where things are, and never what is in them.

    Attributes:
        name: of the actor; that of its party, or of a server that holds no data, in the first lane.
        party: whose it is.
        job: its sections, as said in the job file.
        job_hash: of the job, as hex.
        names: of all that take part in the job, by party.
        beside: folder that the parties' files are relative to.
        data_dir: where data sets by name are looked for first; empty for the usual places.
        work: folder with what all actors of the job may read: facts and aligned ids; each leaves
            there what is left of it.
        output: folder of its model and its states.
        resume_rounds: go on from its state after so many rounds; None starts.
        listen: unix:PATH or tcp:HOST:PORT, port 0 for a free one.
        guard_directory: where key owners remember what jobs revealed.
        pads: folders of pads made offline and of their keys; empty where none are kept.
        threads: of linear algebra.
        shard: which of its party's row shards, which is its lane.
        shards: how many each party has.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    party: str
    job: dict[str, Any]
    job_hash: str
    names: tuple[str, ...]
    beside: str
    data_dir: str
    work: str
    output: str
    resume_rounds: int | None
    listen: str
    guard_directory: str
    pads: tuple[str, ...] = ()
    threads: int = 1
    shard: int = 0
    shards: int = 1


TASK = TypeAdapter(ActorTask)


@dataclass(frozen=True)
class Peer:
    """How an actor is reached, and known.

    Attributes:
        address: unix:PATH or tcp:HOST:PORT.
        certificate: PEM, made by the actor for this job; empty over a Unix socket, whose folder
            only its owner can enter.
    """

    address: str
    certificate: str = ""


PEERS = TypeAdapter(dict[str, Peer])


@dataclass(frozen=True)
class Event:
    """What an actor, or whoever watches over it, says.

    Attributes:
        kind: alive: nothing but that; introduced: it listens; progress: rounds are done; finished:
            its model and what else is left are written; failed: an error ended it; gone: it is,
            without a word.
        peer: how it is reached.
        rounds: done.
        error: class of the error.
        text: of the error, or how it is gone.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["alive", "introduced", "progress", "finished", "failed", "gone"]
    peer: Peer | None = None
    rounds: int = 0
    error: str = ""
    text: str = ""


EVENT = TypeAdapter(Event)
Tell = Callable[[Event], None]


def watch(listen: Callable[[float], Iterable[str]], silence_seconds: float, tell: Tell) -> None:
    """Tell what an actor says and at last that it is gone, or that it could not be made.

    Args:
        listen: see `workers.heard`; gives events as JSON.
        silence_seconds: after which it is gone.
        tell: called with all but that it is alive.
    """
    try:
        for event in map(EVENT.validate_json, heard(listen, silence_seconds)):
            if event.kind != "alive":
                tell(event)
    except ConfigError as error:
        tell(Event("failed", error="ConfigError", text=str(error)))
    except Gone as gone:
        tell(Event("gone", text=str(gone)))


class Handle(Protocol):
    """One actor that runs somewhere."""

    def introduce(self, peers: Mapping[str, Peer]) -> None:
        """Tell it of all others; it takes part from then on."""

    def stop(self) -> None:
        """End it, whatever it does; of an actor that is gone, nothing."""


class Host(Protocol):
    """Where actors live; one that is silent for too long is told as gone."""

    def start(self, task: ActorTask, tell: Tell) -> Handle:
        """Start an actor.

        Args:
            task: its part of the job.
            tell: called with what it says, on some thread.
        """
