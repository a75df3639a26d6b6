"""What transfer learning is for: predictions for rows of which only the unlabelled party knows.

Held-out rows are scored by φ = Φ·u_B, which takes the unlabelled party's columns alone. Beside it
stands what that party could do by itself were it given the labels of the overlap, and what the
label party's own model says of the same rows from columns that it would not have.
"""

import statistics
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from securevfl.arrays import FloatArray, Labels
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.transfer import OverlapSettings
from securevfl.benchmarks.tuning import Tuned, chosen, step_settings
from securevfl.data.scaling import Scaling
from securevfl.data.tables import VerticalDataset, overlapping
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.reports.transfer import OverlapRow
from securevfl.training import train

MAX_ITERATIONS, NETWORK_ITERATIONS = 2000, 200
# A network of few rows: scikit-learn's own penalty would let it learn them by heart.
PENALTY = 1.0


def overlap(
    settings: OverlapSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[OverlapRow]:
    """Run every size of the overlap; yields rows as they are done.

    Args:
        settings: what to run.
        dataset: two parties' data.
        report: told what runs now.
    """
    for part in settings.overlaps:
        job = _job(settings, part)
        tuned = chosen(job, dataset, settings.learning_rate, report)
        report(f"overlap {part:g}")
        yield _row(settings, part, dataset, tuned)


def _job(settings: OverlapSettings, part: float, learning_rate: float | None = None) -> Job:
    return Job.of(
        job={
            "name": "overlap",
            "algorithm": "ftl",
            "rounds": settings.rounds,
            **step_settings(settings.local_steps, "full", learning_rate),
            "schedule": settings.schedule,
            "l2": settings.l2,
            "eval_every": 1,
            "seed": settings.seed,
        },
        ftl={"units": settings.units, "alignment": settings.alignment, "overlap": part},
    )


def _row(
    settings: OverlapSettings, part: float, dataset: VerticalDataset, tuned: Tuned
) -> OverlapRow:
    job, seeds = _job(settings, part, tuned.learning_rate), range(settings.repeats)
    results = [train(job.with_settings(seed=settings.seed + seed), dataset) for seed in seeds]
    alone = [_alone(settings, part, dataset, settings.seed + seed) for seed in seeds]
    rows = results[0].plan.facts.rows
    aucs = [result.scores[-1].auc for result in results]
    return {
        "dataset": dataset.name,
        "overlap": rows,
        "own_rows": len(dataset.train_labels) - rows,
        "local_steps": settings.local_steps,
        "rounds": settings.rounds,
        "alignment": settings.alignment,
        "auc": statistics.median(aucs),
        "best_auc": statistics.median(max(s.auc for s in each.scores) for each in results),
        "alone_auc": statistics.median(logistic for logistic, _ in alone),
        "alone_network_auc": statistics.median(network for _, network in alone),
        "label_party_auc": _label_party(dataset),
        "learning_rate": tuned.learning_rate,
        "learning_rate_chosen": tuned.how,
        "repeats": settings.repeats,
        "aucs": aucs,
    }


def _alone(
    settings: OverlapSettings, part: float, dataset: VerticalDataset, seed: int
) -> tuple[float, float]:
    """AUC of the unlabelled party's own models: logistic regression, and a network."""
    both = overlapping(dataset, part, seed)
    table = next(each for each in both.parties if each.name != both.label_party)
    scaling = Scaling.fit(table.train)
    train_rows, test_rows = scaling.apply(table.train), scaling.apply(table.test)
    network = MLPClassifier(
        (settings.units,),
        activation="tanh",
        alpha=PENALTY,
        solver="lbfgs",
        max_iter=NETWORK_ITERATIONS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # So many steps and no more: what comes after is overfitting.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(train_rows, both.train_labels)
    probabilities = np.asarray(network.predict_proba(test_rows))[:, 1]
    return (
        _logistic(train_rows, both.train_labels, test_rows, both.test_labels),
        auc(probabilities[:, None], both.test_labels),
    )


def _label_party(dataset: VerticalDataset) -> float:
    """AUC of a logistic regression of the label party's columns on all its rows."""
    table = next(each for each in dataset.parties if each.name == dataset.label_party)
    scaling = Scaling.fit(table.train)
    train_rows, test_rows = scaling.apply(table.train), scaling.apply(table.test)
    return _logistic(train_rows, dataset.train_labels, test_rows, dataset.test_labels)


def _logistic(
    train_rows: FloatArray, train_labels: Labels, test_rows: FloatArray, test_labels: Labels
) -> float:
    model = LogisticRegression(max_iter=MAX_ITERATIONS).fit(train_rows, train_labels)
    return auc(np.asarray(model.decision_function(test_rows))[:, None], test_labels)
