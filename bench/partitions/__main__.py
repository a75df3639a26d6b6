"""Random trees without labels: do their leaves bring interactions within a party that pay?

Each party draws trees on its own columns: a random column, a threshold at a random quantile of the
training rows in the node. Leaves are 0/1 columns beside raw ones and eight bins. Models are
scikit-learn's logistic regressions in one place with the L2 penalty 1/N, the optimum that exact
steps reach; boosted trees are its HistGradientBoostingClassifier with its defaults.
"""

import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench.bins.__main__ import FATE, BinsSettings
from bench.documents import Cells
from bench.experiment import Experiment, Run, Settings, main
from bench.partitions.r_tables import TABLES, r_table
from bench.tables import or_dash
from securevfl.arrays import FloatArray, IntArray
from securevfl.benchmarks.progress import Report
from securevfl.data.features import fit_recipe
from securevfl.models.scores import auc
from securevfl.recipe import Preprocessing, frame_of
from securevfl.reports.tables import Column, Row

if TYPE_CHECKING:
    import polars as pl

R = "r-"
PLANTED = "planted"
TRIES = 10
Halves = tuple[NDArray[Any], NDArray[Any]]
"""Columns of training and of held-out rows."""
Form = tuple[Literal["standardized", "by trees"], int, int]
ALL: tuple[Form, ...] = tuple(product(("standardized", "by trees"), (10, 30, 100), (2, 3, 4)))


class PartitionsSettings(Settings):
    """Every form of leaves, on every split.

    Attributes:
        dataset: one of bench.bins, `r-` and one of `r_tables`, or `planted`.
        forms: the scale of leaves, how many trees each party has, and their depth. Leaves are
            standardized as all other columns, or 0/1 divided by the root of the number of trees,
            so that the penalty on what they add does not fall with it.
        rows: rows to split, if fewer than all.
        held_out: the share of rows that is scored.
        whole_people: all rows of a person are on the same side.
    """

    dataset: str = "breast_cancer"
    bins: int = 8
    forms: tuple[Form, ...] = ALL
    splits: int = 1
    rows: int | None = None
    held_out: float = 0.2
    whole_people: bool = True

    def load(self) -> "tuple[list[pl.DataFrame], IntArray, IntArray]":
        """The parties' columns, and labels and whose rows these are, both of shape (rows,)."""
        if self.dataset.startswith(R):
            return r_table(self.dataset.removeprefix(R))
        if self.dataset == PLANTED:
            return planted(self.seed)
        whole = BinsSettings(dataset=self.dataset, data_dir=self.data_dir).load()
        frames = [
            frame_of(np.concatenate([table.train, table.test]), table.columns)
            for table in whole.parties
        ]
        labels = np.concatenate([whole.train_labels, whole.test_labels])
        return frames, labels, np.arange(len(labels))


def planted(seed: int, rows: int = 6000) -> "tuple[list[pl.DataFrame], IntArray, IntArray]":
    """Lines in all eight columns of two parties, and at each the sign of a product of two."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((2, rows, 4))
    score = values.sum(axis=(0, 2)) / 3 + np.sign(values[:, :, 0] * values[:, :, 1]).sum(axis=0) / 2
    labels = generator.random(rows) < 1 / (1 + np.exp(-score))
    frames = [frame_of(each, ("a", "b", "c", "d")) for each in values]
    return frames, labels.astype(np.int64), np.arange(rows)


def split(groups: IntArray, settings: PartitionsSettings, seed: int) -> list[IntArray]:
    """Training and held-out rows."""
    if not settings.whole_people:
        groups = np.arange(len(groups))
    names, group = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    if settings.rows:
        order = order[: round(settings.rows * len(names) / len(groups))]
    test, train = np.split(order, [round(settings.held_out * len(order))])
    return [np.flatnonzero(np.isin(group, side)) for side in (train, test)]


def encoded(frame: "pl.DataFrame", rows: list[IntArray], bins: int | None) -> Halves:
    """A party's columns by a recipe fitted to its training rows."""
    recipe, _ = fit_recipe("party", frame, frame.columns, rows[0], Preprocessing(bins=bins))
    table = recipe.apply(frame)
    return np.asarray(table[rows[0]]), np.asarray(table[rows[1]])


def leaves(columns: Halves, depth: int, generator: np.random.Generator) -> list[NDArray[np.bool_]]:
    """Membership in the leaves of one random tree, for training and held-out rows.

    No leaf has less than a hundredth of the training rows, nor less than 10, as rare categories
    have none.
    """
    least = max(10, len(columns[0]) / 100)
    nodes = [[np.ones(len(half), np.bool_) for half in columns]]
    for _ in range(depth):
        nodes = [part for node in nodes for part in _parted(columns, node, least, generator)]
    return [np.column_stack(half) for half in zip(*nodes, strict=True)]


