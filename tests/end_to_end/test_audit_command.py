"""`securevfl audit` on the command line: what it shows and writes, and how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.commands import rows_of, run, two_organizations

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

AUDIT_KEYS = {
    "attack", "exchange", "adversary", "side_knowledge", "metric", "value", "chance",
    "model_alone", "verdict", "detail",
}  # fmt: skip


def test_an_audit_shows_a_matrix_and_writes_json_and_a_page(capsys: Capture) -> None:
    chosen = ("--exchange", "plain,bfv", "--attack", "labels_from_residuals,gram")
    arguments = (*chosen, "--repeats", "2", "--workers", "1")
    written = ("--json", "a.json", "--html", "a.html")
    assert run("audit", two_organizations(), *arguments, *written) == 0
    rows = rows_of("a.json", "audit")
    assert all(set(row) == AUDIT_KEYS for row in rows)
    assert {row["exchange"] for row in rows} == {"plain", "bfv"}
    shown = capsys.readouterr().out
    assert "labels_from_residuals" in shown
    assert "bfv: residuals travel encrypted" in shown
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
    quick = ("--exchange", "bfv", "--attack", "labels_from_residuals", "--repeats", "1")
    assert run("audit", *quick, "--workers", "1", *arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"breast_cancer, 2 parties, {title}" in shown


def test_an_audit_whose_process_is_killed_ends_at_once_and_leaves_none() -> None:
    command = [sys.executable, "-m", "securevfl", "audit", "--exchange", "bfv,ckks"]
    process = subprocess.Popen(  # noqa: S603
        [*command, "--workers", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers = _wait_for_workers(process.pid)
    os.kill(workers[0], signal.SIGKILL)
    *_, error = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 2
    assert "a process of the audit was killed" in error
    left = _living(process.pid)
    for _ in range(100):
        if left:
            time.sleep(0.1)
            left = _living(process.pid)
    assert left == []


def _living(group: int) -> list[str]:
    """The command lines of a process group, without those that ended already."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, pgrp = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append(entry.joinpath("cmdline").read_text().replace("\0", " "))
    return found


def _wait_for_workers(parent: int) -> list[int]:
    """The pool's processes, once two have been working for a moment."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    for _ in range(600):
        spawned = [
            int(child)
            for child in children.read_text(encoding="ascii").split()
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        if len(spawned) == 2:
            time.sleep(2)
            return spawned
        time.sleep(0.1)
    raise AssertionError(parent)


def test_a_policy_can_be_typed() -> None:
    arguments = ("audit", "--exchange", "bfv", "--repeats", "1", "--workers", "1", "--quiet")
    query = ("--attack", "crafted_query", "--must-resist", "crafted_query")
    assert run(*arguments, *query) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--exchange", "bvf"), "--exchange = 'bvf'"),
        (("--attack", "gramm"), "attack = 'gramm'"),
        (("--dataset", "brest_cancer"), "breast_cancer"),
        (("--batch-size", "0"), "--batch-size"),
        (("--label-party", "nobody"), "label_party: 'nobody'"),
        (("--repeats", "0"), "repeats"),
        (("--attack", "gram", "--must-resist", "anchors"), "'anchors' is not run"),
        (("job.toml", "--dataset", "digits"), "the job file job.toml says that"),
        (("job.toml", "--batch-size", "64"), "the job file job.toml says that"),
        (("job.toml", "--local-steps", "1"), "the job file job.toml says that"),
        (("--batch-size", "100000"), "batch_size"),
        (("--learning-rate", "-1"), "learning_rate"),
        (("--learning-rate", "fast"), "--learning-rate = 'fast'"),
        (("--local-steps", "0"), "--local-steps = '0'"),
        (("--local-steps", "exact", "--learning-rate", "0.1"), "has no step size"),
    ],
)
def test_mistakes_in_an_audit_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: Capture
) -> None:
    quick = ("--exchange", "plain", "--workers", "1") if "--exchange" not in arguments else ()
    repeats = ("--repeats", "1") if "--repeats" not in arguments else ()
    assert run("audit", *arguments, *quick, *repeats, "--quiet") == 2
    error = capsys.readouterr().err
    assert error.startswith("securevfl: error: ")
    assert error.count("\n") == 1
    assert message in error
