"""`securevfl audit`: what it shows and writes, how it ends, and which status a policy gives."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.commands import (
    LONG,
    children,
    command_of,
    example,
    living,
    rows_from,
    rows_of,
    run,
    started,
    two_organizations,
    wait_until,
)

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

AUDIT_KEYS = {
    "attack", "exchange", "adversary", "side_knowledge", "metric", "value", "chance",
    "model_alone", "verdict", "detail",
}  # fmt: skip
LABELS = "labels_from_residuals"
IN_CLEAR = ('scheme = "bfv"', 'scheme = "plain"')
QUICK = ("--repeats", "1", "--workers", "1")


def test_an_audit_shows_a_matrix_and_writes_json_and_a_page(capsys: Capture) -> None:
    chosen = f"--exchange plain,bfv --attack {LABELS},gram --repeats 2 --workers 1"
    rows = rows_from("audit", two_organizations(), *chosen.split(), "--html", "a.html")
    assert all(set(row) == AUDIT_KEYS for row in rows)
    assert {row["exchange"] for row in rows} == {"plain", "bfv"}
    shown = capsys.readouterr().out
    assert LABELS in shown
    assert f"{LABELS} (bfv): residuals travel" in " ".join(shown.split())
    page = Path("a.html").read_text(encoding="utf-8")
    assert "Privacy audit of " in page
    assert "<svg" in page


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ((), "S = full, Q = exact"),
        (("--batch-size", "64"), "S = 64, Q = exact"),
        (("--learning-rate", "0.1"), "S = full, Q = 5"),
        (("--local-steps", "2"), "S = full, Q = 2"),
    ],
)
def test_without_a_job_file_it_audits_what_jobs_do_that_say_no_more(
    arguments: tuple[str, ...], title: str, capsys: Capture
) -> None:
    assert run("audit", "--exchange", "bfv", "--attack", LABELS, *QUICK, *arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"breast_cancer, 2 parties, {title}" in shown


def test_an_audit_whose_process_is_killed_ends_at_once_and_leaves_none() -> None:
    with started("audit", "--exchange", "bfv,ckks", "--workers", "2") as process:
        wait_until(process, lambda: len(_workers(process.pid)) == 2)
        time.sleep(2)  # they have been working for a moment
        os.kill(_workers(process.pid)[0], signal.SIGKILL)
        *_, error = process.communicate(timeout=LONG)[1].splitlines()
        assert process.returncode == 2
        assert "a process of the audit was killed" in error
        wait_until(None, lambda: not living(process.pid))


def _workers(parent: int) -> list[int]:
    return [child for child in children(parent) if "spawn_main" in command_of(child)]


# ------------------------------------------------------------------------------- policies


def audited(*arguments: str) -> tuple[int, list[str]]:
    status = run("audit", "job.toml", *QUICK, "--quiet", "--json", "audit.json", *arguments)
    return status, [row["verdict"] for row in rows_of("audit.json", "audit")]


def test_a_policy_can_be_typed() -> None:
    query = ("--attack", "crafted_query", "--must-resist", "crafted_query")
    assert run("audit", "--exchange", "bfv", *QUICK, "--quiet", *query) == 1


@pytest.mark.parametrize(
    ("changes", "status", "verdict", "says"),
    [
        ((), 0, "immune", ""),
        ((IN_CLEAR,), 1, "leaks", f"{LABELS} leaks under plain: auc 1\n"),
        (
            (IN_CLEAR, ("[job]", '[job]\nloss = "squared"')),
            1,
            "not_run",
            f"{LABELS} was not run under plain: .*squared loss: the signs of its "
            "residuals do not reveal classes\n",
        ),
    ],
)
def test_a_policy_is_kept_by_structure_and_broken_by_a_leak_or_an_attack_that_cannot_be_run(
    changes: tuple[tuple[str, str], ...], status: int, verdict: str, says: str, capsys: Capture
) -> None:
    example(*changes)
    assert audited("--attack", LABELS) == (status, [verdict])
    assert re.fullmatch(says and f"securevfl: must_resist: {says}", capsys.readouterr().err)


def test_auditing_another_exchange_does_not_keep_the_jobs_policy(capsys: Capture) -> None:
    example()
    query = ("--attack", "ckks_key", "--must-resist", "ckks_key", "--exchange", "plain")
    assert audited(*query) == (1, ["immune"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "under bfv: nothing was measured" in line
