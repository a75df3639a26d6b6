"""Result rows as tables for a terminal of 80 columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from securevfl.reports.network_rows import NetworksRow
from securevfl.reports.rounds_rows import RoundsRow
from securevfl.reports.rows import (
    CostLawRow,
    CryptoRow,
    FdmlRow,
    JobRow,
    JointRow,
    L1Row,
    LabelGuardRow,
    OverheadRow,
    StalenessRow,
    ahead_s,
    any_ahead,
    made_ahead,
)
from securevfl.reports.theorem_rows import Theorem1Row, Theorem2Row
from securevfl.reports.train_rows import TrainRow

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]
R = TypeVar("R")
Column: TypeAlias = tuple[str, Callable[[R], str]]

KILOBYTE = 1000.0
MINUTE = 60.0


def seconds(value: float) -> str:
    """Three significant digits with a unit that suits."""
    if value < 1e-3:  # noqa: PLR2004
        return f"{value * 1e6:.3g} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 * MINUTE else f"{value / MINUTE:.0f} min"


def size(value: float) -> str:
    """Bytes with a unit that suits."""
    for unit in ("B", "kB", "MB"):
        if value < KILOBYTE:
            return f"{value:.3g} {unit}"
        value /= KILOBYTE
    return f"{value:.3g} GB"


def rate(value: float | None) -> str:
    """A learning rate; a dash where steps have none."""
    return "-" if value is None else f"{value:g}"


def share(value: float | None, sign: str = "") -> str:
    """A score; a dash where there is none."""
    if value is None:
        return "-"
    # What diverged has hundreds of digits.
    return f"{value:{sign}.4f}" if abs(value) < 1e6 else f"{value:{sign}.3g}"  # noqa: PLR2004


def _rounds(row: JobRow | RoundsRow | NetworksRow) -> str:
    mark = "" if row["reached_target"] else " *"
    return f"{row['rounds']:g}{mark}"


def _rounds_paid(row: JobRow) -> float:
    return row["rounds"] - row.get("rounds_before", 0)


def exchange_text(row: JobRow) -> str:
    """An exchange with the size of its keys, and whether it hides both."""
    name = row["exchange"]
    if row["key_bits"]:
        name = f"{name}-{row['key_bits']}"
    return f"{name} both" if row["hide"] == "both" else name


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e5:  # noqa: PLR2004
        return f"{value:.1e}x"
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"  # noqa: PLR2004


def _scheme(row: CryptoRow) -> str:
    if row["scheme"] == "none":
        return "in clear"
    if row["key_bits"] is None:
        return str(row["scheme"])
    workers = f" ({row['workers']})" if row["workers"] > 1 else ""
    return f"{row['scheme']} {row['engine']} {row['key_bits']}{workers}"


def _ahead(value: float) -> str:
    return seconds(value) if value > 1e-5 else "-"  # noqa: PLR2004


TRADEOFF: tuple[Column[JobRow], ...] = (
    ("exchange", exchange_text),
    ("Q", lambda row: f"{row['local_steps']}{' HE' if row.get('he_per_step') else ''}"),
    ("rounds", _rounds),
    ("AUC", lambda row: ("≈" if row.get("binormal") else "") + share(row["auc"])),
    ("compute", lambda row: seconds(row["compute_s"])),
    ("network", lambda row: seconds(row["communication_s"])),
    ("total", lambda row: seconds(row["total_s"])),
    ("a round", lambda row: seconds((row["total_s"] - ahead_s(row)) / _rounds_paid(row))),
    ("sent", lambda row: size(row["bytes_sent"])),
)

OF_TARGETS: tuple[Column[TrainRow], ...] = (
    ("R²", lambda row: share(row["r2"])),
    ("RMSE", lambda row: "-" if row["rmse"] is None else f"{row['rmse']:.4g}"),
)

ROUNDS: tuple[Column[RoundsRow], ...] = (
    ("algorithm", lambda row: str(row["algorithm"])),
    ("Q", lambda row: str(row["local_steps"])),
    ("K", lambda row: str(row["parties"])),
    ("proximal", lambda row: f"{row['proximal']:g}"),
    ("learning rate", lambda row: rate(row["learning_rate"])),
    ("rounds", _rounds),
    ("best AUC", lambda row: f"{row['best_auc']:.4f}"),
)

NETWORKS: tuple[Column[NetworksRow], ...] = (
    ("AUC", lambda row: f"{row['target_auc']:g}"),
    ("algorithm", lambda row: row["algorithm"]),
    ("Q", lambda row: str(row["local_steps"])),
    ("η0", lambda row: rate(row["learning_rate"])),
    ("rounds", _rounds),
    ("most", lambda row: str(row["most_rounds"])),
    ("paper", lambda row: str(row["paper_rounds"] or "-")),
    ("best AUC", lambda row: f"{row['best_auc']:.4f}"),
    ("wall a round", lambda row: seconds(row["wall_s_per_round"])),
)


JOINT: tuple[Column[JointRow], ...] = (
    ("K", lambda row: str(row["parties"])),
    ("exchange", lambda row: row["exchange"]),
    ("joint", lambda row: f"{row['joint_score']:.4f}"),
    ("to within", lambda row: _count(row["rounds_to"])),
    ("most", lambda row: _count(row["most_rounds_to"])),
    ("rounds", lambda row: f"{row['rounds']:g}"),
    ("score", lambda row: f"{row['score']:.4f}"),
    ("guard", lambda row: share(row["label_guard_ratio"])),
    ("sent", lambda row: size(row["bytes_sent"])),
    ("total", lambda row: seconds(row["total_s"])),
)

CRYPTO: tuple[Column[CryptoRow], ...] = (
    ("scheme", _scheme),
    ("S x P", lambda row: f"{row['samples']} x {row['features']}"),
    ("online", lambda row: seconds(row["seconds_median"]) + ("~" if row["extrapolated"] else "")),
    ("ahead", lambda row: _ahead(row.get("seconds_offline", 0.0))),
    ("phe-2048", lambda row: _ratio(row["ratio_to_phe_2048"])),
    ("phe-3072", lambda row: _ratio(row["ratio_to_phe_3072"])),
    ("up", lambda row: size(row["bytes_up"])),
    ("down", lambda row: size(row["bytes_down"])),
)

CRYPTO_PHASES: tuple[Column[CryptoRow], ...] = (
    ("scheme", _scheme),
    ("S x P", lambda row: f"{row['samples']} x {row['features']}"),
    ("keys", lambda row: _seconds_or_dash(row.get("seconds_keys"))),
    ("prepare", lambda row: _seconds_or_dash(row.get("seconds_prepare"))),
    ("encrypt", lambda row: _seconds_or_dash(row.get("seconds_encrypt"))),
    ("evaluate", lambda row: _seconds_or_dash(row.get("seconds_evaluate"))),
    ("decrypt", lambda row: _seconds_or_dash(row.get("seconds_decrypt"))),
    ("ahead", lambda row: _ahead(row.get("seconds_offline", 0.0))),
    ("up", lambda row: size(row["bytes_up"])),
    ("down", lambda row: size(row["bytes_down"])),
)

STALENESS: tuple[Column[StalenessRow], ...] = (
    ("straggler", lambda row: str(row["straggler"])),
    ("tau", lambda row: str(row["staleness"])),
    ("to target", lambda row: _time(row["seconds_to_target"])),
    ("all rounds", lambda row: seconds(row["total_s"])),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("refused", lambda row: f"{row['refused_pulls']:,.0f}"),
    ("lead", lambda row: str(row["largest_lead"])),
    ("regret slope", lambda row: _slope(row["regret_slope"])),
)

FDML: tuple[Column[FdmlRow], ...] = (
    ("training", lambda row: f"{row['model']}, {row['training']}"),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("wall", lambda row: seconds(row["wall_s_per_epoch"])),
    ("virtual", lambda row: _seconds_or_dash(row["virtual_s_per_epoch"])),
    ("machinery", lambda row: _seconds_or_dash(row["machinery_s"])),
)

COST_LAW: tuple[Column[CostLawRow], ...] = (
    ("scheme", lambda row: f"{row['scheme']} {row['key_bits'] or ''}".rstrip()),
    ("Q", lambda row: str(row["local_steps"])),
    ("homomorphic", lambda row: seconds(row["homomorphic_s_per_round"])),
    ("to first Q", lambda row: f"{row['ratio_to_first']:.2f}x"),
    ("local", lambda row: seconds(row["local_s_per_round"])),
    ("encryptions", lambda row: f"{row['encryptions_per_round']:g}"),
    ("products", lambda row: f"{row['products_per_round']:g}"),
    ("decryptions", lambda row: f"{row['decryptions_per_round']:g}"),
)

OVERHEAD: tuple[Column[OverheadRow], ...] = (
    ("S x P", lambda row: f"{row['samples']} x {row['features']}"),
    ("a round", lambda row: seconds(row["wall_s_per_round"])),
    ("parties' computation", lambda row: seconds(row["compute_s_per_round"])),
    ("simulation", lambda row: seconds(row["overhead_s_per_round"])),
)

THEOREM1: tuple[Column[Theorem1Row], ...] = (
    ("case", lambda row: row["case"]),
    ("expected", lambda row: row["expected"]),
    ("deviation", lambda row: f"{row['deviation']:.1e}"),
    ("distance", lambda row: f"{row['relative_distance']:.2f}"),
    ("UtU - I", lambda row: f"{row['orthogonality_error']:.0e}"),
    ("dim O(n)", lambda row: str(row["group_dimension"])),
)

THEOREM2: tuple[Column[Theorem2Row], ...] = (
    ("rounds", lambda row: str(row["rounds"])),
    ("Q", lambda row: str(row["local_steps"])),
    ("S", lambda row: str(row["batch_size"])),
    ("eta", lambda row: f"{row['eta']:.3g}"),
    ("of largest", lambda row: "-" if row["over_limit"] is None else f"{row['over_limit']:g}"),
    ("proof", lambda row: f"{row['proof_term']:.2f}"),
    ("measured", lambda row: f"{row['measured']:.4g}"),
    ("bound", lambda row: f"{row['bound']:.4g}"),
    ("bound/measured", lambda row: f"{row['bound'] / row['measured']:.1f}"),
    ("holds", lambda row: "yes" if row["holds"] else "no"),
)

L1: tuple[Column[L1Row], ...] = (
    ("K", lambda row: str(row["parties"])),
    ("method", lambda row: row["method"] + (", warm" if row["start"] == "warm" else "")),
    ("lambda", lambda row: f"{row['l1']:g}"),
    ("to gap", lambda row: "*" if row["rounds_to_gap"] is None else str(row["rounds_to_gap"])),
    ("sent", lambda row: "-" if row["bytes_to_gap"] is None else size(row["bytes_to_gap"])),
    ("rounds", lambda row: str(row["rounds"])),
    ("gap", lambda row: f"{row['gap']:.0e}"),
    ("bound", lambda row: "-" if row["certified_gap"] is None else f"{row['certified_gap']:.0e}"),
    ("not 0", lambda row: f"{row['nonzeros']}/{row['reference_nonzeros']}"),
    ("differ", lambda row: f"{row['differing_zeros']}{'' if row['unique'] else ' ~'}"),
)

LABEL_GUARD: tuple[Column[LabelGuardRow], ...] = (
    ("ratio", lambda row: f"{row['ratio']:.4f}"),
    ("S", lambda row: str(row["batch_size"])),
    ("rounds", lambda row: str(row["rounds"])),
    ("own AUC", lambda row: f"{row['own_auc']:.4f}"),
    ("more", lambda row: f"{row['auc'] - row['own_auc']:+.4f}"),
    ("bound", lambda row: f"{row['bound_auc'] - row['own_auc']:+.4f}"),
    ("top 1 %", lambda row: _times(row, "top_precision")),
    ("1 % FPR", lambda row: _times(row, "true_positives")),
    ("leverage 1", lambda row: str(row["exposed_rows"])),
)


def _times(row: Row, figure: str) -> str:
    """The attack's and the bound's over the own model's."""
    own = row[f"own_{figure}"]
    if not own:
        return "-"
    return f"x{row[figure] / own:.2f} {row[f'bound_{figure}'] / own:.2f}"


