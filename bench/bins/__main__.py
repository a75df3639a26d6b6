"""Bins of columns: what they bring, and what they cost, beside boosted trees in one place.

Held-out rows are drawn anew for each split. Trees are scikit-learn's HistGradientBoostingClassifier
with its defaults, on all parties' columns as they are.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, Several, main, with_progress
from bench.tables import or_dash
from securevfl.benchmarks.in_one_place import one_table
from securevfl.benchmarks.progress import Report
from securevfl.data.features import encoded
from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.data.sources import load
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.losses import probabilities
from securevfl.models.scores import auc
from securevfl.recipe import Preprocessing
from securevfl.reports.tables import Column, Row, seconds, size
from securevfl.training import TrainingResult, train

FATE = "fate-"


class BinsSettings(Settings):
    """Every number of bins on every split; 0 for none.

    Attributes:
        rows: rows to split, if fewer than all.
        held_out: the share of them that is scored.
    """

    dataset: str = "breast_cancer"
    exchange: str = "plain"
    bins: Several[int | Literal["auto"]] = (0, 4, 8, 16, "auto")
    bin_by: Literal["quantile", "width"] = "quantile"
    splits: int = 5
    rows: int | None = None
    held_out: float = 0.2
    max_rounds: int | None = None

    def load(self) -> VerticalDataset[Any]:
        """The data set; FATE's are the files of its examples."""
        if not self.dataset.startswith(FATE):
            return load(self.dataset, data_dir=self.data_dir)
        place = self.data_dir or os.environ.get("SECUREVFL_DATA")
        if place is None:
            raise ConfigError("FATE's sets: give --data-dir, or set SECUREVFL_DATA")
        stem = str(Path(place, "fate", self.dataset.removeprefix(FATE)))
        guest = FileSource("guest", Path(f"{stem}_hetero_guest.csv.gz"), "id", label_column="y")
        host = FileSource("host", Path(f"{stem}_hetero_host.csv.gz"), "id")
        return replace(load_files([guest, host]), name=self.dataset)


def split(dataset: VerticalDataset[Any], settings: BinsSettings, seed: int) -> VerticalDataset[Any]:
    """The same rows, of which others are held out."""
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    order = np.random.default_rng(seed).permutation(len(labels))[: settings.rows]
    test, train_rows = np.split(order, [round(settings.held_out * len(order))])
    train_rows, test = np.sort(train_rows), np.sort(test)
    tables = []
    for table in dataset.parties:
        rows = np.concatenate([table.train, table.test])
        tables.append(PartyTable(table.name, table.columns, rows[train_rows], rows[test]))
    return replace(
        dataset,
        parties=tuple(tables),
        train_labels=labels[train_rows],
        test_labels=labels[test],
        row_digests=row_digests(train_rows.tolist(), dataset.name),
    )


def trees(dataset: VerticalDataset[Any], seed: int) -> dict[str, float]:
    """Boosted trees in one place."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415

    table = one_table(dataset)
    model = HistGradientBoostingClassifier(random_state=seed)
    model.fit(table.train, dataset.train_labels)
    return scores(dataset, model.predict_proba(table.test)[:, 1])


def scores(dataset: VerticalDataset[Any], positive: Any) -> dict[str, float]:  # noqa: ANN401
    """AUC and log loss of probabilities of the second class, shape (test rows,)."""
    from sklearn.metrics import log_loss  # noqa: PLC0415

    labels = dataset.test_labels
    return {"auc": auc(positive[:, None], labels), "log_loss": float(log_loss(labels, positive))}


def of_result(result: TrainingResult) -> dict[str, float]:
    """The same of a trained model, from all parts, whatever the exchange shows."""
    data = result.data
    parts = {name: each.model for name, each in result.outcomes.items()}
    given = {t.name: parts[t.name].predict(t.test) for t in data.parties}
    total = parts[data.label_party].together(given)
    return scores(data, probabilities("logistic", total)[:, 1])


def bins(settings: BinsSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each number of bins: means over splits, and what it is above no bins."""
    whole = settings.load()
    sets = [split(whole, settings, settings.seed + n) for n in range(settings.splits)]
    report("boosted trees in one place")
    boosted = [trees(dataset, settings.seed) for dataset in sets]
    raw: list[dict[str, float]] = []
    for count in settings.bins:
        runs, results, held = [], [], []
        for number, dataset in enumerate(sets):
            given = Preprocessing(bins=count, bin_by=settings.bin_by) if count else None
            made = encoded(dataset, given) if given else dataset
            most = {} if settings.max_rounds is None else {"rounds": settings.max_rounds}
            job = Job.of(
                job={"name": "bins", "eval_every": 0, **most},
                exchange={"scheme": settings.exchange},
            )
            what = f"bins = {count}, split {number}"
            results.append(train(job, made, with_progress(report, what, job.job.rounds)))
            runs.append(of_result(results[-1]))
            held.append([sum(len(t.columns) for t in made.parties), _bytes(made)])
        raw = raw or runs
        costs = [result.costs() for result in results]
        yield {
            "dataset": whole.name,
            "exchange": settings.exchange,
            "rows": len(sets[0].train_labels),
            "bins": count,
            "columns": statistics.median(columns for columns, _ in held),
            "table_bytes": statistics.median(size for _, size in held),
            "rounds": statistics.median(result.rounds for result in results),
            "bytes_sent": statistics.median(cost.bytes_sent for cost in costs),
            "compute_s": statistics.median(cost.compute_s for cost in costs),
            "label_guard_ratio": results[0].label_guard_ratio,
            **{key: _mean(runs, key) for key in ("auc", "log_loss")},
            **{f"trees_{key}": _mean(boosted, key) for key in ("auc", "log_loss")},
            "above_raw": _differences(runs, raw, "auc"),
            "above_trees": _differences(runs, boosted, "auc"),
            "loss_above_raw": _differences(runs, raw, "log_loss"),
            "splits": settings.splits,
            "runs": runs,
        }


