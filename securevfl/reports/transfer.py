"""Result rows and tables of federated transfer learning; see `rows` and `tables`."""

from collections.abc import Sequence

from typing_extensions import TypedDict

from securevfl.reports.rows import JobRow, TradeoffRow
from securevfl.reports.tables import TRADEOFF, Column, rate, seconds


class TransferRow(TradeoffRow):
    """Transfer learning under one exchange at one Q and μ to one target.

    `overlap` is the rows that both parties hold; `best_auc` the largest on the way.
    """

    proximal: float
    alternating: bool
    overlap: int
    alignment: float
    local_rule: str
    best_auc: float


class OverlapRow(TypedDict):
    """Held-out rows of which only the unlabelled party has features, by how many rows both hold.

    AUCs are medians over seeds, which also draw the rows. `alone_` are models of that party's
    columns on the labels of the overlap, logistic regression and a network with as many units;
    `label_party_auc` a logistic regression of the label party's own columns and all its rows.
    """

    dataset: str
    overlap: int
    own_rows: int
    local_steps: int
    rounds: int
    alignment: float
    auc: float
    best_auc: float
    alone_auc: float
    alone_network_auc: float
    label_party_auc: float
    learning_rate: float | None
    learning_rate_chosen: str
    repeats: int
    aucs: Sequence[float]


def homomorphic_s(row: JobRow) -> float:
    """Seconds of encrypted work a round."""
    phases = row["compute_by_phase_s"]
    work = sum(phases[phase] for phase in ("encrypt", "evaluate", "decrypt"))
    return work / row["rounds"]


_SHOWN = dict(TRADEOFF)

TRANSFER: tuple[Column[TransferRow], ...] = (
    ("AUC", lambda row: f"{row['target_auc']:g}"),
    ("exchange", _SHOWN["exchange"]),
    ("Q", _SHOWN["Q"]),
    ("μ", lambda row: f"{row['proximal']:g}"),
    ("η0", lambda row: rate(row["learning_rate"])),
    ("R", _SHOWN["rounds"]),
    ("compute", _SHOWN["compute"]),
    ("network", _SHOWN["network"]),
    ("total", _SHOWN["total"]),
    ("HE, a round", lambda row: seconds(homomorphic_s(row)) if row["key_fingerprints"] else "-"),
)

OVERLAP: tuple[Column[OverlapRow], ...] = (
    ("overlap", lambda row: f"{row['overlap']:,}"),
    ("own", lambda row: f"{row['own_rows']:,}"),
    ("FTL", lambda row: f"{row['auc']:.4f}"),
    ("best", lambda row: f"{row['best_auc']:.4f}"),
    ("B, LR", lambda row: f"{row['alone_auc']:.4f}"),
    ("B, network", lambda row: f"{row['alone_network_auc']:.4f}"),
    ("A on A", lambda row: f"{row['label_party_auc']:.4f}"),
)

OVERLAP_NOTES = (
    "overlap: rows that both hold; own: more that the label party alone has",
    "B: the unlabelled party's own models on the labels of the overlap",
    "A on A: the label party's own model, of columns that such rows do not have",
)
