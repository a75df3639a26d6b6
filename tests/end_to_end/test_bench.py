"""Every `securevfl bench` command, run small: its rows are what `reports.rows` says they are."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, with_config
from typer.main import get_group

from securevfl.cli.bench import bench
from securevfl.reports import rows
from tests.end_to_end.commands import rows_of, run

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
SMALL: dict[str, tuple[type, int, str]] = {
    "tradeoff": (
        rows.TradeoffRow, 2,
        "--exchange plain,ckks --local-steps 5 --max-rounds 2 --learning-rate 0.3",
    ),
    "rounds": (
        rows.RoundsRow, 2,
        "--algorithm fedbcd-p --local-steps 1,5 --max-rounds 2 --learning-rate 0.3 --repeats 1",
    ),
    "crypto": (
        rows.CryptoRow, 5, "--samples 8 --features 2 --key-bits 2048 --repeats 1 --rounds 10",
    ),
    "staleness": (
        rows.StalenessRow, 2,
        "--dataset breast_cancer --staleness 0,unbounded --straggler none --rounds 20",
    ),
    "fdml": (
        rows.FdmlRow, 8, "--dataset breast_cancer --epochs 1 --hidden 2 --repeats 1",
    ),
    "cost-law": (
        rows.CostLawRow, 2, "--exchange bfv --local-steps 1,5 --rounds 1 --repeats 1",
    ),
    "overhead": (
        rows.OverheadRow, 1, "--samples 16 --features 4 --rounds 5 --repeats 1",
    ),
    "theorem1": (rows.Theorem1Row, 24, "--rounds 2 --batch-size 228"),
    "theorem2": (
        rows.Theorem2Row, 3,
        "--local-steps 5 --batch-size 228 --over-limit 1 --steps 20 --repeats 1 "
        "--rate-dataset breast_cancer --rate-rows 256 --roots 4,8",
    ),
    "label-guard": (rows.LabelGuardRow, 1, "--ratio 0.5 --epochs 1 --repeats 1"),
}  # fmt: skip


def test_every_command_is_run_here() -> None:
    assert set(get_group(bench).commands) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_command_shows_a_table_and_writes_its_rows(name: str, capsys: Capture) -> None:
    row, count, options = SMALL[name]
    assert run("bench", name, *options.split(), "--seed", "3", "--json", "out.json") == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if not line.startswith("key of")) <= 80
    assert "…" not in shown
    found = rows_of("out.json", f"bench {name}")
    assert len(found) == count
    # The keys and types that the row says, nothing more and nothing less.
    exactly: Any = with_config(extra="forbid")(row)
    adapter: TypeAdapter[Any] = TypeAdapter(exactly)
    for each in found:
        adapter.validate_json(json.dumps(each), strict=True)
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["seed"] == 3


def test_quiet_says_nothing(capsys: Capture) -> None:
    assert run("bench", "overhead", *SMALL["overhead"][2].split(), "--quiet") == 0
    assert capsys.readouterr() == ("", "")
