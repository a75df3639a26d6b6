"""Result rows and tables of `bench blind` and `bench offline`; see `rows` and `tables`."""

from collections.abc import Callable, Sequence

from typing_extensions import TypedDict

from securevfl.reports.rows import CostFigures, made_offline
from securevfl.reports.tables import Column, Row, seconds, share, size


class BlindRun(CostFigures):
    """One run up to a target, or to its last round; `party_` figures are those of `BlindRow`."""

    seed: int
    reached: bool
    rounds: int
    auc: float
    party_bytes: float
    party_compute_s: float
    rounds_s: float
    wall_s: float


class BlindRow(CostFigures):
    """One exchange at one Q, S and loss, to one target or for all rounds.

    `party_bytes` and `party_compute_s` are of a round without what was done offline, of the party
    that has most of it; `rounds_s` is the critical path of all such rounds, `round_s` that of one.
    `apart` is the AUC less that of `plain` with the logistic loss itself after as many rounds, null
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
    rounds_s: float
    round_s: float
    wall_s: float
    max_rounds: int
    repeats: int
    runs: Sequence[BlindRun]


class OfflineRow(TypedDict):
    """One place in the code where offline work spends its time, of all parties together.

    `place` is a function of SEAL, or a module with what it calls outside of this package;
    `share` is of `total_s`, which the profiler makes longer.
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


class RoundRow(TypedDict):
    """What a round of a `BlindRow` takes.

    `path_s` is the computation on the round's critical path. `_before` is its part of what was made
    offline: bytes of all parties, and computation on the critical path.
    """

    exchange: str
    steps: str
    loss: str
    party_bytes: float
    party_compute_s: float
    path_s: float
    round_s: float
    bytes_before: float
    compute_before_s: float


def by_round(rows: Sequence[Row]) -> list[RoundRow]:
    """A line for each of these rows of `bench blind`."""
    return [
        {
            "exchange": row["exchange"],
            "steps": _steps(row),
            "loss": row["loss"],
            "party_bytes": row["party_bytes"],
            "party_compute_s": row["party_compute_s"],
            "path_s": (row["compute_s"] - made_offline(row, "offline_compute_s")) / row["rounds"],
            "round_s": row["round_s"],
            "bytes_before": made_offline(row, "offline_bytes") / row["rounds"],
            "compute_before_s": made_offline(row, "offline_compute_s") / row["rounds"],
        }
        for row in rows
    ]


def _steps(row: Row) -> str:
    return f"{row['local_steps']}:{row['batch_size']}"


def _loss(row: Row) -> str:
    return "taylor" if row["loss"] == "taylor-logistic" else str(row["loss"])


def _or_dash(show: Callable[[float], str], value: float) -> str:
    return show(value) if value else "-"


BLIND: tuple[Column[BlindRow], ...] = (
    ("exchange", lambda row: row["exchange"]),
    ("Q:S", _steps),
    ("loss", _loss),
    ("rounds", lambda row: f"{row['rounds']:g}{'' if row['reached_target'] else ' *'}"),
    ("AUC", lambda row: share(row["auc"])),
    ("apart", lambda row: share(row["apart"], "+")),
    ("rounds'", lambda row: seconds(row["rounds_s"])),
    ("total", lambda row: seconds(row["total_s"])),
)

BLIND_NOTES = (
    "apart: AUC less that of plain with the logistic loss after as many rounds",
    "rounds': their critical path; total: with what was made offline",
)

BLIND_ROUND: tuple[Column[RoundRow], ...] = (
    ("exchange", lambda row: row["exchange"]),
    ("Q:S", lambda row: row["steps"]),
    ("loss", _loss),
    ("sent", lambda row: size(row["party_bytes"])),
    ("compute", lambda row: seconds(row["party_compute_s"])),
    ("path", lambda row: seconds(row["path_s"])),
    ("a round", lambda row: seconds(row["round_s"])),
    ("pads sent", lambda row: _or_dash(size, row["bytes_before"])),
    ("pads compute", lambda row: _or_dash(seconds, row["compute_before_s"])),
)

ROUND_NOTES = (
    "sent, compute: by the party with most of it",
    "path: computation on a round's critical path; a round: all of that",
    "pads: bytes of all parties, computation on the critical path, over the rounds",
)

PLACES: tuple[Column[OfflineRow], ...] = (
    ("place", lambda row: row["place"]),
    ("calls", lambda row: f"{row['calls']:,}"),
    ("seconds", lambda row: seconds(row["seconds"])),
    ("a call", lambda row: seconds(row["seconds"] / max(row["calls"], 1))),
    ("share", lambda row: f"{100 * row['share']:.1f} %"),
)
