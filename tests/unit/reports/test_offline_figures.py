"""What was made before rounds in tables, pages and notes, and rows that know nothing of it."""

import io
from typing import Any

import pytest
from rich.console import Console

from bench.documents import TABLES
from securevfl.reports.rows import JobRow, any_offline, made_offline, offline_s
from securevfl.reports.tables import (
    CORRELATED_RANDOMNESS,
    TRADEOFF,
    offline_table,
    tradeoff_notes,
    with_offline,
)
from securevfl.reports.trained import PHASES, costs

OLD: Any = {
    "exchange": "paillier",
    "key_bits": 3072,
    "hide": "both",
    "local_steps": 10,
    "he_per_step": True,
    "batch_size": 64,
    "rounds": 8,
    "reached_target": True,
    "auc": 0.99,
    "compute_s": 3.0,
    "communication_s": 1.0,
    "total_s": 4.0,
    "setup_s": 0.5,
    "wall_s": 9.0,
    "bytes_sent": 8000,
    "compute_by_phase_s": {**dict.fromkeys(PHASES, 0.0), "local": 3.0},
    "label_guard_ratio": None,
    "learning_rate": None,
    "learning_rate_chosen": "given",
    "key_fingerprints": {},
}
"""As result files have it that were written before anything was made offline."""
NONE: Any = {
    **OLD,
    "offline_compute_s": 0.0,
    "offline_communication_s": 0.0,
    "offline_bytes": 0,
    "offline_ciphertext_bytes": 0,
    "offline_messages": 0,
}
SOME: Any = {
    **NONE,
    "compute_s": 5.5,
    "communication_s": 1.25,
    "total_s": 6.75,
    "bytes_sent": 9000,
    "compute_by_phase_s": {**OLD["compute_by_phase_s"], "correlated_randomness": 2.5},
    "offline_compute_s": 2.5,
    "offline_communication_s": 0.25,
    "offline_bytes": 1000,
    "offline_messages": 2,
}


def shown(columns: Any, row: Any) -> dict[str, str]:  # noqa: ANN401
    return {heading: show(row) for heading, show in columns}


@pytest.mark.parametrize("row", [OLD, NONE], ids=["old", "none"])
def test_a_row_without_the_figures_made_nothing_offline(row: JobRow) -> None:
    assert made_offline(row, "offline_compute_s") == made_offline(row, "offline_bytes") == 0.0
    assert not any_offline([row])
    assert with_offline(TRADEOFF, [row]) == TRADEOFF
    assert offline_table(TRADEOFF[:2], [row]) is None
    assert not any("offline" in note for note in tradeoff_notes([row]))
    assert shown(TRADEOFF, row)["a round"] == "500 ms"
    assert costs(row) == costs(OLD)


@pytest.mark.parametrize("figure", [name for name in NONE if name.startswith("offline_")])
def test_any_figure_shows_the_columns(figure: str) -> None:
    assert any_offline([OLD, {**NONE, figure: 1}])


def test_columns_say_what_was_made_offline_and_a_round_is_without_it() -> None:
    columns = with_offline(TRADEOFF, [OLD, SOME])
    assert columns == (*TRADEOFF, *CORRELATED_RANDOMNESS)
    found, other = shown(columns, SOME), shown(columns, OLD)
    assert (found["total"], found["a round"]) == ("6.75 s", "500 ms")
    assert [found[heading] for heading, _ in CORRELATED_RANDOMNESS] == [
        "2.5 s",
        "250 ms",
        "2.75 s",
        "1 kB",
    ]
    assert [other[heading] for heading, _ in CORRELATED_RANDOMNESS] == ["-"] * 4
    assert offline_s(SOME) == 2.75
    assert "compute, network, total and sent include the offline phase" in str(
        tradeoff_notes([OLD, SOME])
    )


def test_its_table_has_the_rows_that_made_some_and_80_columns() -> None:
    widest = {**SOME, "offline_compute_s": 0.123, "offline_bytes": 123e6}
    table = offline_table(TRADEOFF[:2], [OLD, widest])
    assert table is not None
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    title, _, _, *lines = console.file.getvalue().rstrip().splitlines()
    assert title.strip() == "made before rounds, part of the totals above"
    assert len(lines) == 1
    assert " ".join(lines[0].split()) == "paillier-3072 both 10 HE 123 ms 250 ms 373 ms 123 MB"
    assert len(lines[0]) <= 80


def test_tables_in_documents_have_the_columns_where_a_row_made_some() -> None:
    plain, more = TABLES["tradeoff"]([OLD]), TABLES["tradeoff"]([OLD, SOME])
    assert [line[: len(plain[0])] for line in more[:2]] == plain
    assert more[0][-4:] == [heading for heading, _ in CORRELATED_RANDOMNESS]
    assert more[2][-4:] == ["2.5 s", "250 ms", "2.75 s", "1 kB"]


def test_a_jobs_costs_list_what_was_made_offline_once() -> None:
    listed = dict(costs(SOME))
    assert listed["steps on own data"] == "3 s"
    assert listed["network"] == "1 s"
    assert listed["all rounds"] == "4 s"
    assert listed["computation before rounds"] == "2.5 s"
    assert listed["network before rounds"] == "250 ms"
    assert listed["in all"] == "6.75 s"
    assert (listed["sent"], listed["of it offline"]) == ("9 kB", "1 kB")
