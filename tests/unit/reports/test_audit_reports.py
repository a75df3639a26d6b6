import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from securevfl.errors import DataError
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.reports.matrix import (
    advice_lines,
    advice_tables,
    cell_text,
    figure,
    headline,
    legend,
    lines_of,
    matrix,
)
from securevfl.reports.page import audit_page
from securevfl.reports.plots import curve_svg
from securevfl.reports.results import keep, results
from securevfl.shown import curve

CURVE = curve(
    "Labels <by> epochs", "epochs", "accuracy", [1, 2, 3], {"fixed": [0.5, None, 0.7]},
    lines={"own model": 0.6}, log_y=True,
)  # fmt: skip


FIGURES = {"leaks", "undecided", "no_leak_found"}


def row(attack: str, exchange: str, verdict: str, **other: Any) -> dict[str, Any]:  # noqa: ANN401
    detail = {
        "case": "",
        "control": False,
        "what_if": False,
        "reason": "no predictions",
        "values": [0.5, 0.5],
        **other.pop("detail", {}),
    }
    return {
        "attack": attack,
        "exchange": exchange,
        "adversary": "label party",
        "side_knowledge": "<its own>",
        "metric": "relative_error" if verdict in FIGURES else None,
        "value": 0.25 if verdict in FIGURES else None,
        "chance": 1.0,
        "model_alone": None,
        "verdict": verdict,
        "detail": detail,
        **other,
    }


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    advice = {
        "flags": ["750 rows have leverage 1"],
        "least_batch_size": 14600,
        "rows": 7300,
    }
    job = {"case": "this job", "curves": [CURVE], "advice": advice}
    return [
        row("gram", "plain", "leaks", detail=job),
        row("gram", "plain", "leaks", detail={"case": "control: Adam", "control": True}),
        row("anchors", "plain", "no_leak_found", value=2e-11),
        row("gram", "bfv", "undecided", model_alone=0.5, detail={"case": "this job"}),
        row("gram", "masked", "immune"),
        row("anchors", "masked", "immune"),
        row("anchors", "bfv", "not_run", detail={"reason": "too many rounds"}),
    ]


def text(rows: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(matrix(rows, "title"))
    return console.export_text()


def test_a_line_for_every_attack_and_case_over_all_exchanges(rows: list[dict[str, Any]]) -> None:
    lines = lines_of(rows)
    assert [(line.attack, line.case) for line in lines] == [
        ("gram", "this job"),
        ("gram", "control: Adam"),
        ("anchors", ""),
    ]
    assert [cell_text(cell) for cell in lines[0].cells.values()] == ["0.25!", "0.25?", "·"]
    assert [cell_text(cell) for cell in lines[1].cells.values()] == ["0.25", "", "·"]
    assert [cell_text(cell) for cell in lines[2].cells.values()] == ["2e-11", "n/r", "·"]


def test_the_matrix_fits_eighty_columns(rows: list[dict[str, Any]]) -> None:
    many = [{**each, "exchange": name} for name in EXCHANGES for each in rows[:3]]
    shown = text(many)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "gram error" in shown
    assert "0.25!" in shown


def test_the_headline_counts_leaks_and_tells_what_is_open_apart(
    rows: list[dict[str, Any]],
) -> None:
    assert headline(rows) == (
        "1 of 3 attacks on this job read more than chance and the model alone give. 1 undecided "
        "with 2 seeds: more seeds decide (--repeats). 1 not run."
    )
    assert headline(rows[2:3]) == (
        "0 of 1 attacks on this job read more than chance and the model alone give."
    )


def test_chance_and_the_model_alone_stand_below_the_name(rows: list[dict[str, Any]]) -> None:
    shown = text([*rows, row("gram", "dp", "leaks", chance=0.9, detail={"case": "this job"})])
    place = shown.index("this job")
    assert "chance 0.9 to 1, model alone 0.5" in shown[place:]


def test_the_legend_gives_every_reason_once(rows: list[dict[str, Any]]) -> None:
    notes = legend(rows)
    assert "2 seeds" in notes[0]
    assert notes[1:] == [
        "· gram (masked), anchors (masked): no predictions",
        "n/r anchors (bfv): too many rounds",
    ]


def test_advice_is_said_in_words(rows: list[dict[str, Any]]) -> None:
    lines = advice_lines(rows)
    assert lines[0] == "labels: 750 rows have leverage 1"
    assert lines[1] == (
        "labels: the label guard permits fixed batches from S = 14,600 on: with 7,300 rows only "
        "full batches"
    )
    assert advice_lines(rows[1:]) == []
    assert advice_tables(rows[1:]) == []
    (table,) = advice_tables(rows)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    assert "fixed" in shown
    assert "0.7" in shown
    assert "own model 0.600" in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.12345, "0.123"),
        (3e-15, "3e-15"),
        (12345.0, "1e+04"),
        (0.00249, "0.0025"),
    ],
)
def test_figures_are_short(value: float | None, shown: str) -> None:
    assert figure(value) == shown


def test_a_curve_is_an_svg_without_references() -> None:
    svg = curve_svg(CURVE)
    ET.fromstring(svg)  # noqa: S314  # our own
    assert "epochs" in svg
    assert "own model" in svg
    assert not re.search(r'(href|src)="(?!#)', svg)
    assert "metadata" not in svg
    assert curve_svg(CURVE) == svg


def test_the_page_holds_everything_itself_and_escapes(rows: list[dict[str, Any]]) -> None:
    settings = {"dataset": "<b>data</b>", "parties": 2}
    page = audit_page(results(command="audit", seed=0, settings=settings, rows=rows))
    assert "<b>data</b>" not in page
    assert "&lt;its own&gt;" in page
    assert "Labels &lt;by&gt; epochs" in page
    assert 'name="viewport"' in page
    assert "<script" not in page
    outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)|@import', page)
    assert outside == []
    assert headline(rows) in page
    assert "chance 1, model alone 0.5" in page
    assert 'class="immune" title="immune: no predictions">·' in page
    assert 'class="not_run" title="not run: too many rounds">n/r' in page
    assert "permits fixed batches from S = 14,600 on" in page
    assert page.count("<svg") == 1


def test_a_page_without_leaks_or_curves_is_a_page(rows: list[dict[str, Any]]) -> None:
    settings = {"dataset": "data", "parties": 2}
    page = audit_page(results(command="audit", seed=0, settings=settings, rows=rows[2:3]))
    assert "0 of 1 attacks" in page
    assert "undecided with" not in page
    assert "<svg" not in page


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"page .* cannot be written"):
        keep(
            None,
            tmp_path / "file" / "page.html",
            lambda _: "page",
            command="audit",
            seed=0,
            settings={},
            rows=[],
        )
