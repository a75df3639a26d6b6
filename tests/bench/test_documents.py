import json
from pathlib import Path
from typing import Any

import pytest

from bench.documents import by_columns, markdown, page, provenance, with_blocks
from securevfl.errors import ConfigError, DataError

BLOCK = "Before.\n\n<!-- table: steps {} -->\nold\n<!-- /table -->\n\nAfter.\n"

TABLES = {
    "steps": by_columns(
        ("scheme", lambda row: row["scheme"]), ("Q", lambda row: str(row["local_steps"]))
    )
}


def result(**other: Any) -> dict[str, Any]:  # noqa: ANN401
    row = {"scheme": "bfv", "local_steps": 1}
    return {
        "command": "bench tradeoff",
        "argv": ["securevfl", "bench", "tradeoff", "--quiet", "--json", "data/x.json"],
        "version": "0.1.0",
        "commit": "0123456789abcdef",
        "date": "2026-01-02T03:04:05+00:00",
        "seed": 0,
        "settings": {},
        "machine": {"processor": "A processor", "cores": 2},
        "rows": [row, {**row, "local_steps": 50}],
        **other,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.json").write_text(json.dumps(result()), encoding="utf-8")
    return tmp_path


def test_a_block_becomes_the_table_of_its_rows_and_says_where_they_are_from(folder: Path) -> None:
    written = page(BLOCK.format("x.json"), folder, TABLES)
    assert "old" not in written
    assert "| bfv    |  50 |" in written
    assert "Measured by `securevfl bench tradeoff`: version 0.1.0, commit 0123456789," in written
    assert written.startswith("Before.\n")
    assert written.endswith("After.\n")


def test_writing_a_page_again_changes_nothing(folder: Path) -> None:
    first = page("<!-- attacks -->\n<!-- /attacks -->\n", folder)
    assert "| adversary" in first
    assert page(first, folder) == first
    tables = page(BLOCK.format("x.json"), folder, TABLES)
    assert page(tables, folder, TABLES) == tables


def test_a_block_may_choose_rows(folder: Path) -> None:
    written = page(BLOCK.format("x.json local_steps=50"), folder, TABLES)
    assert "|  50 |" in written
    assert "|   1 |" not in written


@pytest.mark.parametrize("words", ["x.json local_steps=7", "none.json"])
def test_a_table_without_rows_is_an_error(words: str, folder: Path) -> None:
    with pytest.raises(DataError):
        page(BLOCK.format(words), folder, TABLES)


def test_an_unknown_kind_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="kind 'prose'"):
        page("<!-- table: prose x.json -->\n<!-- /table -->", folder)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- round -->\nleft open",
        "<!-- /round -->\nnever opened",
        "<!-- round -->\n<!-- round -->\n<!-- /round -->",
        "<!-- round -->\n<!-- /round -->\n<!-- /round -->\n<!-- round -->",
    ],
)
def test_markers_that_do_not_pair_are_an_error(text: str) -> None:
    with pytest.raises(DataError, match="'round'"):
        with_blocks(text, "round", lambda words: words)


def test_several_blocks_are_each_written() -> None:
    text = "<!-- a: 1 -->\n<!-- /a --> b <!-- a: 2 -->\nx\n<!-- /a -->"
    written = with_blocks(text, "a", lambda words: words * 2)
    assert written == "<!-- a: 1 -->\n11\n<!-- /a --> b <!-- a: 2 -->\n22\n<!-- /a -->"


def test_what_a_cell_holds_cannot_break_the_table() -> None:
    assert markdown([["a", "b"], ["x|y", "1"]]).splitlines()[2] == r"| x\|y |   1 |"


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    assert markdown([["name", "value"], ["q", "-3"], ["long name", "inf"]]).splitlines() == [
        "| name      | value |",
        "| --------- | ----: |",
        "| q         |    -3 |",
        "| long name |   inf |",
    ]


def test_runs_on_one_machine_share_a_line_and_others_do_not() -> None:
    def run(network: str, **other: Any) -> dict[str, Any]:  # noqa: ANN401
        return result(argv=["securevfl", "bench", "--network", network], **other)

    together = provenance([run("lan"), run("wan")])
    assert [line.split(":")[0] for line in together] == ["`securevfl bench --network {lan,wan}`"]
    apart = provenance([run("lan"), run("wan", commit="ffff-dirty"), run("x", commit=None)])
    assert len(apart) == 3
    assert "commit ffff and changes" in apart[1]
    assert "commit unknown" in apart[2]
