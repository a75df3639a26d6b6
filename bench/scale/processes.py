"""FDML on shards with every party a process of this machine; the label party's has the server."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench.scale.peak_memory import peak_bytes
from securevfl.data.planted_sparse import PARTIES
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job, PartySettings
from securevfl.parties.local import Places, train_locally
from securevfl.parties.processes import ProcessHandle, ProcessHost
from securevfl.parties.task import Event, Task, Tell
from securevfl.sparse import Matrix


@dataclass(frozen=True)
class Apart:
    """A training of processes.

    Attributes:
        auc: of the held-out rows.
        seconds: of the wall, of all rounds.
        peak_bytes: the most memory of the process that had the most.
    """

    auc: float
    seconds: float
    peak_bytes: int | None


@dataclass
class _WatchedHost:
    """Processes of this machine, asked for their peak while they wait to be ended."""

    peaks: dict[str, int | None] = field(default_factory=dict)

    def start(self, task: Task, tell: Tell) -> ProcessHandle:
        """Start one."""
        handles: list[ProcessHandle] = []

        def heard(event: Event) -> None:
            if event.kind == "finished":
                self.peaks[task.name] = peak_bytes(handles[0].process.pid)
            tell(event)

        handles.append(ProcessHost().start(task, heard))
        return handles[0]


def timed_processes(job: Job, dataset: VerticalDataset[Matrix], folder: Path) -> Apart:
    """Train with a process for every party.

    Args:
        job: of fdml.
        dataset: what is in the folder.
        folder: where every party has its shards.

    Raises:
        SecureVFLError: a process failed.
    """
    parties = [
        PartySettings(
            name=party.name,
            role="label" if party.name == dataset.label_party else "feature",
            data=Path(party.name, "train"),
            test_data=Path(party.name, "test"),
        )
        for party in PARTIES
    ]
    job = job.model_copy(update={"party": tuple(parties)})
    host = _WatchedHost()
    with tempfile.TemporaryDirectory() as output:
        places = Places(Path(output), beside=folder, guard_directory=Path(output))
        result = train_locally(job, dataset, host, places)
    peaks = [peak for peak in host.peaks.values() if peak is not None]
    return Apart(result.clear_auc, result.costs().total_s, max(peaks, default=None))
