"""What do monotone columns cost, and what does the other side read of the columns that are left?

Directions are those that a bank would give without looking: months in arrears raise the risk, a
limit and payments lower it. Runs without them are beside.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import polars as pl

from bench.experiment import DataSettings, Experiment, Run, Several, main
from securevfl.arrays import FloatArray
from securevfl.benchmarks.progress import Report, rounds_done
from securevfl.data.features import fit_recipe
from securevfl.data.tables import PartyTable, VerticalDataset, as_classes
from securevfl.job import Job
from securevfl.models.losses import Logistic
from securevfl.models.scores import auc
from securevfl.recipe import Direction, Preprocessing
from securevfl.reports.tables import Column, Row, size
from securevfl.training import Environment, train

CREDIT: Mapping[str, Direction] = {
    **dict.fromkeys(("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"), "up"),
    **{f"PAY_AMT{month}": "down" for month in range(1, 7)},
    "LIMIT_BAL": "down",
}  # type: ignore[dict-item]
SIZES: Mapping[str, Direction] = {"mean radius": "up", "worst texture": "down"}


class MonotoneSettings(DataSettings):
    """Every exchange, with directions and without.

    Attributes:
        monotone: as in `[preprocess]`.
        rounds: at most.
    """

    dataset: str = "credit"
    monotone: Mapping[str, Literal["up", "down"]] = CREDIT
    exchanges: Several[str] = ("plain", "bfv")
    rounds: int = 100
    repeats: int = 3

    def tables(self, monotone: Mapping[str, Direction]) -> VerticalDataset:
        """The data as a party's own recipe makes it."""
        dataset = self.load()
        tables = tuple(_table(table, self.preprocessing(monotone)) for table in dataset.parties)
        return replace(dataset, parties=tables)

    def job(self, exchange: str, seed: int) -> Job:
        """One job; products of encryption take two round trips with directions."""
        given = {"rounds": self.rounds, "seed": seed, "eval_every": 0, "allow_label_leak": True}
        trips = {"round_trips": 2} if exchange == "bfv" else {}
        return Job.of(job={"name": "monotone", **given}, exchange={"scheme": exchange, **trips})

    def preprocessing(self, monotone: Mapping[str, Direction]) -> Preprocessing:
        """`[preprocess]` of all parties."""
        return Preprocessing(monotone=monotone)


def _table(table: PartyTable, settings: Preprocessing) -> PartyTable:
    train_frame, test_frame = (
        pl.DataFrame(rows, schema=list(table.columns), orient="row")
        for rows in (table.train, table.test)
    )
    rows = np.arange(train_frame.height)
    recipe, _ = fit_recipe(table.name, train_frame, table.columns, rows, settings)
    return replace(
        table,
        columns=recipe.columns,
        train=recipe.apply(train_frame),
        test=recipe.apply(test_frame),
        recipe=recipe,
    )


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
                progress = partial(rounds_done, report, what, settings.rounds)
                environment = Environment(progress=progress)
                runs.append(_run(settings.job(exchange, seed), environment, dataset, signed))
            yield {
                "dataset": dataset.name,
                "parties": len(dataset.parties),
                "exchange": exchange,
                "monotone": dict(settings.monotone) if directed else {},
                "features": sum(len(table.columns) for table in dataset.parties),
                **{key: statistics.median(run[key] for run in runs) for key in runs[0]},
                "runs": runs,
            }


def _run(
    job: Job, environment: Environment, dataset: VerticalDataset, signed: VerticalDataset
) -> dict[str, Any]:
    result = train(job, dataset, environment)
    total = sum(outcome.held_out for outcome in result.outcomes.values())
    assert isinstance(total, np.ndarray)  # noqa: S101
    labels = as_classes(dataset.test_labels)
    weights = {
        t.name: result.outcomes[t.name].model.weights[: len(t.columns), 0] for t in dataset.parties
    }
    against = [
        (weights[table.name] * np.array(table.recipe.signs) < 0).sum()
        for table in signed.parties
        if table.recipe is not None
    ]
    return {
        "auc": auc(total, labels),
        "log_loss": Logistic().value(total, labels),
        "rounds": result.rounds,
        "bytes_sent": result.costs().row()["bytes_sent"],
        "wrong": int(sum(against)),
        "at_zero": int(sum((each == 0).sum() for each in weights.values())),
        "read": _read(dataset, weights),
    }


def _read(dataset: VerticalDataset, weights: Mapping[str, FloatArray]) -> float:
    found = [0.0]
    for table in dataset.parties:
        if table.name != dataset.label_party:
            spread = np.where(table.train.std(axis=0) > 0, table.train.std(axis=0), 1.0)
            scaled = (table.train - table.train.mean(axis=0)) / spread
            predicted = scaled @ weights[table.name]
            found.append(
                float(np.abs(scaled.T @ predicted).max() / len(predicted) / predicted.std())
            )
    return max(found)


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("exchange", lambda row: str(row["exchange"])),
    ("monotone", lambda row: str(len(row["monotone"]) or "-")),
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
    runs={"credit": Run(90)},
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