def _parted(
    columns: Halves, node: list[NDArray[np.bool_]], least: float, generator: np.random.Generator
) -> list[list[NDArray[np.bool_]]]:
    for _ in range(TRIES):
        column = generator.integers(columns[0].shape[1])
        inside = columns[0][node[0], column]
        edge = np.quantile(inside, generator.random(), method="higher")
        above = int((inside >= edge).sum())
        if least <= above <= len(inside) - least:
            sides = [half[:, column] >= edge for half in columns]
            return [
                [rows & ~side for rows, side in zip(node, sides, strict=True)],
                [rows & side for rows, side in zip(node, sides, strict=True)],
            ]
    return [node]


def standardized(parts: list[Halves]) -> Halves:
    """All columns side by side, by the moments of the training rows, in single precision."""
    train, test = (np.hstack(half) for half in zip(*parts, strict=True))
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale[scale == 0] = 1
    return ((train - mean) / scale).astype(np.float32), ((test - mean) / scale).astype(np.float32)


def beside(columns: Halves, drawn: list[list[NDArray[np.bool_]]], scale: str, trees: int) -> Halves:
    """Standardized columns and those of leaves."""
    found = [np.hstack(half).astype(np.float32) for half in zip(*drawn, strict=True)]
    added = standardized([(found[0], found[1])])
    if scale == "by trees":
        mean = found[0].mean(axis=0)
        added = (found[0] - mean) / np.sqrt(trees), (found[1] - mean) / np.sqrt(trees)
    return np.hstack([columns[0], added[0]]), np.hstack([columns[1], added[1]])


def logistic(columns: Halves, labels: list[IntArray]) -> dict[str, float]:
    """A logistic regression; C = 1 is the L2 penalty 1/N of a mean loss."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    train, test = columns
    model = LogisticRegression(C=1, max_iter=1000).fit(train, labels[0])
    return _scores(model.predict_proba(test)[:, 1], labels[1]) | {"columns": train.shape[1]}


def boosted(parts: list[Halves], labels: list[IntArray], seed: int) -> dict[str, float]:
    """Boosted trees on all raw columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415

    train, test = (np.hstack(half) for half in zip(*parts, strict=True))
    model = HistGradientBoostingClassifier(random_state=seed).fit(train, labels[0])
    return _scores(model.predict_proba(test)[:, 1], labels[1])


def _scores(positive: FloatArray, labels: IntArray) -> dict[str, float]:
    from sklearn.metrics import log_loss  # noqa: PLC0415

    return {"auc": auc(positive[:, None], labels), "log_loss": float(log_loss(labels, positive))}


