"""How much more than its own model a feature party reads, by the label guard's ratio.

Fixed partitions, all training rows, runs in clear: what the gradients of a homomorphic exchange
tell, up to rounding. The guard's limit rests on this (docs/decisions/0010-label-guard.md).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from securevfl.attacks.leverage import exposure
from securevfl.audit.judging import Finding
from securevfl.audit.measures.labels import read_labels
from securevfl.audit.subject import Subject, guarded_batch_size
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.label_guard import LabelGuardSettings
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.rows import LabelGuardRow


def label_guard(
    settings: LabelGuardSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[LabelGuardRow]:
    """A row for every ratio, on real data: means over seeds."""
    for done, limit in enumerate(settings.ratios):
        report(f"ratio {limit:g}", done, len(settings.ratios))
        size = guarded_batch_size(dataset, limit)
        job = Job.of(job={"batch_size": size, "learning_rate": 0.1})
        subjects = [Subject(job, dataset, seed) for seed in settings.seeds]
        first, party = subjects[0], subjects[0].feature_party
        schedule = first.plan.schedule
        rounds = settings.epochs * schedule.batches
        found = [read_labels(each.record(rounds=rounds), party) for each in subjects]
        table = next(each for each in first.dataset.parties if each.name == party)
        shown = exposure(table.train, schedule, settings.epochs)
        yield {
            "dataset": dataset.name,
            "rows": len(dataset.train_labels),
            "columns": len(table.columns),
            "ratio": shown.leakage_ratio,
            "batch_size": size,
            "epochs": settings.epochs,
            "auc": float(np.mean([each.value for each in found])),
            "auc_std": float(np.std([each.value for each in found])),
            "own_model": found[0].model_alone,
            "top_precision": _mean(found, "top_precision", "value"),
            "own_top_precision": _mean(found, "top_precision", "model_alone"),
            "accuracy": _mean(found, "accuracy", "value"),
            "own_accuracy": _mean(found, "accuracy", "model_alone"),
            "rank_share": shown.rank_share,
            "exposed_rows": shown.exposed_rows,
        }


def _mean(found: Sequence[Finding], metric: str, figure: str) -> float:
    return float(np.mean([each.detail[metric][figure] for each in found]))
