"""Result rows and tables of `bench blind` and `bench ahead`; see `rows` and `tables`."""

from collections.abc import Sequence

from typing_extensions import TypedDict

from securevfl.reports.rows import CostFigures
from securevfl.reports.tables import Column, seconds, share, size


class BlindRun(CostFigures):
    """One run up to a target, or to its last round; `party_` figures are those of `BlindRow`."""

    seed: int
    reached: bool
    rounds: int
    auc: float
    party_bytes: float
    party_compute_s: float
    round_s: float
    wall_s: float


class BlindRow(CostFigures):
    """One exchange at one Q, S and loss, to one target or for all rounds.

    `party_bytes` and `party_compute_s` are of a round without what was done ahead, of the party
    that has most of it; `round_s` is the critical path of such a round. `apart` is the AUC less
    that of `plain` with the logistic loss itself, after the same steps on the same batches, null
    where runs end at a target; `joint_auc` that of scikit-learn's LogisticRegression in one place.
    """

    dataset: str
    exchange: str
    loss: str
    start: str
    local_steps: int | str
    batch_size: int | str
    columns: Sequence[int]
    target_auc: float | None
    reached_target: bool
    rounds: float
    auc: float
    apart: float | None
    joint_auc: float
    learning_rate: float | None
    learning_rate_chosen: str
    party_bytes: float
    party_compute_s: float
    round_s: float
    wall_s: float
    max_rounds: int
    repeats: int
    runs: Sequence[BlindRun]


class AheadRow(TypedDict):
    """One place in the code where work ahead spends its time, of all parties together.

    `place` is a function of SEAL, or a module with what it calls outside of this package;
    `share` is of `total_s`, which the profiler lengthens.
    """

    place: str
    calls: int
    seconds: float
    share: float
    total_s: float
    dataset: str
    local_steps: int | str
    batch_size: int | str
    loss: str
    columns: Sequence[int]
    rounds: int


def ahead_s(row: CostFigures) -> float:
    """Seconds of the critical path before the first round."""
    return row["ahead_compute_s"] + row["ahead_communication_s"]


def _ahead(row: CostFigures) -> str:
    return seconds(ahead_s(row)) if ahead_s(row) else "-"


_WHAT: tuple[Column[BlindRow], ...] = (
    ("exchange", lambda row: row["exchange"]),
    ("loss", lambda row: {"taylor-logistic": "taylor"}.get(row["loss"], row["loss"])),
    ("Q", lambda row: str(row["local_steps"])),
    ("S", lambda row: str(row["batch_size"])),
)

BLIND: tuple[Column[BlindRow], ...] = (
    *_WHAT,
    ("rounds", lambda row: f"{row['rounds']:g}{'' if row['reached_target'] else ' *'}"),
    ("AUC", lambda row: share(row["auc"])),
    ("apart", lambda row: share(row["apart"], "+")),
    ("ahead", _ahead),
    ("rounds'", lambda row: seconds(row["total_s"] - ahead_s(row))),
    ("total", lambda row: seconds(row["total_s"])),
)

BLIND_ROUND: tuple[Column[BlindRow], ...] = (
    *_WHAT,
    ("sent", lambda row: size(row["party_bytes"])),
    ("compute", lambda row: seconds(row["party_compute_s"])),
    ("a round", lambda row: seconds(row["round_s"])),
    ("ahead", lambda row: size(row["ahead_bytes"] / row["rounds"])),
    ("compute", lambda row: seconds(row["ahead_compute_s"] / row["rounds"])),
)

BLIND_NOTES = (
    "apart: AUC less that of plain with the logistic loss after the same steps",
    "ahead, rounds': the critical path before the first round, and of all rounds",
)
ROUND_NOTES = (
    "sent, compute: online, by the party with most of it; a round: its critical path",
    "ahead: bytes of all parties and computation on the critical path, by round",
)

AHEAD: tuple[Column[AheadRow], ...] = (
    ("place", lambda row: row["place"]),
    ("calls", lambda row: f"{row['calls']:,}"),
    ("seconds", lambda row: seconds(row["seconds"])),
    ("a call", lambda row: seconds(row["seconds"] / max(row["calls"], 1))),
    ("share", lambda row: f"{100 * row['share']:.1f} %"),
)
