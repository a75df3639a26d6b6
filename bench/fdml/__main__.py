"""FDML beside training in one place and on one party's columns (Table 2 of Hu et al., KDD 2019).

Seconds per epoch: *CPU* of this process, which runs all parties and the server one after the other,
and *virtual* on a network, of parties that work in parallel. They count all rounds, and every
program's own order of rows; CPU seconds of the set-up before them (scaled columns, θ⁰, agreement)
stand by themselves. Ratios are medians of trainings in turns. The machinery is CPU time beyond the
parties' own computation: channel, codec, server and ledger, for one iteration of one party.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import PositiveInt

from bench.documents import by_columns
from bench.experiment import DataSettings, Experiment, Run, Several, main
from bench.tables import or_dash
from bench.timed import Timed, timed_rounds
from securevfl.benchmarks.in_one_place import InOnePlace, train_in_one_place
from securevfl.benchmarks.progress import Report
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.vertical.fdml import SERVER
from securevfl.reports.tables import Column, Row, seconds
from securevfl.runtime.costs import SCORING, SETUP

Model = Literal["lr", "nn"]

ONE_PLACE, SUM_IN_ONE_PLACE = "one place", "sum in one place"
LEARNING_RATE = 3.0
L2 = {"lr": 0.0, "nn": 1e-4}


class FdmlExperimentSettings(DataSettings):
    """Every model by fdml, in one place, and by each party alone."""

    dataset: str = "a9a"
    models: Several[Model] = ("lr", "nn")
    epochs: PositiveInt = 20
    hidden: PositiveInt = 32
    batch_size: PositiveInt = 100
    batches_per_message: PositiveInt = 1
    repeats: PositiveInt = 3


def fdml(settings: FdmlExperimentSettings, report: Report) -> Iterator[dict[str, Any]]:
    """For each model a row for each party's own columns, one for one place, one for fdml.

    In one place a network spans all columns, as in the paper. The sum of the parties' networks in
    one place, which fdml at τ = 0 equals by construction, has a row of its own. `machinery_s` is
    CPU time of an iteration of one party beside the parties' computation.
    """
    dataset = settings.load()
    # With the constant column, the second party has 57 of a9a's columns, as in the paper.
    dataset = replace(dataset, label_party=dataset.parties[1].name)
    for model in settings.models:
        yield from _rows(settings, dataset, model, report)


def _rows(
    settings: FdmlExperimentSettings, dataset: VerticalDataset, model: Model, report: Report
) -> Iterator[dict[str, Any]]:
    rows = len(dataset.train_labels)
    seeds = range(settings.seed, settings.seed + settings.repeats)
    jobs = [_job(settings, model, rows, seed) for seed in seeds]

    def row(
        training: str, scores: Iterable[tuple[float, float]], seconds: Iterable[tuple[float, float]]
    ) -> dict[str, Any]:
        aucs, losses = map(list, zip(*scores, strict=True))
        cpu, wall = (statistics.median(each) for each in zip(*seconds, strict=True))
        return {
            "dataset": dataset.name,
            "model": model,
            "training": training,
            "learning_rate": LEARNING_RATE,
            "batch_size": settings.batch_size,
            "batches_per_message": settings.batches_per_message,
            "auc": statistics.median(aucs),
            "aucs": aucs,
            "log_loss": statistics.median(losses),
            "log_losses": losses,
            "cpu_s_per_epoch": cpu / settings.epochs,
            "wall_s_per_epoch": wall / settings.epochs,
            "virtual_s_per_epoch": None,
            "machinery_s": None,
        }

    places: dict[str, dict[str, Any]] = {
        **{f"{table.name} alone": {"parties": [table.name]} for table in dataset.parties},
        ONE_PLACE: {"one_model": True},
        **({SUM_IN_ONE_PLACE: {}} if model == "nn" else {}),
    }
    found: dict[str, list[InOnePlace]] = {name: [] for name in places}
    timed: list[Timed] = []
    for job in jobs:  # in turns, since other work on the machine slows all of them
        for name, place in places.items():
            report(f"{model}, {name}")
            found[name].append(train_in_one_place(job, dataset, **place))
        report(f"{model}, fdml")
        timed.append(timed_rounds(job, dataset))
    for name, runs in found.items():
        seconds_of = [(each.cpu_s, each.training_s) for each in runs]
        yield row(name, ((each.auc, each.loss) for each in runs), seconds_of)
    pairs = [*zip(timed, found[ONE_PLACE], strict=True)]
    virtual = statistics.median(each.result.costs().total_s for each in timed)
    yield {
        **row(
            "fdml",
            ((each.result.clear_auc, each.result.clear_loss) for each in timed),
            [(each.cpu_s, each.wall_s) for each in timed],
        ),
        "setup_s": statistics.median(each.setup_s for each in timed),
        "virtual_s_per_epoch": virtual / settings.epochs,
        "machinery_s": statistics.median(_machinery(each, len(dataset.parties)) for each in timed),
        "ratio_to_one_place": statistics.median(run.cpu_s / one.cpu_s for run, one in pairs),
        "wall_ratio": statistics.median(run.wall_s / one.training_s for run, one in pairs),
    }


def _machinery(timed: Timed, parties: int) -> float:
    computed = sum(
        seconds
        for name, ledger in timed.result.ledgers.items()
        for phase, seconds in ledger.seconds.items()
        # What the server computes belongs to the machinery.
        if name != SERVER and phase not in {SETUP, SCORING}
    )
    return float(timed.cpu_s - computed) / (timed.result.rounds * parties)


def _job(settings: FdmlExperimentSettings, model: Model, rows: int, seed: int) -> Job:
    network = {"model": "mlp", "hidden": [settings.hidden], "activation": "tanh"}
    together = settings.batches_per_message
    return Job.of(
        job={
            "name": "fdml",
            "algorithm": "fdml",
            "rounds": settings.epochs * (rows // settings.batch_size),
            "batch_size": settings.batch_size,
            "learning_rate": LEARNING_RATE,
            "l2": L2[model],
            "sampling": "shuffle",
            "seed": seed,
            **({"start": "zero"} if model == "lr" else network),
        },
        network={"preset": "lan"},
        fdml={"staleness": together - 1, "batches_per_message": together},
    )


COLUMNS: tuple[Column[Row], ...] = (
    ("training", lambda row: f"{row['model']}, {row['training']}"),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("CPU", lambda row: seconds(row["cpu_s_per_epoch"])),
    ("virtual", lambda row: or_dash(row["virtual_s_per_epoch"], seconds)),
    ("machinery", lambda row: or_dash(row["machinery_s"], seconds)),
    ("set-up", lambda row: or_dash(row.get("setup_s"), seconds)),
)
MESSAGES: tuple[Column[Row], ...] = (
    ("S", lambda row: f"{row['batch_size']:,}"),
    ("per message", lambda row: str(row["batches_per_message"])),
    *COLUMNS[1:4],
    ("to one place", lambda row: f"{row['ratio_to_one_place']:.2f} x"),
    *COLUMNS[4:],
)


def notes(rows: Sequence[Row]) -> list[str]:
    """How many times as long as one place fdml takes, a line per model."""
    return [
        f"{row['model']}, fdml: {row['ratio_to_one_place']:.2f} x one place by CPU, "
        f"{row['wall_ratio']:.2f} x on the wall clock"
        for row in rows
        if row["training"] == "fdml"
    ]


EXPERIMENT = Experiment(
    name="fdml",
    about="FDML beside training in one place and by each party alone (FDML, Table 2).",
    runs={
        "fdml": Run(180),
        **{
            f"messages-{several}": Run(20, {"models": "lr", "batches_per_message": several})
            for several in (1, 8, 16, 32)
        },
        "large-batch": Run(20, {"models": "lr", "batch_size": 10_000, "repeats": 5}),
    },
    quick={"dataset": "breast_cancer", "epochs": 1, "hidden": 2, "repeats": 1},
    settings=FdmlExperimentSettings,
    measure=fdml,
    columns=COLUMNS,
    notes=notes,
    tables={
        "messages": lambda rows: by_columns(*MESSAGES)(
            [row for row in rows if row["training"] == "fdml"]
        )
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
