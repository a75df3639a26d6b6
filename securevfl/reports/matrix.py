"""The audit's rows as a matrix: attacks and their cases down, exchanges across."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from securevfl.reports.tables import Row, empty_table
from securevfl.shown import seeds_of

SHORT = {
    "recovered_fraction": "recovered",
    "relative_error": "error",
    "epsilon_lower_bound": "epsilon",
    "top_precision": "top1%",
    "tpr_at_1_percent_fpr": "tpr@1%",
}
STYLES = {
    "leaks": "bold red",
    "undecided": "yellow",
    "no_leak_found": "green",
    "immune": "dim green",
    "not_run": "yellow",
}
PADDING = (0, 1, 0, 0)
MARKS = {"leaks": "!", "undecided": "?"}
WITHOUT_FIGURE = {"immune": "·", "not_run": "n/r"}


@dataclass(frozen=True)
class MatrixLine:
    """One attack in one case over all exchanges."""

    attack: str
    case: str
    control: bool
    cells: Mapping[str, Row | None]  # by exchange, the row; None where there is none

    @property
    def metric(self) -> str:
        """What its figures are: of each cell the one that its verdict rests on."""
        metrics: list[str] = [row["metric"] for row in self.cells.values() if row and row["metric"]]
        return "/".join(SHORT.get(each, each) for each in dict.fromkeys(metrics))

    @property
    def bars(self) -> str:
        """What its figures are compared with; a range where exchanges differ."""
        found = []
        for name, key in (("chance", "chance"), ("model alone", "model_alone")):
            rows = (row for row in self.cells.values() if row and row["metric"])
            values = sorted({row[key] for row in rows if row[key] is not None})
            ends = dict.fromkeys(figure(value) for value in (*values[:1], *values[-1:]))
            found += [f"{name} {' to '.join(ends)}"] if ends else []
        return ", ".join(found)


def exchanges_of(rows: Sequence[Row]) -> list[str]:
    """The exchanges in the order of the rows."""
    return list(dict.fromkeys(row["exchange"] for row in rows))


def lines_of(rows: Sequence[Row]) -> list[MatrixLine]:
    """A line for every attack and case; an exchange that fits no case gives its reason in all."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        key = (row["attack"], row["detail"]["case"])
        found.setdefault(key, {})[row["exchange"]] = row
    with_cases = {attack for attack, case in found if case}
    lines = []
    for (attack, case), by_exchange in found.items():
        if not case and attack in with_cases:
            continue
        whole = found.get((attack, ""), {})
        cells = {name: by_exchange.get(name, whole.get(name)) for name in exchanges_of(rows)}
        control = any(row["detail"]["control"] for row in by_exchange.values())
        lines.append(MatrixLine(attack, case, control, cells))
    order = [row["attack"] for row in rows]
    return sorted(lines, key=lambda line: order.index(line.attack))


def figure(value: float | None) -> str:
    """A positive figure in at most six characters."""
    if value is None:
        return "-"
    if 1e-3 <= abs(value) < 1e-2:  # noqa: PLR2004
        return f"{value:.2g}"
    if value == 0 or 1e-2 <= abs(value) < 1e3:  # noqa: PLR2004
        return f"{value:.3g}"
    return f"{value:.0e}"


def cell_text(row: Row | None) -> str:
    """A cell's figure; `!` marks a leak, `?` a figure that the seeds leave undecided.

    Without one `·` is immune and `n/r` not run; empty where there is no such case. Colours say the
    same, for who sees them.
    """
    if row is None:
        return ""
    if row["verdict"] in WITHOUT_FIGURE:
        return WITHOUT_FIGURE[row["verdict"]]
    sign = "" if row["detail"]["control"] else MARKS.get(row["verdict"], "")
    return figure(row["value"]) + sign


def matrix(rows: Sequence[Row], title: str) -> Table:
    """The matrix for a terminal of 80 columns: red leaks, green does not, yellow is open."""
    table = empty_table(title, PADDING)
    table.add_column("attack", no_wrap=False)
    for name in exchanges_of(rows):
        table.add_column(name, justify="right", no_wrap=True)
    last, metric = "", ""
    for line in lines_of(rows):
        heading = Text.assemble((line.attack, "bold"), (f" {line.metric}", "dim"))
        bars = Text(f"\n    {line.bars}" if line.bars else "", style="dim")
        cells = [Text(_padded(cell), style=_style(cell)) for cell in line.cells.values()]
        if not line.case:
            table.add_row(heading + bars, *cells)
            continue
        if line.attack != last:
            table.add_row(heading)
            last, metric = line.attack, line.metric
        case = Text("  " + line.case, style="dim" if line.control else "")
        if line.metric not in ("", metric):
            case.append(f" {line.metric}", style="dim")
        table.add_row(case + bars, *cells)
    return table