def partitions(settings: PartitionsSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each model: means over splits, and differences from bins alone on the same rows."""
    frames, labels, groups = settings.load()
    runs: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    train_rows = 0
    for number in range(settings.splits):
        rows = split(groups, settings, settings.seed + number)
        train_rows = len(rows[0])
        ends = [labels[each] for each in rows]
        raw = [encoded(frame, rows, None) for frame in frames]
        binned = standardized([encoded(frame, rows, settings.bins) for frame in frames])
        report(f"{settings.dataset}, split {number}")
        found = {
            ("raw", 0, 0): logistic(standardized(raw), ends),
            ("bins", 0, 0): logistic(binned, ends),
            ("boosted trees", 0, 0): boosted(raw, ends, settings.seed),
        }
        for depth in sorted({depth for _, _, depth in settings.forms}):
            # Fewer trees are the first of many.
            drawn: list[list[NDArray[np.bool_]]] = []
            generator = np.random.default_rng([settings.seed, number, depth])
            for scale, trees, of in sorted(settings.forms, key=lambda form: form[1]):
                if of == depth:
                    while len(drawn) < trees * len(raw):
                        drawn += [leaves(columns, depth, generator) for columns in raw]
                    columns = beside(binned, drawn, scale, trees)
                    found[f"leaves, {scale}", trees, depth] = logistic(columns, ends)
        for key, scores in found.items():
            runs.setdefault(key, []).append(scores)
    for (model, trees, depth), own in runs.items():
        yield {
            "dataset": settings.dataset,
            "rows": train_rows,
            "model": model,
            "trees": trees,
            "depth": depth,
            "columns": statistics.median(run["columns"] for run in own)
            if "columns" in own[0]
            else None,
            "auc": statistics.fmean(run["auc"] for run in own),
            "log_loss": statistics.fmean(run["log_loss"] for run in own),
            "above_bins": _difference(own, runs["bins", 0, 0], "auc", settings.held_out),
            "loss_above_bins": _difference(own, runs["bins", 0, 0], "log_loss", settings.held_out),
            "splits": settings.splits,
            "runs": own,
        }


def _difference(
    runs: list[dict[str, float]], others: list[dict[str, float]], key: str, held_out: float
) -> list[float]:
    """Mean, and half the width of its 95 % interval (Nadeau and Bengio 2003).

    Splits share rows, so the variance of their mean is more than a fraction of theirs.
    """
    from scipy.stats import t  # noqa: PLC0415

    found = np.array([run[key] - other[key] for run, other in zip(runs, others, strict=True)])
    if len(found) == 1:
        return [float(found[0]), 0.0]
    share = 1 / len(found) + held_out / (1 - held_out)
    half = t.ppf(0.975, len(found) - 1) * found.std(ddof=1) * np.sqrt(share)
    return [float(found.mean()), float(half)]


def _signed(key: str) -> Any:  # noqa: ANN401
    return lambda row: f"{row[key][0]:+.4f} ± {row[key][1]:.4f}"


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("rows", lambda row: f"{row['rows']:,}"),
    ("model", lambda row: str(row["model"])),
    ("trees", lambda row: str(row["trees"] or "-")),
    ("depth", lambda row: str(row["depth"] or "-")),
    ("columns", lambda row: or_dash(row["columns"], "{:g}".format)),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("above bins", _signed("above_bins")),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("above bins'", _signed("loss_above_bins")),
)
NAMED = {"choose": ("credit", "breast_cancer"), "judge": ("icu2012", "a9a", "wikipedia-biology")}


def by_set(rows: Sequence[Row]) -> Cells:
    """One line a data set: bins, and what each other model has above them."""
    models = list(dict.fromkeys(map(_model, rows)))
    judged = next(model for model in models if model.startswith("by trees"))
    losses = f"log loss, {judged}"
    found = [["data", "rows", "bins' AUC", *(m for m in models if m != "bins"), losses]]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        own = {_model(row): row for row in rows if row["dataset"] == name}
        found.append(
            [
                name,
                f"{own['bins']['rows']:,}",
                f"{own['bins']['auc']:.4f}",
                *(_signed("above_bins")(own[m]) for m in models if m != "bins"),
                f"{own[judged]['loss_above_bins'][0]:+.4f}",
            ]
        )
    return found


def by_form(rows: Sequence[Row]) -> Cells:
    """One line a model: what it has above bins, over the sets, which count as independent."""
    from scipy.stats import t  # noqa: PLC0415

    found = [["model", "sets", "AUC above bins", "least", "most", "higher at", "log loss"]]
    for model in dict.fromkeys(map(_model, rows)):
        own = [row for row in rows if _model(row) == model]
        above = np.array([row["above_bins"][0] for row in own])
        half = t.ppf(0.975, len(own) - 1) * above.std(ddof=1) / np.sqrt(len(own))
        loss = statistics.fmean(row["loss_above_bins"][0] for row in own)
        if model != "bins":
            found.append(
                [
                    model,
                    str(len(own)),
                    f"{above.mean():+.4f} ± {half:.4f}",
                    *(f"{end:+.4f}" for end in (above.min(), above.max())),
                    str(int((above > 0).sum())),
                    f"{loss:+.4f}",
                ]
            )
    return found


def _model(row: Row) -> str:
    form = f" {row['trees']} x {row['depth']}" if row["trees"] else ""
    return str(row["model"]).removeprefix("leaves, ") + form


PARTS = {
    "choose": (*NAMED["choose"], *(f"{R}{name}" for name in list(TABLES)[::2])),
    "judge": (*NAMED["judge"], *(f"{R}{name}" for name in list(TABLES)[1::2])),
}
# The form of the highest mean AUC of the sets to choose on, and the one proposed before.
JUDGED = {"forms": (("by trees", 100, 2), ("standardized", 30, 3)), "splits": 5}
LONG = {"a9a": {"splits": 3, "rows": 24_000}, "icu2012": {"splits": 3}}
AGAIN = ("credit", f"{FATE}default_credit")

EXPERIMENT = Experiment(
    name="partitions",
    about=__doc__ or "",
    runs={
        **{
            f"choose-{name}": Run(30, {"dataset": name, "rows": 12_000}) for name in PARTS["choose"]
        },
        **{
            f"judge-{name}": Run(30, {"dataset": name, **JUDGED, **LONG.get(name, {})})
            for name in PARTS["judge"]
        },
        f"control-{PLANTED}": Run(15, {"dataset": PLANTED, **JUDGED}),
        **{
            f"rows-{R}{name}": Run(10, {"dataset": f"{R}{name}", **JUDGED, "whole_people": False})
            for name in ("Males", "Wages")
        },
        **{f"again-{name}": Run(60, {"dataset": name, **JUDGED, "splits": 3}) for name in AGAIN},
    },
    quick={"splits": 1, "forms": (("by trees", 2, 2),)},
    settings=PartitionsSettings,
    measure=partitions,
    columns=COLUMNS,
    tables={"partitions-sets": by_set, "partitions-forms": by_form},
    notes=lambda _: (
        "means over splits; differences are on the same rows, ± half a 95 % interval",
        "trees: of each party; leaves stand beside bins",
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
