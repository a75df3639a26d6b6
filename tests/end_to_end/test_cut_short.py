"""Long work that is interrupted: what was done is there, marked, and nothing goes on behind it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from securevfl.cli import options
from securevfl.training import train
from tests.end_to_end.commands import (
    LONG,
    living,
    result_in,
    run,
    started,
    two_organizations,
    wait_until,
)
from tests.jobs import breast_cancer

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
# Its seeds take a blink each, and it is never through before it has said how long it will take.
AUDIT = ("--attack", "labels_from_residuals", "--exchange", "plain", "--repeats", "3000")
POLICY = ("--must-resist", "labels_from_residuals")


def cut_short(*arguments: str, status: int = 130) -> tuple[dict[str, Any], list[str], str]:
    """A command interrupted once it has said how long it will take.

    Returns:
        Its result file, the lines on stderr, and what it showed.
    """
    with started(*arguments, "--json", "out.json") as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if line.endswith(" left\n"):
                break
        os.killpg(process.pid, signal.SIGINT)
        shown, rest = process.communicate(timeout=LONG)
        lines += rest.splitlines()
        assert process.returncode == status, lines
        wait_until(None, lambda: not living(process.pid))
    return result_in(), lines, shown


def _ends(lines: Sequence[str]) -> None:
    assert lines[-1] == "securevfl: interrupted"
    assert not any("Traceback" in line for line in lines)


def test_an_audit_shows_and_writes_the_seeds_that_were_done() -> None:
    job = two_organizations()
    arguments = ("audit", job, *AUDIT, *POLICY, "--workers", "2", "--html", "out.html")
    result, lines, shown = cut_short(*arguments)
    _ends(lines)
    assert lines[0] == "audit of job: attacks: 1, seeds: 3000, exchanges: plain"
    assert lines[1].startswith("about ")
    (row,) = result["rows"]
    done = len(row["detail"]["values"])
    assert 1 <= done < 3000
    assert result["partial"] is True
    assert result["missing"] == [f"plain: {3000 - done} of 3000 seeds"]
    mark = f"PARTIAL, interrupted: missing plain: {3000 - done} of 3000 seeds"
    assert shown.startswith(mark)
    assert mark in Path("out.html").read_text(encoding="utf-8")
    # An attack that leaks says so, and what is not whole shows nothing.
    leak, unfit = [line for line in lines if "must_resist" in line][:2]
    assert "labels_from_residuals leaks under plain" in leak
    assert unfit.endswith(f"was not run under plain: {mark}")


def test_a_sweep_keeps_what_it_has_done_twice_over() -> None:
    job = two_organizations()
    arguments = ("sweep", "noise", job, "--noise", "0,1", "--workers", "1", "--repeats", "40")
    result, lines, shown = cut_short(*arguments)
    _ends(lines)
    assert result["partial"] is True
    # What both levels are compared with is there, and as many seeds as were done.
    assert [row["noise_multiplier"] for row in result["rows"]] == [0, 1]
    for row in result["rows"]:
        assert 1 <= row["repeats"] == len(row["aucs"]) < 40
    assert "PARTIAL" in shown
    journals = Path(os.environ["XDG_CACHE_HOME"]) / "securevfl" / "sweeps"
    assert len(list(journals.iterdir())) == 1


@pytest.mark.parametrize("rows", [0, 1])
def test_a_benchmark_gives_the_rows_that_were_done(
    rows: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    runs = []

    def stopping(*arguments: Any) -> Any:  # noqa: ANN401
        runs.append(arguments)
        if len(runs) > rows:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr("securevfl.benchmarks.tradeoff.train", stopping)
    before = signal.getsignal(signal.SIGINT)
    job, written = two_organizations(), ("--target-auc", "0.9", "--json", "out.json")
    assert run("bench", "tradeoff", job, *written) == 130
    signal.signal(signal.SIGINT, before)
    assert Path("out.json").exists() == bool(rows)
    if rows:
        result = result_in()
        assert [row["exchange"] for row in result["rows"]] == ["plain"]
        assert result["missing"] == ["ckks, Q = exact, run 1 of 1, round 0, and what follows it"]
        assert "PARTIAL" in capsys.readouterr().out


def test_a_second_interrupt_ends_at_once() -> None:
    script = (
        "import os, signal, time\n"
        "from securevfl.cli.reporting import finished\n"
        "from securevfl.interrupts import Interrupted\n"
        "def work():\n"
        "    raise Interrupted([1], ['2'])\n"
        "print(finished(work), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(1e6)\n"
    )
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stdout == "([1], ('2',))\n"
    assert ended.stderr == "securevfl: interrupted\n"


def test_a_first_look_is_marked_and_keeps_no_policy(capsys: Capture) -> None:
    job = two_organizations()
    text = Path(job).read_text(encoding="utf-8")
    policy = '[audit]\nmust_resist = ["ckks_key"]\n'
    Path(job).write_text(text.replace("[exchange]", f"{policy}[exchange]"), encoding="utf-8")
    chosen = ("--exchange", "plain", "--attack", "ckks_key", "--workers", "1")
    arguments = ("audit", job, "--quick", *chosen)
    assert run(*arguments, "--json", "out.json", "--html", "out.html") == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("QUICK")
    assert "QUICK" in Path("out.html").read_text(encoding="utf-8")
    told = result_in()
    assert told["settings"]["quick"] is True
    assert (told["rows"][0]["verdict"], told["settings"]["repeats"]) == ("immune", 1)
    assert "ckks_key was not run under plain: QUICK" in shown.err
    assert run(*arguments, "--must-resist", "ckks_key") == 2
    assert run(*arguments, "--repeats", "3") == 2


@pytest.mark.parametrize(("size", "rows"), [("full", 100), (None, 100), (150, 150), (999, 456)])
def test_a_first_look_has_room_for_a_batch(
    size: int | str | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.cli.options.QUICK_ROWS", 100)
    assert len(options.fewer_rows(breast_cancer(), size).train_labels) == rows