def _bytes(dataset: VerticalDataset[Any]) -> int:
    return sum(table.train.nbytes for table in dataset.parties)


def _mean(runs: Sequence[dict[str, float]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _differences(
    runs: Sequence[dict[str, float]], others: Sequence[dict[str, float]], key: str
) -> list[float]:
    """Mean, least and most over splits, each on the same rows."""
    found = [run[key] - other[key] for run, other in zip(runs, others, strict=True)]
    return [statistics.fmean(found), min(found), max(found)]


def _signed(key: str) -> Any:  # noqa: ANN401
    def shown(row: Row) -> str:
        mean, least, most = row[key]
        return f"{mean:+.4f} ({least:+.3f} to {most:+.3f})"

    return shown


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("bins", lambda row: str(row["bins"] or "-")),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("above none", _signed("above_raw")),
    ("above trees", _signed("above_trees")),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("trees'", lambda row: f"{row['trees_log_loss']:.4f}"),
)
COSTS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("exchange", lambda row: str(row["exchange"])),
    ("bins", lambda row: str(row["bins"] or "-")),
    ("columns", lambda row: f"{row['columns']:g}"),
    ("rounds", lambda row: f"{row['rounds']:g}"),
    ("sent", lambda row: size(row["bytes_sent"])),
    ("compute", lambda row: seconds(row["compute_s"])),
    ("tables", lambda row: size(row["table_bytes"])),
    ("guard", lambda row: or_dash(row["label_guard_ratio"], "{:.3f}".format)),
)

SETS = ("breast_cancer", "credit", "fate-breast", "fate-default_credit")

EXPERIMENT = Experiment(
    name="bins",
    about=__doc__ or "",
    runs={
        **{name: Run(60, {"dataset": name}) for name in SETS},
        "a9a": Run(30, {"dataset": "a9a", "bins": (0, 8, "auto"), "splits": 3}),
        "icu2012": Run(120, {"dataset": "icu2012", "bins": (0, 2, 4, "auto"), "splits": 3}),
        "credit-width": Run(20, {"dataset": "credit", "bin_by": "width", "bins": (0, 8)}),
        **{
            f"{name}-{exchange}": Run(
                60, {"dataset": name, "exchange": exchange, "bins": (0, 8), "splits": 1}
            )
            for name, exchange in (
                *((name, "bfv") for name in (*SETS, "icu2012")),
                *((name, "blind") for name in ("credit", "fate-default_credit")),
            )
        },
    },
    quick={"dataset": "breast_cancer", "splits": 1, "max_rounds": 2, "bins": (0, 2)},
    settings=BinsSettings,
    measure=bins,
    columns=COLUMNS,
    tables={"bins-cost": by_columns(*COSTS)},
    below=lambda rows: [("what it costs", COSTS, rows)],
    notes=lambda _: (
        "means over splits, and the least and the most of differences on the same split",
        "tables: all parties' training rows as they are held; guard: the label guard's ratio",
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
