"""FDML beside training in one place and on one party's columns (Table 2 of Hu et al., KDD 2019).

Seconds an epoch: *virtual* on a network, of parties that work in parallel, and *wall*, all of them
on this machine after each other. The machinery is wall time beyond the parties' own computation:
channel, codec, server and ledger, for one iteration of one party.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from securevfl.benchmarks.in_one_place import train_in_one_place
from securevfl.benchmarks.progress import Report, silent
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job, NetworkSettings
from securevfl.protocols.vertical.fdml_server import SERVER
from securevfl.runtime.costs import SCORING, SETUP
from securevfl.training import plan_for, train

Row = dict[str, Any]


@dataclass(frozen=True)
class FdmlSettings:
    """What to run.

    Attributes:
        model: lr or nn, a network of one hidden layer at each party.
        learning_rate: η0 of η0/√t.
        l2: λ.
        epochs: over the training rows.
        hidden: its units, with tanh.
        batch_size: S.
        staleness: τ.
        network: between parties and server.
        repeats: seeds seed, seed + 1, …
    """

    model: Literal["lr", "nn"]
    learning_rate: float
    l2: float = 0.0
    epochs: int = 20
    hidden: int = 32
    batch_size: int = 100
    staleness: int | Literal["unbounded"] = 0
    network: NetworkSettings = field(default_factory=lambda: NetworkSettings(preset="lan"))
    repeats: int = 3
    seed: int = 0

    def job(self, rows: int, seed: int) -> Job:
        """The job of one seed on so many training rows."""
        settings: dict[str, Any] = {
            "name": "fdml",
            "algorithm": "fdml",
            "rounds": self.epochs * (rows // self.batch_size),
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "l2": self.l2,
            "sampling": "shuffle",
            "seed": seed,
        }
        if self.model == "lr":
            settings |= {"start": "zero"}
        else:
            settings |= {"model": "mlp", "hidden": [self.hidden], "activation": "tanh"}
        return Job.of(job=settings, network=self.network, fdml={"staleness": self.staleness})


def fdml(
    settings: FdmlSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[Row]:
    """A row a party's own columns, one for all columns in one place, one for fdml."""
    jobs = [
        settings.job(len(dataset.train_labels), settings.seed + index)
        for index in range(settings.repeats)
    ]
    plan_for(jobs[0], dataset)
    alone: list[tuple[str, list[str] | None]] = [
        (f"{table.name} alone", [table.name]) for table in dataset.parties
    ]
    for name, parties in [*alone, ("one place", None)]:
        report(f"{settings.model}, {name}")
        found = [train_in_one_place(job, dataset, parties) for job in jobs]
        yield {
            **_settings(settings, dataset, name),
            "auc": statistics.median(each.auc for each in found),
            "aucs": [each.auc for each in found],
            "wall_s_per_epoch": statistics.median(e.training_s for e in found) / settings.epochs,
            "virtual_s_per_epoch": None,
            "machinery_s": None,
        }
    report(f"{settings.model}, fdml")
    runs = [train(job, dataset) for job in jobs]
    yield {
        **_settings(settings, dataset, "fdml"),
        "auc": statistics.median(run.clear_auc for run in runs),
        "aucs": [run.clear_auc for run in runs],
        "wall_s_per_epoch": statistics.median(run.wall_s for run in runs) / settings.epochs,
        "virtual_s_per_epoch": statistics.median(run.costs().total_s for run in runs)
        / settings.epochs,
        "machinery_s": statistics.median(
            (
                run.wall_s
                - sum(
                    seconds
                    for name, ledger in run.ledgers.items()
                    for phase, seconds in ledger.seconds.items()
                    # What the server computes belongs to the machinery.
                    if name != SERVER or phase in {SETUP, SCORING}
                )
            )
            / (run.rounds * len(dataset.parties))
            for run in runs
        ),
    }


def _settings(settings: FdmlSettings, dataset: VerticalDataset, name: str) -> Row:
    return {
        "dataset": dataset.name,
        "model": settings.model,
        "training": name,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "staleness": settings.staleness,
        "repeats": settings.repeats,
    }
