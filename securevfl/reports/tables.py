"""Result rows as tables, and sentences, for a terminal of 80 columns."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from securevfl.reports.rows import (
    CostFigures,
    JobRow,
    TradeoffRow,
    TrainRow,
    any_offline,
    made_offline,
    offline_s,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import PaddingDimensions
    from rich.table import Table

Row = Mapping[str, Any]
R = TypeVar("R")
Column: TypeAlias = tuple[str, Callable[[R], str]]

WIDTH = 80
UNITS, KEPT_TOGETHER = r"(?:[mu]?s|min)\b", "\N{NO-BREAK SPACE}"
KILOBYTE = 1000.0
MINUTE = 60.0
_FOUR_DIGITS = 999.5  # from here on, .3g writes an exponent


def wrapped(text: str) -> list[str]:
    """A sentence in lines of at most 80 columns, all but the first indented."""
    kept = re.sub(rf"(?<=\d) (?={UNITS})", KEPT_TOGETHER, text)
    lines = textwrap.wrap(kept, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(KEPT_TOGETHER, " ") for line in lines]


def seconds(value: float) -> str:
    """Three significant digits with a unit that suits."""
    for unit, most in (("us", 1e-6), ("ms", 1e-3)):
        if value < _FOUR_DIGITS * most:
            return f"{value / most:.3g} {unit}"
    if value < 100 * MINUTE:
        return f"{value:.3g} s" if value < _FOUR_DIGITS else f"{value:,.0f} s"
    return f"{value / MINUTE:.0f} min"


def size(value: float) -> str:
    """Bytes with a unit that suits."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < _FOUR_DIGITS:
            return f"{value:.3g} {unit}"
        value /= KILOBYTE
    return f"{value:.3g} TB"


def rate(value: float | None) -> str:
    """A learning rate; a dash where steps have none."""
    return "-" if value is None else f"{value:g}"


def share(value: float | None, sign: str = "") -> str:
    """A score; a dash where there is none."""
    if value is None:
        return "-"
    # What diverged has hundreds of digits.
    return f"{value:{sign}.4f}" if abs(value) < 1e6 else f"{value:{sign}.3g}"  # noqa: PLR2004


def rounds_text(row: Row) -> str:
    """Rounds, with a mark where they did not reach the target."""
    mark = "" if row["reached_target"] else " *"
    return f"{row['rounds']:g}{mark}"


def _a_round(row: JobRow) -> str:
    paid = row["rounds"] - row.get("rounds_before", 0)
    return seconds((row["total_s"] - offline_s(row)) / paid)


def exchange_text(row: JobRow) -> str:
    """An exchange with the size of its keys, and whether it hides both."""
    name = row["exchange"]
    if row["key_bits"]:
        name = f"{name}-{row['key_bits']}"
    return f"{name} both" if row["hide"] == "both" else name


def score_text(row: Mapping[str, Any], key: str) -> str:
    """A score; an estimated AUC has the digits that are right."""
    return f"≈{row[key]:.2f}" if row.get("binormal") and key == "auc" else share(row.get(key))


def scores_in_words(row: Mapping[str, Any]) -> list[str]:
    """AUC, accuracy and R², as far as they are known."""
    names = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}
    return [f"{name} {score_text(row, key)}" for key, name in names.items() if row[key] is not None]


COSTS: tuple[Column[CostFigures], ...] = (
    ("compute", lambda row: seconds(row["compute_s"])),
    ("network", lambda row: seconds(row["communication_s"])),
    ("total", lambda row: seconds(row["total_s"])),
    ("sent", lambda row: size(row["bytes_sent"])),
)
TRADEOFF: tuple[Column[JobRow], ...] = (
    ("exchange", exchange_text),
    ("Q", lambda row: f"{row['local_steps']}{' HE' if row.get('he_per_step') else ''}"),
    ("rounds", rounds_text),
    ("AUC", lambda row: score_text(row, "auc")),
    *COSTS[:3],
    ("a round", _a_round),
    *COSTS[3:],
)

OF_TARGETS: tuple[Column[Any], ...] = (
    ("R²", lambda row: share(row["r2"])),
    ("RMSE", lambda row: "-" if row["rmse"] is None else f"{row['rmse']:.4g}"),
)