def _count(value: float | None) -> str:
    return "*" if value is None else f"{value:g}"


def _seconds_or_dash(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _time(value: float | None) -> str:
    return "*" if value is None else seconds(value)


def table(columns: Sequence[Column[R]], rows: Sequence[R], title: str = "") -> "Table":
    """A table of rows that fits 80 columns; the first column to the left, figures right."""
    from rich import box  # noqa: PLC0415  # not needed for what columns show
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    result = Table(
        # As text: a string's brackets would be taken for markup.
        title=Text(title, style="table.title") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for index, (heading, _) in enumerate(columns):
        result.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        result.add_row(*(Text(show(row)) for _, show in columns))
    return result


def _time_ahead(value: float) -> str:
    return seconds(value) if value else "-"


AHEAD: tuple[Column[Any], ...] = (
    ("compute ahead", lambda row: _time_ahead(made_ahead(row, "ahead_compute_s"))),
    ("network ahead", lambda row: _time_ahead(made_ahead(row, "ahead_communication_s"))),
    ("ahead", lambda row: _time_ahead(ahead_s(row))),
    ("sent ahead", lambda row: size(made_ahead(row, "ahead_bytes")) if any_ahead([row]) else "-"),
)


def with_ahead(columns: Sequence[Column[R]], rows: Sequence[Row]) -> tuple[Column[R], ...]:
    """The columns, and where a row made something ahead those that say what it took."""
    return (*columns, *AHEAD) if any_ahead(rows) else tuple(columns)


def ahead_table(columns: Sequence[Column[Any]], rows: Sequence[Row]) -> "Table | None":
    """What those rows took that made something ahead; None where none did.

    A table of its own: a terminal has no room for more columns.

    Args:
        columns: what names a row.
        rows: those of the table above it.
    """
    chosen = [row for row in rows if any_ahead([row])]
    title = "made ahead of rounds, part of the totals above"
    return table((*columns, *AHEAD), chosen, title) if chosen else None


def scored_by(row: TrainRow) -> Sequence[Column[TrainRow]]:
    """The columns of a finished job, with errors in place of AUC where targets are real."""
    if row["r2"] is None:
        return TRADEOFF
    place = [name for name, _ in TRADEOFF].index("AUC")
    return (*TRADEOFF[:place], *OF_TARGETS, *TRADEOFF[place + 1 :])


def target_notes(rows: Sequence[JobRow | RoundsRow]) -> list[str]:
    """What marks and words in a table of runs to a target mean, a line each."""
    notes = []
    if not all(row["reached_target"] for row in rows):
        notes.append("* target not reached in so many rounds")
    if any(row["local_steps"] == "exact" and row["batch_size"] == "full" for row in rows):
        notes.append("Q = exact: the minimum that local steps go towards, all rows every round")
    if any(row.get("he_per_step") for row in rows):
        notes.append("HE: homomorphic work repeated in every local step, for benchmarks only")
    if any_ahead(rows):
        notes.append("compute, network, total and sent hold what was made ahead; a round does not")
    targets = dict.fromkeys(str(row.get("target_chosen", "given")) for row in rows)
    return notes + [f"target: {chosen}" for chosen in targets if chosen != "given"]


def tradeoff_notes(rows: Sequence[JobRow]) -> list[str]:
    """What a doubter asks of a tradeoff table, a line each."""
    notes = target_notes(rows)
    by_rate: dict[tuple[float | None, str], dict[int | str, None]] = {}
    for row in rows:
        rate = (row["learning_rate"], row["learning_rate_chosen"])
        by_rate.setdefault(rate, {})[row["local_steps"]] = None
    for (learning_rate, chosen), steps in by_rate.items():
        values = ", ".join(map(str, steps))
        what = "step sizes" if learning_rate is None else f"learning rate {learning_rate:g}"
        notes.append(f"{what} for Q = {values}: {chosen}")
    by_exchange: dict[str, dict[str, None]] = {}
    for row in rows:
        keys = by_exchange.setdefault(exchange_text(row), {})
        keys.update((f"{key} ({owner})", None) for owner, key in row["key_fingerprints"].items())
    for exchange, keys in by_exchange.items():
        if keys:
            more = f" and {len(keys) - 1} more in the JSON" if len(keys) > 1 else ""
            notes.append(f"key of {exchange}: {next(iter(keys))}{more}")
    if any(row.get("binormal") for row in rows):
        notes.append("≈ binormal: of normal distributions with the classes' means and variances")
    ratios = [row["label_guard_ratio"] for row in rows if row["label_guard_ratio"] is not None]
    if ratios:
        notes.append(f"label guard ratio {max(ratios):.3f}: equations of gradients over labels")
    return notes


def joint_notes(rows: Sequence[JointRow]) -> list[str]:
    """What the columns of a table against one place mean, a line each."""
    name = "AUC" if rows[0]["score_name"] == "auc" else rows[0]["score_name"]
    notes = [
        f"joint: {name} of scikit-learn's LogisticRegression on all columns in one place",
        f"to within: rounds to within {rows[0]['within']:g} of it, and the most of any run",
        "guard: the label guard's ratio; score and what follows: where training ended",
    ]
    if any_ahead(rows):
        notes.append("sent and total hold what was made ahead of rounds")
    if any(row["most_rounds_to"] is None for row in rows):
        notes.append("* never that near: half the runs, or one; the JSON has each")
    by_ending: dict[str, dict[int, None]] = {}
    for row in rows:
        by_ending.setdefault(row["ended"], {})[row["parties"]] = None
    notes += [
        f"ended at K = {', '.join(map(str, parties))}: {ending}"
        for ending, parties in by_ending.items()
    ]
    return notes


def l1_notes(rows: Sequence[L1Row]) -> list[str]:
    """What marks in `L1` mean, where there are any."""
    notes = []
    if any(row["rounds_to_gap"] is None for row in rows):
        notes.append("* never came so near")
    if not all(row["unique"] for row in rows):
        notes.append("~ the optimum is not unique: which columns are 0 says nothing")
    return notes
