"""Transfer learning for rows of the unlabelled party, by how many rows both parties hold.

Held-out rows are scored by φ = Φ·u_B, from the unlabelled party's columns alone. Beside it: what
that party could do by itself if it had the labels of the overlap, and the label party's own model.
"""

import statistics
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from bench.experiment import DataSettings, Experiment, Run, main
from bench.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report
from securevfl.data.scaling import Scaling
from securevfl.data.tables import VerticalDataset, overlapping
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.reports.tables import Column, Row
from securevfl.training import train

NETWORK_ITERATIONS = 200
PENALTY = 1.0
"""Of the network: with scikit-learn's own it would overfit the few rows in common."""


class OverlapSettings(DataSettings):
    """Every size of the overlap."""

    dataset: str = "credit-swapped"
    overlaps: tuple[float, ...] = (0.01, 0.1, 1.0)
    local_steps: int = 5
    units: int = 64
    alignment: float = 0.001
    rounds: int = 12
    learning_rate: float = 3.0
    repeats: int = 3

    def job(self, part: float) -> Job:
        """The job on a part of the training rows."""
        return Job.of(
            job={
                "name": "overlap",
                "algorithm": "ftl",
                "rounds": self.rounds,
                "local_steps": self.local_steps,
                "batch_size": "full",
                "learning_rate": self.learning_rate,
                "schedule": "inverse-sqrt",
                "eval_every": 1,
                "seed": self.seed,
            },
            ftl={"units": self.units, "alignment": self.alignment, "overlap": part},
        )


def overlap(settings: OverlapSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row per size of the overlap: medians of AUCs over seeds, which also draw its rows.

    `alone_` are models of the unlabelled party's columns on the labels of the overlap: logistic
    regression, and a network with as many units. `label_party_auc` is of a logistic regression on
    the label party's columns and all its rows.
    """
    dataset = settings.load()
    seeds = range(settings.seed, settings.seed + settings.repeats)
    for part in settings.overlaps:
        report(f"overlap {part:g}")
        job = settings.job(part)
        results = [train(job.with_settings(seed=seed), dataset) for seed in seeds]
        alone = [_alone(overlapping(dataset, part, seed), settings.units, seed) for seed in seeds]
        rows = results[0].plan.facts.rows
        aucs = [result.scores[-1].auc for result in results]
        yield {
            "dataset": dataset.name,
            "overlap": rows,
            "own_rows": len(dataset.train_labels) - rows,
            "auc": statistics.median(aucs),
            "best_auc": statistics.median(max(s.auc for s in each.scores) for each in results),
            "alone_auc": statistics.median(logistic for logistic, _ in alone),
            "alone_network_auc": statistics.median(network for _, network in alone),
            "label_party_auc": score_in_one_place(_of_one(dataset, labels=True))[1],
            "aucs": aucs,
        }


def _alone(both: VerticalDataset, units: int, seed: int) -> tuple[float, float]:
    """AUC of the unlabelled party's own models: logistic regression, and a network."""
    own = _of_one(both, labels=False)
    table = own.parties[0]
    scaling = Scaling.fit(table.train)
    network = MLPClassifier(
        (units,),
        activation="tanh",
        alpha=PENALTY,
        solver="lbfgs",
        max_iter=NETWORK_ITERATIONS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # It stops before convergence: further steps overfit.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(scaling.apply(table.train), both.train_labels)
    probabilities = np.asarray(network.predict_proba(scaling.apply(table.test)))[:, 1]
    return score_in_one_place(own)[1], auc(probabilities[:, None], both.test_labels)


def _of_one(dataset: VerticalDataset, *, labels: bool) -> VerticalDataset:
    """The columns of the label party alone, or of the other."""
    kept = (each for each in dataset.parties if (each.name == dataset.label_party) == labels)
    return replace(dataset, parties=tuple(kept))


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: row["dataset"]),
    ("overlap", lambda row: f"{row['overlap']:,}"),
    ("own", lambda row: f"{row['own_rows']:,}"),
    ("FTL", lambda row: f"{row['auc']:.4f}"),
    ("best", lambda row: f"{row['best_auc']:.4f}"),
    ("B, LR", lambda row: f"{row['alone_auc']:.4f}"),
    ("B, network", lambda row: f"{row['alone_network_auc']:.4f}"),
    ("A on A", lambda row: f"{row['label_party_auc']:.4f}"),
)
NOTES = (
    "overlap: rows that both parties hold; own: further rows that only the label party holds",
    "B: the unlabelled party's own models on the labels of the overlap",
    "A on A: the label party's own model, on columns that such rows lack",
)

EXPERIMENT = Experiment(
    name="overlap",
    about=__doc__ or "",
    runs={"credit": Run(120)},
    quick={"dataset": "breast_cancer", "units": 4, "rounds": 2, "overlaps": (0.1, 1), "repeats": 1},
    settings=OverlapSettings,
    measure=overlap,
    columns=COLUMNS,
    notes=lambda _: NOTES,
)

if __name__ == "__main__":
    main(EXPERIMENT)