def empty_table(title: str = "", padding: "PaddingDimensions" = 0) -> "Table":
    """A table without columns or rows: a line below its headings and none around it."""
    from rich import box  # noqa: PLC0415  # not needed for what columns show
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    return Table(
        # As text: a string's brackets would be taken for markup.
        title=Text(title, style="table.title") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=padding,
        show_edge=False,
    )


def table(columns: Sequence[Column[R]], rows: Sequence[R], title: str = "") -> "Table":
    """A table of rows that fits 80 columns; the first column to the left, figures right."""
    from rich.text import Text  # noqa: PLC0415

    result = empty_table(title)
    for index, (heading, _) in enumerate(columns):
        result.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        result.add_row(*(Text(show(row)) for _, show in columns))
    return result


def _offline_time(value: float) -> str:
    return seconds(value) if value else "-"


CORRELATED_RANDOMNESS: tuple[Column[Any], ...] = (
    ("offline compute", lambda row: _offline_time(made_offline(row, "offline_compute_s"))),
    ("offline network", lambda row: _offline_time(made_offline(row, "offline_communication_s"))),
    ("offline", lambda row: _offline_time(offline_s(row))),
    (
        "offline sent",
        lambda row: size(made_offline(row, "offline_bytes")) if any_offline([row]) else "-",
    ),
)


def with_offline(columns: Sequence[Column[R]], rows: Sequence[Row]) -> tuple[Column[R], ...]:
    """The columns, and where a row made something offline those that say what it took."""
    return (*columns, *CORRELATED_RANDOMNESS) if any_offline(rows) else tuple(columns)


def offline_table(columns: Sequence[Column[Any]], rows: Sequence[Row]) -> "Table | None":
    """What those rows took that made something offline; None where none did.

    A table of its own, with the columns that name a row: a terminal has no room for more.
    """
    chosen = [row for row in rows if any_offline([row])]
    title = "made before rounds, part of the totals above"
    return table((*columns, *CORRELATED_RANDOMNESS), chosen, title) if chosen else None


def print_tables(
    console: "Console", columns: Sequence[Column[R]], rows: Sequence[R], title: str, names: int = 2
) -> None:
    """Print the rows as a table, and below it what was made offline, if something was.

    So many columns, the first ones, name a row.
    """
    console.print(table(columns, rows, title))
    if offline := offline_table(columns[:names], cast("Sequence[Row]", rows)):
        console.print(offline)


def scored_by(row: TrainRow) -> Sequence[Column[TrainRow]]:
    """The columns of a finished job, with errors in place of AUC where targets are real."""
    if row["r2"] is None:
        return TRADEOFF
    place = [name for name, _ in TRADEOFF].index("AUC")
    return (*TRADEOFF[:place], *OF_TARGETS, *TRADEOFF[place + 1 :])


def target_notes(rows: Sequence[Row]) -> list[str]:
    """What marks and words in a table of runs to a target mean, a line each."""
    notes = []
    if not all(row["reached_target"] for row in rows):
        notes.append("* target not reached within these rounds")
    if any(row["local_steps"] == "exact" and row["batch_size"] == "full" for row in rows):
        notes.append("Q = exact: the minimum of each local problem, on all rows in every round")
    if any(row.get("he_per_step") for row in rows):
        notes.append("HE: repeats the homomorphic work in every local step, for benchmarks only")
    if any_offline(rows):
        notes.append("compute, network, total and sent include the offline phase; a round does not")
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
        notes.append("≈ estimated from the classes' means and variances: right to about two digits")
    ratios = [row["label_guard_ratio"] for row in rows if row["label_guard_ratio"] is not None]
    if ratios:
        notes.append(f"label guard ratio {max(ratios):.3f}: equations of gradients over labels")
    return notes


