"""A job with nothing set beside what tuning by hand reaches in one place, and each party alone.

By hand: scikit-learn's LogisticRegression on the columns of all parties, standardized as parties
do it, with the C of a grid whose score on five folds of the training rows is best. A benchmark may
put the parties' columns side by side; no party does.
"""

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import PositiveInt
from sklearn.model_selection import StratifiedKFold

from bench.experiment import DataSettings, Experiment, Run, main
from bench.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report
from securevfl.benchmarks.tuning import scored_on
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.tables import Column, Row
from securevfl.training import train

GRID = tuple(10.0**power for power in range(-4, 3))
FOLDS = 5


class ByHand(NamedTuple):
    """What one place reaches.

    Attributes:
        score: held-out, with the C that the folds chose.
        best_c: that C.
        usual: held-out, with C = 1.
    """

    score: float
    best_c: float
    usual: float


class DefaultsSettings(DataSettings):
    """A data set among its usual parties; training itself has nothing set but a seed."""

    repeats: PositiveInt = 5


def defaults(settings: DefaultsSettings, report: Report) -> Iterator[dict[str, Any]]:
    """One row: a job with nothing set, tuning by hand in one place, and each party alone.

    `score` is the median, `worst_score` the least of any seed, `usual_score` that of C = 1 in one
    place; `difference` is the median less `tuned_score`.
    """
    yield row_of(settings.load(), settings, report)


def row_of(dataset: VerticalDataset, settings: DefaultsSettings, report: Report) -> dict[str, Any]:
    """The row of a data set."""
    name, results = "auc" if dataset.classes == 2 else "accuracy", []  # noqa: PLR2004
    for repeat in range(settings.repeats):
        report(f"{dataset.name}, run {repeat + 1}", repeat, settings.repeats)
        results.append(train(Job.of(job={"seed": settings.seed + repeat}), dataset))
    report(f"{dataset.name}, tuned in one place")
    by_hand = tuned_by_hand(dataset)
    scores = [getattr(result.scores[-1], name) for result in results]
    return {
        "dataset": dataset.name,
        "rows": len(dataset.train_labels),
        "columns": sum(len(table.columns) for table in dataset.parties),
        "parties": len(dataset.parties),
        "score_name": name,
        "score": statistics.median(scores),
        "worst_score": min(scores),
        "rounds": statistics.median(result.rounds for result in results),
        "tuned_score": by_hand.score,
        "tuned_c": by_hand.best_c,
        "usual_score": by_hand.usual,
        "difference": statistics.median(scores) - by_hand.score,
        "label_party": dataset.label_party,
        "alone": {party: getattr(each.score, name) for party, each in results[0].alone.items()},
        "runs": [
            {
                "seed": result.job.job.seed,
                "score": score,
                "rounds": result.rounds,
                "status": result.status,
            }
            for result, score in zip(results, scores, strict=True)
        ],
    }


def tuned_by_hand(dataset: VerticalDataset) -> ByHand:
    """What tuning C on the training rows reaches on the held-out ones."""
    labels = dataset.train_labels
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(labels, labels)
    parts = [scored_on(dataset, kept, out) for kept, out in folds]

    def on_folds(c: float) -> float:
        return statistics.fmean(score_in_one_place(part, c)[1] for part in parts)

    best = max(GRID, key=on_folds)
    return ByHand(score_in_one_place(dataset, best)[1], best, score_in_one_place(dataset)[1])


def _others_alone(row: Row) -> str:
    own = row["label_party"]
    return ", ".join(f"{score:.4f}" for name, score in row["alone"].items() if name != own)


def _data(row: Row) -> str:
    return str(row["dataset"]) + ("" if row["score_name"] == "auc" else f" ({row['score_name']})")


COLUMNS: tuple[Column[Row], ...] = (
    ("data", _data),
    ("defaults", lambda row: f"{row['score']:.4f}"),
    ("worst", lambda row: f"{row['worst_score']:.4f}"),
    ("tuned", lambda row: f"{row['tuned_score']:.4f}"),
    ("its C", lambda row: f"{row['tuned_c']:g}"),
    ("apart", lambda row: f"{row['difference']:+.4f}"),
    ("own", lambda row: f"{row['alone'][row['label_party']]:.4f}"),
    ("others", _others_alone),
)
NOTES = (
    "AUC, or accuracy where it says so; apart: defaults less tuned",
    "own: the label party alone; others: each other party, were it lent the labels",
)
DATASETS = (
    *("breast_cancer", "digits", "a9a", "credit", "icu2012"),
    *("mfeat-even-odd", "wikipedia-biology"),
)

EXPERIMENT = Experiment(
    name="defaults",
    about=__doc__ or "",
    runs={name: Run(60, {"dataset": name}) for name in DATASETS},
    quick={"dataset": "breast_cancer", "repeats": 1},
    settings=DefaultsSettings,
    measure=defaults,
    columns=COLUMNS,
    notes=lambda _: NOTES,
)

if __name__ == "__main__":
    main(EXPERIMENT)
