"""What do batches reveal about labels, beyond what a feature party's own models predict?

A batch of S rows reveals P numbers about its labels. To an attacker that knows nothing else they
are worth a squared separation of ρ = P/(S·v), v = π(1 − π) with π the share of the rarest class;
the batches of a person add up. The first row is the full batch, which reveals what a model of one's
own is fitted to. Runs are in clear, where gradients are those of a homomorphic exchange up to
rounding. Beside each stands the bound: what an attacker that knew all predictions would read
(`labels_from_sums`).

The label guard's limit rests on this (docs/decisions/0016-label-guard-by-person.md).
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from bench.documents import by_columns
from bench.experiment import DataSettings, Experiment, Run, main
from bench.label_guard.labels_from_sums import labels_from_sums
from bench.label_guard.planted import Planted, planted
from securevfl.arrays import IntArray
from securevfl.attacks.row_spaces import LEVERAGE_ONE, RowSpace, distinct
from securevfl.auditing.figures import label_finding, own_models
from securevfl.auditing.judging import ACCURACY, AUC, TOP_PRECISION, TRUE_POSITIVES, Finding, Metric
from securevfl.auditing.measures.labels import read_labels
from securevfl.auditing.subject import Recording, Subject, table_of
from securevfl.benchmarks.progress import Report, silent
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.tables import Column, Row

LEARNING_RATE = 1.0
METRICS = {
    "auc": AUC,
    "top_precision": TOP_PRECISION,
    "true_positives": TRUE_POSITIVES,
    "accuracy": ACCURACY,
}


class LabelGuardSettings(DataSettings):
    """The full batch, and every ρ with the smallest batches that keep within it; means of seeds.

    `planted` replaces the data set by made data; `sampling` "shuffle" draws another partition every
    epoch.
    """

    planted: Planted | None = None
    ratios: tuple[PositiveFloat, ...] = (1 / 200, 1 / 100, 1 / 50, 1 / 20, 1 / 10, 1 / 4, 1 / 2)
    epochs: PositiveInt = 3
    sampling: Literal["partition", "shuffle"] = "partition"
    repeats: PositiveInt = 1

    @property
    def data(self) -> VerticalDataset:
        """The made data, or the data set."""
        return self.load() if self.planted is None else planted(self.planted, self.seed)


def label_guard(settings: LabelGuardSettings, report: Report = silent) -> Iterator[dict[str, Any]]:
    """A row for the full batch and for every ratio that leaves two batches; means over seeds.

    `own_` is the best model of a feature party's columns, figure by figure; `bound_` an attacker
    that knows all predictions as well; `rarest` the share of the rarest class.
    """
    dataset = settings.data
    party = Subject(Job.of(), dataset, 0).feature_party
    columns = len(table_of(dataset, party).columns)
    rows = len(dataset.train_labels)
    shares = np.bincount(dataset.train_labels, minlength=dataset.classes) / rows
    spread = float(np.min(shares * (1 - shares)))
    seeds = range(settings.seed, settings.seed + settings.repeats)
    visits = settings.epochs if settings.sampling == "shuffle" else 1
    sizes = [ceil(visits * columns / (ratio * spread)) for ratio in settings.ratios]
    kept = [rows, *(size for size in sizes if columns < size <= rows // 2)]
    for done, size in enumerate(kept):
        report(f"S = {size}", done, len(kept))
        runs = [_run(settings, dataset, size, seed) for seed in seeds]
        read = [[read_labels(run, party)] for run in runs]
        shown = [_shown(run, party) for run in runs]
        bounds = [_bounds(run, party, each) for run, each in zip(runs, shown, strict=True)]
        yield {
            "dataset": dataset.name,
            "rows": rows,
            "columns": columns,
            "rarest": float(shares.min()),
            "ratio": (visits if size < rows else 1) * columns / (size * spread),
            "batch_size": size,
            "rounds": runs[0].result.rounds,
            **{
                f"{whose}{name}": figure
                for name, metric in METRICS.items()
                for whose, figure in (
                    ("", _mean(read, metric)),
                    # The same for all seeds and attacks.
                    ("own_", float(read[0][0].detail[metric.name]["model_alone"])),
                    ("bound_", _mean(bounds, metric)),
                )
            },
            "auc_std": float(np.std([each.value for (each,) in read])),
            "exposed_rows": _exposed(shown[0]),
        }


def _run(settings: LabelGuardSettings, dataset: VerticalDataset, size: int, seed: int) -> Recording:
    """The job as it is with nothing set where the batch is full; gradient steps on others."""
    rows = len(dataset.train_labels)
    if size == rows:
        return Subject(Job.of(), dataset, seed).record()
    job = Job.of(
        job={
            "batch_size": size,
            "local_steps": 1,
            "learning_rate": LEARNING_RATE,
            "sampling": settings.sampling,
        }
    )
    return Subject(job, dataset, seed).record(rounds=settings.epochs * (rows // size))


def _shown(run: Recording, party: str) -> list[tuple[IntArray, RowSpace]]:
    """The distinct batches of a run, and what a party's columns see of each."""
    inputs = run.adversary(party).inputs
    return [(rows, RowSpace.of(inputs[rows])) for rows in distinct(run.batches)]


