"""Result rows and the table of `bench defaults`; see `rows` and `tables`."""

from collections.abc import Mapping, Sequence

from typing_extensions import TypedDict

from securevfl.reports.tables import Column


class DefaultsRun(TypedDict):
    """One run with nothing set."""

    seed: int
    score: float
    rounds: int
    status: int


class DefaultsRow(TypedDict):
    """One data set: a job with nothing set, tuning by hand in one place, and each party alone.

    `score` is the median, `worst_score` the least of any seed, `usual_score` that of C = 1 in one
    place; `difference` is the median less `tuned_score`.
    """

    dataset: str
    rows: int
    columns: int
    parties: int
    score_name: str
    score: float
    worst_score: float
    rounds: float
    tuned_score: float
    tuned_c: float
    usual_score: float
    difference: float
    label_party: str
    alone: Mapping[str, float]
    repeats: int
    runs: Sequence[DefaultsRun]


def _others_alone(row: DefaultsRow) -> list[str]:
    return [f"{score:.4f}" for name, score in row["alone"].items() if name != row["label_party"]]


def _data(row: DefaultsRow) -> str:
    return row["dataset"] + ("" if row["score_name"] == "auc" else f" ({row['score_name']})")


DEFAULTS: tuple[Column[DefaultsRow], ...] = (
    ("data", _data),
    ("defaults", lambda row: f"{row['score']:.4f}"),
    ("worst", lambda row: f"{row['worst_score']:.4f}"),
    ("tuned", lambda row: f"{row['tuned_score']:.4f}"),
    ("its C", lambda row: f"{row['tuned_c']:g}"),
    ("apart", lambda row: f"{row['difference']:+.4f}"),
    ("own", lambda row: f"{row['alone'][row['label_party']]:.4f}"),
    ("others", lambda row: ", ".join(_others_alone(row))),
)
NOTES = (
    "AUC, or accuracy where it says so; apart: defaults less tuned",
    "own: the label party alone; others: each other party, were it lent the labels",
)