def _style(row: Row | None) -> str:
    """A cell's colour; what-ifs and controls are no findings about the job."""
    if row is None or row["detail"]["what_if"] or row["detail"]["control"]:
        return "dim"
    return STYLES[row["verdict"]]


def _padded(row: Row | None) -> str:
    """Padded so that figures are aligned whether they leak or not."""
    text = cell_text(row)
    return text if text.endswith(("!", "?")) else text + " "


def headline(rows: Sequence[Row]) -> str:
    """How many attacks on the job itself leak, in words; what is open is counted apart."""
    own = [row for row in rows if not (row["detail"]["control"] or row["detail"]["what_if"])]
    counts = Counter(row["verdict"] for row in own)
    figures = sum(row["value"] is not None for row in own)
    says = f"{counts['leaks']} of {figures} attacks on this job read more than chance and the model"
    says += " alone give."
    if undecided := counts["undecided"]:
        says += f" {undecided} undecided with {seeds_of(rows)}: more seeds decide (--repeats)."
    return says + (f" {counts['not_run']} not run." if counts["not_run"] else "")


def legend(rows: Sequence[Row]) -> list[str]:
    """What a reader needs to read the matrix by, and why cells have no figure."""
    notes = [
        f"! leaks: exceeds chance and the model alone by more than its margin ({seeds_of(rows)}, "
        "interval of the median); ? undecided: the interval holds the margin; · immune: the "
        "exchange leaves the attack nothing to work on; n/r not run: the attack could not be run, "
        "or not under these settings. A cell is a measurement, not a proof. What-ifs are settings "
        "that this job does not use."
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] in WITHOUT_FIGURE:
            sign = WITHOUT_FIGURE[row["verdict"]]
            where = reasons.setdefault((sign, row["detail"]["reason"]), [])
            where.append(f"{row['attack']} ({row['exchange']})")
    notes += [
        f"{sign} {', '.join(dict.fromkeys(where))}: {reason}"
        for (sign, reason), where in reasons.items()
    ]
    return notes


def advice_lines(rows: Sequence[Row]) -> list[str]:
    """What batches expose labels, and which the label guard permits."""
    found = [row for row in rows if "advice" in row["detail"]]
    if not found:
        return []
    advice = found[0]["detail"]["advice"]
    lines = [f"labels: {flag}" for flag in advice["flags"]]
    if (least := advice.get("least_batch_size")) is not None:  # absent from earlier results
        only = "" if least < advice["rows"] else f": with {advice['rows']:,} rows only full batches"
        lines.append(f"labels: the label guard permits fixed batches from S = {least:,} on{only}")
    return lines


def epsilon_lines(rows: Sequence[Row]) -> list[str]:
    """What was claimed beside what was measured, a line each."""
    return [
        f"epsilon, {row['exchange']}, {row['detail']['case']}: at least {figure(row['value'])} "
        f"(Clopper-Pearson alone {figure(row['detail']['clopper_pearson'])}) where "
        f"{figure(row['detail']['claimed_epsilon'])} is claimed, z = "
        f"{row['detail']['noise_multiplier']:.3g}, releases = {row['detail']['releases']}"
        for row in rows
        if row["attack"] == "epsilon" and row["value"] is not None
    ]


def advice_tables(rows: Sequence[Row]) -> list[Table]:
    """Labels read by batch size and by epochs, fixed batches beside reshuffled ones."""
    found = [row for row in rows if "advice" in row["detail"]]
    tables = []
    for curve in found[0]["detail"]["curves"] if found else ():
        table = empty_table(curve["title"], PADDING)
        table.add_column(curve["x_label"])
        for x in curve["x"]:
            table.add_column(str(x), justify="right", no_wrap=True)
        for name, values in curve["series"].items():
            table.add_row(name, *(figure(value) for value in values))
        table.caption = ", ".join(f"{name} {level:.3f}" for name, level in curve["lines"].items())
        table.caption_justify = "left"
        tables.append(table)
    return tables
