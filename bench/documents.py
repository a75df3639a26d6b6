"""Tables in Markdown pages, written from result files: `python -m bench --tables`.

A page is written by hand but for its blocks,

    <!-- table: KIND FILE.json ... key=value ... -->
    <!-- /table -->

between whose markers stand the rows of the files, relative to the page, that have those values,
as a table of that kind (`TABLES`), and below it what was run, when, on which code and machine;
and blocks `exchanges: learns`, `exchanges: choose` and `attacks`, which are written from
descriptions.
"""

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.protocols.exchange import Exchange, Learns, Variant
from securevfl.reports.matrix import cell_text, exchanges_of, lines_of
from securevfl.reports.tables import TRADEOFF, Column, Row, with_offline

ROOT = Path(__file__).parents[1]
OUTSIDE = tuple(
    ROOT / name for name in ("SECURITY.md", "docs/how-to/audit.md", "docs/reference/exchanges.md")
)
"""Pages with tables that are not of an experiment."""
WIDTH = 100
PARTIES = (2, 3, 5)
FIGURE = re.compile(r"[+-]?\d")
Cells = list[list[str]]
"""The headings, then a list for every row."""
MakeCells = Callable[[Sequence[Row]], Cells]
"""From the rows of result files to a table."""


def by_columns(*columns: Column[Any]) -> Callable[[Sequence[Row]], Cells]:
    """A table with one line a row; more columns where one made something before its rounds."""

    def cells(rows: Sequence[Row]) -> Cells:
        shown = with_offline(columns, rows)
        return [
            [heading for heading, _ in shown],
            *([show(row) for _, show in shown] for row in rows),
        ]

    return cells


def audit_matrix(rows: Sequence[Row]) -> Cells:
    """Attacks and their cases down, exchanges across."""
    headings = ["attack", "case", "figure", *exchanges_of(rows)]
    return [
        headings,
        *(
            [
                f"`{line.attack}`",
                line.case,
                line.metric,
                *(cell_text(cell) for cell in line.cells.values()),
            ]
            for line in lines_of(rows)
        ),
    ]


_SHOWN = dict(TRADEOFF)

_OPENING = by_columns(
    ("data", lambda row: str(row["dataset"])),
    ("to AUC", lambda row: f"{row['target_auc']:.2f}"),
    *((name, _SHOWN[name]) for name in ("exchange", "Q", "rounds", "total", "sent")),
)

TABLES: Mapping[str, MakeCells] = {
    "tradeoff": by_columns(*TRADEOFF),
    "opening": lambda rows: _OPENING(
        [row for row in rows if row["exchange"] != "plain" or row["local_steps"] == 1]
    ),
    "audit": audit_matrix,
}


def who_learns_what() -> Cells:
    """A heading, then a line for each role; exchanges that show the same share their lines."""
    found: dict[Learns, list[tuple[str, Variant]]] = {}
    for exchange, variant in _all():
        learns = exchange.learns(job_of(exchange, variant))
        found.setdefault(learns, []).append((exchange.name, variant))
    table: Cells = [["exchange", "party", "learns", "does not learn"]]
    for learns, who in found.items():
        table.append([_together(who), "label party", learns.label_party, learns.label_party_not])
        table.append(["", "feature party", learns.feature_party, learns.feature_party_not])
    for algorithm in ALGORITHMS.values():
        for number, role in enumerate(algorithm.roles):
            table.append([f"algorithm `{algorithm.name}`" if number == 0 else "", *role])
    return table


def what_to_choose() -> Cells:
    """A heading, then a line for exchanges that show the same at the same number of messages."""
    found: dict[tuple[str, str, str], list[tuple[str, Variant]]] = {}
    for exchange, variant in _all():
        job = job_of(exchange, variant)
        learns = exchange.learns(job)
        counts = [
            str(exchange.messages(job.exchange, each)) if each >= exchange.fewest_parties else "-"
            for each in PARTIES
        ]
        shown = (learns.label_party, learns.feature_party, " / ".join(counts))
        found.setdefault(shown, []).append((exchange.name, variant))
    parties = " / ".join(map(str, PARTIES))
    heading = ["exchange", "label party learns", "feature party learns", f"messages, K = {parties}"]
    return [heading, *([_together(who), *shown] for shown, who in found.items())]


def job_of(exchange: Exchange, variant: Variant) -> Job:
    """A job under an exchange with the settings of a variant."""
    sections = {**variant, "exchange": {"scheme": exchange.name, **variant.get("exchange", {})}}
    return Job.of(**sections)


def _all() -> list[tuple[Exchange, Variant]]:
    return [(each, variant) for each in EXCHANGES.values() for variant in each.variants]


def _together(exchanges: Iterable[tuple[str, Variant]]) -> str:
    """Names with the same settings beside each other, and then the settings."""
    by_settings: dict[str, list[str]] = {}
    for name, variant in exchanges:
        settings = [pair for section in variant.values() for pair in section.items()]
        said = [f" with `{key} = {json.dumps(value)}`" for key, value in settings]
        by_settings.setdefault("".join(said), []).append(f"`{name}`")
    return "; ".join(", ".join(names) + said for said, names in by_settings.items())


