"""`securevfl train --processes` and `--ray`: where the parties of a job live."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.job import Job

if TYPE_CHECKING:
    from securevfl.actors.task import Host
    from securevfl.data.tables import VerticalDataset
    from securevfl.protocols.session.checkpoints import SessionState
    from securevfl.protocols.session.pad_store import PadPlaces
    from securevfl.sparse import Matrix
    from securevfl.training import TrainingResult


@dataclass(frozen=True)
class Actors:
    """What the command line says of them.

    Attributes:
        beside: folder that the parties' files are relative to.
        data_dir: where data sets by name are looked for first.
        listen: HOST:PORT for TCP with TLS; None for Unix sockets.
        restarts: how often at most all are started again; None says nothing.
        processes: whether each party is a process.
        ray: address of a Ray cluster, or local.
        row_shards: actors of every party, each with its part of the rows.
        silence: seconds after which a silent one is lost; None says nothing.
    """

    beside: Path
    data_dir: Path | None
    listen: str | None
    restarts: int | None
    processes: bool
    ray: str | None = None
    row_shards: int = 1
    silence: float | None = None

    @property
    def wanted(self) -> bool:
        """Whether parties live outside of this process."""
        return self.processes or self.ray is not None

    def fitted(self, job: Job) -> Job:
        """The job as they run it."""
        if self.row_shards == 1:
            return job
        from securevfl.actors.row_shards import without_states

        return without_states(job)

    def require_fit(self, *, ahead: bool, resume: bool) -> None:
        """Check what they are asked for with.

        Raises:
            ConfigError: an option that has no meaning then.
        """
        if self.ray is not None and self.processes:
            raise ConfigError("--processes are of this machine, --ray places them: give one")
        if self.row_shards > 1 and not self.wanted:
            raise ConfigError("--row-shards are for parties that are --processes, or on --ray")
        if self.row_shards > 1 and resume:
            raise ConfigError("--row-shards: such a job keeps no state to go on from")
        if self.restarts is not None and not self.wanted:
            raise ConfigError("--restarts are of parties that are --processes, or on --ray")
        if self.silence is not None and not self.wanted:
            raise ConfigError("--silence is of parties that are --processes, or on --ray")
        if self.listen is not None and not self.processes:
            raise ConfigError("--listen is for parties that are --processes")
        if ahead and self.wanted:
            raise ConfigError(
                "--ahead makes pads in this process; the run that uses them may be --processes"
            )

    def models(self, result: "TrainingResult") -> list[Path]:
        """Where actors have written their models."""
        from securevfl.training import model_files

        folder = result.job.output.directory
        files = (model_files(name, each, folder) for name, each in result.outcomes.items())
        return [path for paths in files for path in paths]

    def train(
        self,
        job: Job,
        dataset: "VerticalDataset[Matrix]",
        session: "Mapping[str, SessionState]",
        pads: "PadPlaces",
        *,
        progress: Callable[[int], None],
        quiet: bool,
    ) -> "TrainingResult":
        """Train a job by actors, see `train_by_actors`."""
        import platformdirs

        from securevfl.actors.training import RESTARTS, Places, Supervision, train_by_actors

        actors = len(dataset.parties) * self.row_shards
        with self._host() as host:
            return train_by_actors(
                job,
                dataset,
                host,
                Places(
                    output=job.output.directory,
                    beside=self.beside,
                    guard_directory=platformdirs.user_state_path("securevfl") / "label-guard",
                    data_dir=self.data_dir,
                    pads=pads,
                    listen=self.listen,
                    row_shards=self.row_shards,
                ),
                resume=session,
                supervision=Supervision(
                    restarts=RESTARTS if self.restarts is None else self.restarts,
                    progress=progress,
                    say=lambda line: None if quiet else options.say(f"securevfl: {line}"),
                    threads=max(len(os.sched_getaffinity(0)) // actors, 1),
                ),
            )

    @contextmanager
    def _host(self) -> "Iterator[Host]":
        from securevfl.actors.task import SILENCE_SECONDS

        silence = self.silence or SILENCE_SECONDS
        if self.ray is None:
            from securevfl.actors.processes import ProcessHost

            yield ProcessHost(silence_seconds=silence)
            return
        from securevfl.actors.ray_host import RayHost
        from securevfl.ray_cluster import cluster

        with cluster(self.ray):
            yield RayHost(self.ray, silence)