def interval_notes(row: Row) -> list[str]:
    """How sure the AUC of two classes is, and what joining adds to it."""
    if row.get("binormal"):
        return [
            "no average precision and no interval: nobody sees a held-out score in this exchange; "
            "`securevfl predict` on rows with labels gives them"
        ]
    if (ranking := row["ranking"]) is None:
        return []
    positives, rows = ranking["positives"], ranking["rows"]
    chance = f"average precision by chance {positives / rows:.4f}"
    notes = [f"positives: {positives:,} of {rows:,} rows; {chance}"]
    if ranking["auc_interval"] is None:
        return [
            *notes,
            "no interval of the AUC: a class has fewer than 10 rows, or all pairs are in "
            "the same order",
        ]
    ends = "{:.4f} to {:.4f}".format
    notes.append(f"95 % interval of the AUC: {ends(*ranking['auc_interval'])}")
    if gain := ranking["auc_gain_interval"]:
        by = f"{ranking['auc_gain']:+.4f}, 95 % {ends(*gain)}"
        notes.append(f"AUC above the label party alone: {by}")
    return notes


def link_notes(row: TrainRow) -> list[str]:
    """What links cost in a simulated network, if that was counted."""
    links = row.get("links")
    if not links:
        return []
    message, byte = seconds(links["message_seconds"]), seconds(links["byte_seconds"] * 1e6)
    return wrapped(
        f"network: lines, and {message} a message and {byte} a MB for links, as measured here"
    )


def varied(rows: Sequence[TradeoffRow]) -> tuple[Column[TradeoffRow], ...]:
    """The columns of a grid's table: those of `TRADEOFF`, and one per other key that it varies."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for key, value in row.get("varied", {}).items():
            values.setdefault(key, set()).add(str(value))
    shown = ("exchange.scheme", "exchange.he_per_step", "job.local_steps", "job.dataset")
    more = [key for key, found in values.items() if len(found) > 1 and key not in shown]
    columns = [(key.rpartition(".")[2], _varied(key)) for key in more]
    dropped = ("compute", "network")[: len(columns)]  # what 80 columns have no room for
    return tuple(
        column for column in (*TRADEOFF[:2], *columns, *TRADEOFF[2:]) if column[0] not in dropped
    )


def _varied(key: str) -> Callable[[TradeoffRow], str]:
    return lambda row: str(row.get("varied", {}).get(key, "-"))


def grouped(rows: Sequence[R], *keys: str) -> dict[Any, list[R]]:
    """The rows by what they have there, in their order."""
    groups: dict[Any, list[R]] = {}
    for row in rows:
        found = tuple(cast("Row", row)[key] for key in keys)
        groups.setdefault(found if len(keys) > 1 else found[0], []).append(row)
    return groups


def epsilon_text(value: float | None) -> str:
    """Three digits, or that nothing is promised."""
    return "inf" if value is None else f"{value:.3g}"


def spent_text(promise: Row) -> str:
    """What has been spent, for a progress bar."""
    release, whole = (epsilon_text(promise[f"epsilon_{k}"]) for k in ("release", "end_to_end"))
    return f"epsilon {release} of releases, {whole} end to end"


def privacy_notes(row: Row) -> list[str]:
    """What a job with noise promised, a line each; nothing for a job without."""
    promise = row["privacy"]
    if promise is None:
        return []
    notes = [
        f"noise: {promise['mechanism']}, z = {promise['noise_multiplier']:.4g}, clip = "
        f"{promise['clip']:g}, releases of a sample = {promise['releases']}, delta = "
        f"{promise['delta']:g}",
        f"epsilon of releases {epsilon_text(promise['epsilon_release'])}, end to end "
        f"{promise['epsilon_end_to_end_text']}",
        f"held-out rows: releases = {promise['held_out_releases']}, epsilon "
        f"{epsilon_text(promise['epsilon_held_out'])}",
    ]
    if promise["label_noise_multiplier"]:
        notes.append(
            f"labels: z = {promise['label_noise_multiplier']:g}, releases = "
            f"{promise['label_releases']}, epsilon {epsilon_text(promise['epsilon_label'])}"
        )
    elif promise["label_releases"]:
        notes.append("labels: no noise on residuals, which tell them")
    else:
        notes.append("labels: known to all parties")
    if row["auc"] is not None:
        notes.append(
            f"AUC {row['auc']:.4f} of noisy held-out predictions, {row['auc_exact']:.4f} of exact "
            "ones, which no party sees"
        )
    return [*notes, promise["noise"], f"not covered: {promise['not_covered']}"]