def attacks() -> Cells:
    """A heading, then a line for each attack."""
    from securevfl.auditing.measuring import known_attacks  # noqa: PLC0415  # loads scipy

    lines = [
        [f"`{each.name}`", each.adversary, each.side_knowledge] for each in known_attacks().values()
    ]
    return [["attack", "adversary", "given beside its view"], *lines]


EXCHANGE_TABLES = {"learns": who_learns_what, "choose": what_to_choose}


def with_blocks(text: str, name: str, content: Callable[[str], str]) -> str:
    """A page with what stands between `<!-- name: WORDS -->` and `<!-- /name -->` written anew.

    Args:
        text: the page.
        name: of the blocks.
        content: from a block's words to its lines.

    Raises:
        DataError: a block that is not closed, or closed twice.
    """
    opening = rf"<!-- {name}(?:: ([^>]*))? -->"
    counts = len(re.findall(opening, text)), text.count(f"<!-- /{name} -->")
    pattern = re.compile(rf"({opening})\n(?:(?!{opening}).)*?<!-- /{name} -->", re.DOTALL)
    if len(pattern.findall(text)) != counts[0] or counts[0] != counts[1]:
        raise DataError(f"{counts[0]} blocks of {name!r} are opened and {counts[1]} closed")
    return pattern.sub(
        lambda found: f"{found[1]}\n{content(found[2] or '')}\n<!-- /{name} -->", text
    )


def page(text: str, folder: Path, tables: Mapping[str, MakeCells] | None = None) -> str:
    """A page with its tables written from the result files beside it, and from descriptions.

    Args:
        text: the page.
        folder: of the result files.
        tables: kinds of tables beside those in `TABLES`.

    Raises:
        ConfigError: a kind of table that is not known.
        DataError: a file or a row that is not there, a block that is not closed.
    """
    text = with_blocks(text, "exchanges", lambda words: markdown(EXCHANGE_TABLES[words]()))
    text = with_blocks(text, "attacks", lambda _: markdown(attacks()))
    return with_blocks(
        text, "table", lambda words: _table(words, folder, {**TABLES, **(tables or {})})
    )


def markdown(cells: Cells) -> str:
    """A table whose columns stand below one another in the raw text too; figures to the right."""
    columns = []
    for heading, *others in zip(*cells, strict=True):
        texts = [text.replace("|", r"\|") for text in (heading, *others)]
        width = max(3, *map(len, texts))
        figures = any(FIGURE.match(text) for text in others)
        rule = "-" * (width - 1) + ":" if figures else "-" * width
        padded = [text.rjust(width) if figures else text.ljust(width) for text in texts]
        columns.append([padded[0], rule, *padded[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def provenance(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was run, on which code and machine, and when; a line for runs that share all that.

    Words of the command lines that differ stand in braces.
    """
    runs: dict[str, list[list[str]]] = {}
    for result in results:
        commit, _, dirty = (result["commit"] or "unknown").partition("-")
        machine = result["machine"]
        where = (
            f"version {result['version']}, commit {commit[:10]}{dirty and ' and changes'}, "
            f"{result['date'][:10]}, {machine['processor']}, {machine['cores']} cores"
        )
        runs.setdefault(where, []).append(_typed(result["argv"]))
    return [f"`{_in_braces(lines)}`: {where}." for where, lines in runs.items()]


def _typed(argv: Sequence[str]) -> list[str]:
    """A command line without where its result went."""
    words = [word for word in argv if word != "--quiet"]
    if "--json" in words:
        place = words.index("--json")
        del words[place : place + 2]
    return words


def _in_braces(lines: Sequence[Sequence[str]]) -> str:
    if len({len(line) for line in lines}) > 1:
        return "`, `".join(map(shlex.join, lines))
    choices = [list(dict.fromkeys(map(shlex.quote, words))) for words in zip(*lines, strict=True)]
    return " ".join(words[0] if len(words) == 1 else f"{{{','.join(words)}}}" for words in choices)


def _table(words: str, folder: Path, tables: Mapping[str, MakeCells]) -> str:
    kind, *others = words.split()
    if kind not in tables:
        raise ConfigError(f"table of kind {kind!r}: known are {', '.join(tables)}")
    wanted = dict(word.split("=", 1) for word in others if "=" in word)
    results = [_read(folder / word) for word in others if "=" not in word]
    rows = [
        {**row, "settings": result["settings"]}
        for result in results
        for row in result["rows"]
        if all(str(row[key]) == value for key, value in wanted.items())
    ]
    if not rows:
        raise DataError(f"table {words!r}: no such rows")
    runs = [
        textwrap.fill(f"Measured by {line}", WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in provenance(results)
    ]
    return "\n\n".join([markdown(tables[kind](rows)), *runs])


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"result file {path} cannot be read: {error.strerror}") from error
    return result
