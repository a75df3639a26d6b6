"""Rounds to an AUC of networks with a common head: Table 1 of FedBCD, MNIST-CNN.

Held-out rows are scored after every round, only some of them: scoring all takes longer than
training.
"""

import statistics
from collections.abc import Iterator
from typing import Any

from bench.experiment import DataSettings, Experiment, Run, main
from bench.tables import RATE
from securevfl.benchmarks.grid import Grid
from securevfl.benchmarks.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report
from securevfl.benchmarks.tradeoff import tradeoff
from securevfl.data.tables import some_test_rows
from securevfl.job import Job
from securevfl.reports.tables import Column, Row, rounds_text, seconds

PAPER = {
    ("fedsgd", 1, 0.997): 46,
    ("fedbcd-p", 3, 0.997): 16,
    ("fedbcd-p", 5, 0.997): 8,
    ("fedbcd-s", 1, 0.997): 48,
    ("fedbcd-s", 3, 0.997): 15,
    ("fedbcd-s", 5, 0.997): 9,
}
"""Rounds to an AUC of 99.7 % on a binary task of MNIST halves that the paper does not name."""


class NetworksSettings(DataSettings):
    """Algorithms at one Q over networks with a head at the label party."""

    dataset: str = "mnist-3v8"
    algorithms: tuple[str, ...] = ("fedbcd-p",)
    local_steps: int = 1
    model: str = "cnn"
    representation: int = 256
    learning_rate: float = 0.3
    max_rounds: int = 30
    target_aucs: tuple[float, ...] = (0.98, 0.99, 0.997)
    scored_rows: int = 400
    repeats: int = 1

    @property
    def job(self) -> Job:
        """The job in clear."""
        return Job.of(
            job={
                "name": "networks",
                "head": "logistic",
                "representation": self.representation,
                "model": self.model,
                **({"channels": (64, 64), "image_width": 28} if self.model == "cnn" else {}),
                "precision": "single",
                "local_steps": self.local_steps,
                "rounds": self.max_rounds,
                "batch_size": 256,
                "learning_rate": self.learning_rate,
                "schedule": "inverse-sqrt",
                "eval_every": 1,
                "seed": self.seed,
            }
        )


def networks(settings: NetworksSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row per target, as `bench tradeoff` has it; `paper_rounds` where the paper has them.

    `linear_auc` is of a logistic regression on all columns in one place and all held-out rows, of
    which training is scored on `scored_rows`.
    """
    dataset = settings.load()
    _, linear_auc = score_in_one_place(dataset)
    scored = some_test_rows(dataset, settings.scored_rows)
    grid = Grid(settings.job, {"algorithm": settings.algorithms}, lambda _: scored)
    for row in tradeoff(grid, settings.target_aucs, settings.repeats, report):
        of_paper = settings.model == "cnn" and dataset.name.startswith("mnist")
        key = row["algorithm"], int(row["local_steps"]), row["target_auc"]
        yield {
            **row,
            "most_rounds": max(run["rounds"] for run in row["runs"]),
            "paper_rounds": PAPER.get(key) if of_paper else None,
            "linear_auc": linear_auc,
            "scored_rows": len(scored.test_labels),
            "wall_s_per_round": statistics.median(
                run["wall_s"] / run["curve"][-1]["rounds"] for run in row["runs"]
            ),
        }


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: row["dataset"]),
    ("AUC", lambda row: f"{row['target_auc']:g}"),
    ("algorithm", lambda row: row["algorithm"]),
    ("Q", lambda row: str(row["local_steps"])),
    RATE,
    ("rounds", rounds_text),
    ("most", lambda row: str(row["most_rounds"])),
    ("paper", lambda row: str(row["paper_rounds"] or "-")),
    ("best AUC", lambda row: f"{row['best_auc']:.4f}"),
    ("wall a round", lambda row: seconds(row["wall_s_per_round"])),
)

RUNS = {
    f"3v8-{name}-0.3": Run(
        300, {"algorithms": (name[:8],), "local_steps": int(name[9:] or 1), "max_rounds": rounds}
    )
    for name, rounds in (
        ("fedbcd-p-3", 30),
        ("fedbcd-p-5", 30),
        ("fedbcd-s-1", 60),
        ("fedbcd-s-3", 30),
        ("fedbcd-s-5", 30),
    )
}

EXPERIMENT = Experiment(
    name="networks",
    about=__doc__ or "",
    runs={
        **RUNS,
        "3v8-fedsgd-0.3": Run(300, {"algorithms": ("fedsgd",), "max_rounds": 60}),
        "3v8-fedbcd-p-5-0.1": Run(500, {"local_steps": 5, "learning_rate": 0.1, "max_rounds": 24}),
        "1v7": Run(
            300,
            {
                "dataset": "mnist-1v7",
                "algorithms": ("fedsgd", "fedbcd-p"),
                "local_steps": 5,
                "learning_rate": 0.1,
                "max_rounds": 8,
                "target_aucs": (0.997, 0.999),
            },
        ),
    },
    quick={"dataset": "breast_cancer", "model": "mlp", "representation": 4, "max_rounds": 2},
    settings=NetworksSettings,
    measure=networks,
    columns=COLUMNS,
    notes=lambda rows: (
        f"a linear model on all columns in one place: AUC {rows[0]['linear_auc']:.4f}",
        *(() if all(row["reached_target"] for row in rows) else ("* target not reached",)),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
