"""What do monotone columns cost, and what does the other side read of the columns that are left?

Directions are those that a bank would give without looking: months in arrears raise the risk, a
limit and payments lower it. Runs without them are beside.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from bench.experiment import DataSettings, Experiment, Run, Several, main, with_progress
from securevfl.arrays import FloatArray
from securevfl.benchmarks.progress import Report
from securevfl.data.scaling import Scaling
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.models.losses import Logistic
from securevfl.models.scores import auc
from securevfl.recipe import Direction, Preprocessing
from securevfl.reports.tables import Column, Row, size
from securevfl.sparse import dense
from securevfl.training import Environment, train

CREDIT: Mapping[str, Direction] = {
    **dict.fromkeys(("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"), "up"),
    **{f"PAY_AMT{month}": "down" for month in range(1, 7)},
    "LIMIT_BAL": "down",
}
SIZES: Mapping[str, Direction] = {"mean radius": "up", "worst texture": "down"}


class MonotoneSettings(DataSettings):
    """Every exchange, with directions and without.

    Attributes:
        monotone: as in `[preprocess]`.
        bins: likewise.
        rounds: at most.
    """

    dataset: str = "credit"
    monotone: Mapping[str, Literal["up", "down"]] = CREDIT
    bins: int | None = None
    exchanges: Several[str] = ("plain", "bfv")
    rounds: int = 100
    repeats: int = 3

    def tables(self, monotone: Mapping[str, Direction]) -> VerticalDataset[Any]:
        """The data as the parties' recipes make them."""
        preprocess = Preprocessing(monotone=monotone, bins=self.bins)
        return load(
            self.dataset, parties=self.parties, data_dir=self.data_dir, preprocess=preprocess
        )

    def job(self, exchange: str, seed: int) -> Job:
        """One job; products of encryption take two round trips with directions."""
        given = {"rounds": self.rounds, "seed": seed, "eval_every": 0, "allow_label_leak": True}
        trips = {"round_trips": 2} if exchange == "bfv" else {}
        return Job.of(job={"name": "monotone", **given}, exchange={"scheme": exchange, **trips})


def monotone(settings: MonotoneSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each exchange, with directions and without; medians of seeds.

    `wrong` are features whose weight has the sign that its direction excludes, `at_zero` those of
    weight 0, and `read` is the largest correlation, over feature parties and their features, of a
    feature with its party's predictions of the training rows.
    """
    signed = settings.tables(settings.monotone)
    for exchange in settings.exchanges:
        for directed in (False, True):
            dataset = signed if directed else settings.tables({})
            runs = []
            for seed in range(settings.seed, settings.seed + settings.repeats):
                what = f"{exchange}, seed {seed}"
                environment = with_progress(report, what, settings.rounds)
                runs.append(_run(settings.job(exchange, seed), environment, dataset, signed))
            yield {
                "dataset": dataset.name,
                "parties": len(dataset.parties),
                "exchange": exchange,
                "monotone": dict(settings.monotone) if directed else {},
                "bins": settings.bins,
                "features": sum(len(table.columns) for table in dataset.parties),
                **{key: statistics.median(run[key] for run in runs) for key in runs[0]},
                "runs": runs,
            }


def _run(
    job: Job, environment: Environment, dataset: VerticalDataset[Any], signed: VerticalDataset[Any]
) -> dict[str, Any]:
    result = train(job, dataset, environment)
    total = sum(outcome.held_out for outcome in result.outcomes.values())
    assert isinstance(total, np.ndarray)  # noqa: S101
    labels = as_classes(dataset.test_labels)
    weights = {
        t.name: result.outcomes[t.name].model.weights[: len(t.columns), 0] for t in dataset.parties
    }
    against = [(weights[table.name] * np.array(table.signs) < 0).sum() for table in signed.parties]
    return {
        "auc": auc(total, labels),
        "log_loss": Logistic().value(total, labels),
        "rounds": result.rounds,
        "bytes_sent": result.costs().row()["bytes_sent"],
        "wrong": int(sum(against)),
        "at_zero": int(sum((each == 0).sum() for each in weights.values())),
        "read": _read(dataset, weights),
    }


def _read(dataset: VerticalDataset[Any], weights: Mapping[str, FloatArray]) -> float:
    found = [0.0]
    for table in dataset.parties:
        if table.name != dataset.label_party:
            scaled = Scaling.fit(table.train).apply(dense(table.train))
            predicted = scaled @ weights[table.name]
            found.append(
                float(np.abs(scaled.T @ predicted).max() / len(predicted) / predicted.std())
            )
    return max(found)


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("exchange", lambda row: str(row["exchange"])),
    ("monotone", lambda row: str(len(row["monotone"]) or "-")),
    ("bins", lambda row: str(row["bins"] or "-")),
    ("features", lambda row: str(row["features"])),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("rounds", lambda row: f"{row['rounds']:g}"),
    ("sent", lambda row: size(row["bytes_sent"])),
    ("wrong", lambda row: f"{row['wrong']:g}"),
    ("at 0", lambda row: f"{row['at_zero']:g}"),
    ("read", lambda row: f"{row['read']:.3f}"),
)

EXPERIMENT = Experiment(
    name="monotone",
    about=__doc__ or "",
    runs={"credit": Run(30), "credit-bins": Run(120, {"bins": 8})},
    quick={
        "dataset": "breast_cancer",
        "monotone": SIZES,
        "exchanges": ("plain",),
        "rounds": 3,
        "repeats": 1,
    },
    settings=MonotoneSettings,
    measure=monotone,
    columns=COLUMNS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
