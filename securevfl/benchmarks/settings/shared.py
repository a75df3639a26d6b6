"""Options that several benchmarks have, and what a job file says in their place."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self

import typer

from securevfl.errors import ConfigError
from securevfl.job import Job, NetworkSettings
from securevfl.protocols import catalogue

LAN = NetworkSettings(preset="lan")

Algorithm = Annotated[str, typer.Option(help=f"One of {', '.join(catalogue.ALGORITHMS)}.")]
Epochs = Annotated[int, typer.Option(min=1, help="Over the training rows.")]
MaxRounds = Annotated[int, typer.Option(min=1, help="Give up after so many rounds.")]
Network = Annotated[
    NetworkSettings, typer.Option(help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A first look: one seed and fewer rows.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs with seeds of their own; medians.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of batches and starts (never of keys).")]
Size = Annotated[int, typer.Option(min=1, help="S: rows a batch.")]


@dataclass(frozen=True)
class SaidByJob(ABC):
    """What a job file says, in place of options or beside them.

    Attributes:
        said_by_job: the fields that are no options where there is a job.
        base: the job, where there is one.
    """

    said_by_job: ClassVar[frozenset[str]] = frozenset()
    base: Job | None = None

    @abstractmethod
    def of_job(self, job: Job, typed_in: Collection[str]) -> Self:
        """The same of a job.

        Args:
            job: as its file says.
            typed_in: fields that the command line says, which stay as they are.
        """

    def quickly(self, typed_in: Collection[str]) -> Self:
        """The same for a first look: one run of each.

        Raises:
            ConfigError: it should be more.
        """
        if "repeats" in typed_in:
            raise ConfigError("--quick is one run of each: drop --repeats")
        return self

    def told(self) -> dict[str, Any]:
        """What a result file says of the settings: fields, or the job in their place."""
        kept = {name: value for name, value in asdict(self).items() if name != "base"}
        if self.base is not None:
            kept = {name: each for name, each in kept.items() if name not in self.said_by_job}
            kept["job"] = self.base.model_dump(mode="json")
        return kept