def _bounds(
    run: Recording, party: str, shown: Sequence[tuple[IntArray, RowSpace]]
) -> list[Finding]:
    """What label sums tell, from each of the attacker's own models."""
    labels = run.dataset.train_labels
    alone = own_models(run.adversary(party).inputs, labels)
    count = alone[0].probabilities.shape[1]
    classes = np.arange(count) if count > 1 else [1]
    truth = (labels[:, None] == classes).astype(np.float64)
    sums = [space.basis.T @ truth[rows] for rows, space in shown]
    return [
        label_finding(labels_from_sums(sums, shown, model.probabilities), labels, alone, {})
        for model in alone
    ]


def _exposed(shown: Sequence[tuple[IntArray, RowSpace]]) -> int:
    """Rows of leverage 1 in some batch, whose residual shows as it is."""
    exposed = [rows[space.leverages > LEVERAGE_ONE] for rows, space in shown]
    return len(np.unique(np.concatenate(exposed)))


def _mean(seeds: Sequence[Sequence[Finding]], metric: Metric) -> float:
    """Over the seeds, the most that any of a seed's attacks reads."""
    most = [max(each.detail[metric.name]["value"] for each in found) for found in seeds]
    return float(np.mean(most))


def _times(row: Row, figure: str) -> str:
    """The attack's and the bound's over the own model's."""
    own = row[f"own_{figure}"]
    if not own:
        return "-"
    return f"x{row[figure] / own:.2f} {row[f'bound_{figure}'] / own:.2f}"


COLUMNS: tuple[Column[Row], ...] = (
    ("ratio", lambda row: f"{row['ratio']:.4f}"),
    ("S", lambda row: str(row["batch_size"])),
    ("rounds", lambda row: str(row["rounds"])),
    ("own AUC", lambda row: f"{row['own_auc']:.4f}"),
    ("more", lambda row: f"{row['auc'] - row['own_auc']:+.4f}"),
    ("bound", lambda row: f"{row['bound_auc'] - row['own_auc']:+.4f}"),
    ("top 1 %", lambda row: _times(row, "top_precision")),
    ("1 % FPR", lambda row: _times(row, "true_positives")),
    ("leverage 1", lambda row: str(row["exposed_rows"])),
)

EXPERIMENT = Experiment(
    name="label_guard",
    about=__doc__ or "",
    runs={
        "planted-50": Run(40, {"planted": Planted(0.5, 36_000, columns=10, signal=0)}),
        "planted-12": Run(40, {"planted": Planted(0.12, 36_000, columns=27)}),
        "planted-05": Run(40, {"planted": Planted(0.05, 36_000, columns=40, kind="one-hot")}),
        "planted-01": Run(40, {"planted": Planted(0.01, 36_000, columns=10, kind="heavy")}),
        "credit": Run(60, {"dataset": "credit"}),
        "icu2012": Run(60, {"dataset": "icu2012"}),
        "a9a": Run(120, {"dataset": "a9a"}),
    },
    quick={"planted": Planted(0.12, 4_000, columns=10), "ratios": (0.5,), "epochs": 1},
    settings=LabelGuardSettings,
    measure=label_guard,
    columns=COLUMNS,
    tables={
        "label_guard": by_columns(
            ("data", lambda row: f"{row['dataset']}, P = {row['columns']}"), *COLUMNS
        )
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
