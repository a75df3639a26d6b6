"""Noise on the command line: sweeps, staleness and training jobs."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.commands import example, refused, rows_of, run, started, wait_until

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
SWEEP = (
    "sweep", "noise", "--dataset", "breast_cancer", "--noise", "0,2", "--epochs", "2",
    "--batch-size", "64", "--repeats", "2",
)  # fmt: skip


def test_a_sweep_shows_a_table_and_writes_json_and_a_page(capsys: Capture) -> None:
    arguments = (*SWEEP, "--model", "lr,nn", "--hidden", "4", "--workers", "1")
    assert run(*arguments, "--json", "out.json", "--html", "out.html") == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "best party alone" in shown
    rows = rows_of("out.json", "sweep noise")
    assert [(row["own_prediction"], row["model"], row["noise_multiplier"]) for row in rows] == [
        (own, model, z) for own in ("exact", "noisy") for model in ("lr", "nn") for z in (0, 2)
    ]
    page = Path("out.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "What is not promised" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_processes_give_the_same_rows() -> None:
    rates = ("--learning-rate", "0.3", "--quiet")
    for workers in ("1", "2"):
        assert run(*SWEEP, *rates, "--workers", workers, "--json", f"{workers}.json") == 0
    assert rows_of("1.json", "sweep noise") == rows_of("2.json", "sweep noise")


def test_a_killed_sweep_goes_on_and_fresh_forgets(capsys: Capture) -> None:
    arguments = [*SWEEP, "--learning-rate", "0.3", "--repeats", "30", "--workers", "1"]
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "securevfl" / "sweeps"
    with started(*arguments) as process:
        wait_until(process, lambda: any(path.stat().st_size > 2000 for path in folder.glob("*")))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert run(*arguments, "--json", "out.json") == 0
    assert "going on: " in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    assert len(rows_of("out.json", "sweep noise")[0]["aucs"]) == 30
    (folder / "journal").touch()
    assert run(*SWEEP, "--learning-rate", "0.3", "--fresh", "--workers", "1") == 0
    assert "going on" not in capsys.readouterr().err


def test_staleness_shows_who_waits(capsys: Capture) -> None:
    arguments = ("bench", "staleness", "--dataset", "breast_cancer", "--rounds", "60")
    more = ("--batch-size", "64", "--staleness", "0,3,unbounded", "--learning-rate", "0.3")
    assert run(*arguments, *more, "--target-auc", "0.98", "--json", "out.json") == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    rows = rows_of("out.json", "bench staleness")
    assert [row["straggler"] for row in rows[::3]] == ["none", "party1", "party2", "turns"]
    bulk, some, free = rows[3:6]
    assert (bulk["largest_lead"], some["largest_lead"]) == (0, 3)
    assert free["largest_lead"] > 3
    assert free["refused_pulls"] == 0 < some["refused_pulls"] <= bulk["refused_pulls"]
    in_turns = rows[9:]
    assert in_turns[0]["total_s"] > in_turns[2]["total_s"]
    assert all(row["seconds_to_target"] <= row["total_s"] for row in rows)
    # R(T) falls: batches are fitted better and better.
    assert bulk["regret"][0] > bulk["regret"][-1]


def test_a_job_with_noise_says_what_it_promises(capsys: Capture) -> None:
    job = example(
        ('scheme = "bfv"', 'scheme = "dp"'),
        ("[audit]", "[privacy]\nnoise_multiplier = 1.0\ngradient_clip = 1.0\n"
         "gradient_noise_multiplier = 4.0\nlabel_noise_multiplier = 2.0\n\n[audit]"),
        ("# target_auc = 0.99", "learning_rate = 0.3\neval_every = 0"),
    )  # fmt: skip
    # Noise is fresh in every run, and decides whether a party alone is better (status 4) or the
    # loss has risen by the end (5).
    assert run("train", job, "--json", "out.json") in (0, 4, 5)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    for said in (
        "epsilon of releases",
        "end to end",
        "held-out rows: releases = 1",
        "labels: z = 2",
        "fresh",
    ):
        assert said in shown
    promise = rows_of("out.json", "train")[0]["privacy"]
    assert promise["epsilon_end_to_end"] > promise["epsilon_release"] > 0
    assert promise["epsilon_label"] > 0


def test_a_job_beyond_its_budget_is_one_line(capsys: Capture) -> None:
    job = example(
        ('scheme = "bfv"', 'scheme = "dp"'),
        ("[audit]", "[privacy]\nnoise_multiplier = 1.0\nrelease_budget = 2.0\n\n[audit]"),
    )
    error = refused(capsys, "train", job)
    assert error.count("\n") == 1
    assert "the budget is 2" in error
    assert not Path("models").exists()


def test_fdml_is_a_job_like_others(capsys: Capture) -> None:
    job = example(
        ('algorithm = "fedbcd-p"', 'algorithm = "fdml"'),
        ('scheme = "bfv"', 'scheme = "plain"'),
        ("target_auc = 0.99", ""),
    )
    assert run("train", job, "--json", "out.json") == 0
    row = rows_of("out.json", "train")[0]
    assert row["algorithm"] == "fdml"
    assert row["auc"] > 0.97
    assert "models:" in capsys.readouterr().out


STALENESS = ("bench", "staleness", "--dataset", "breast_cancer")
MISTAKES: list[tuple[list[str], str]] = [
    (["sweep", "noise", "--noise", "0,one"], "--noise"),
    (["sweep", "noise", "--noise=-1", "--dataset", "breast_cancer"], "noise_multiplier"),
    (["sweep", "noise", "--model", "svm"], "--model"),
    (["sweep", "noise", "--clip", "0", "--dataset", "breast_cancer"], "clip"),
    (["sweep", "noise", "--delta", "2", "--dataset", "breast_cancer"], "delta"),
    (["sweep", "noise", "--mechanism", "cauchy"], "--mechanism"),
    (["sweep", "noise"], "securevfl data get a9a"),
    (["bench", "staleness", "--staleness", "-1"], "--staleness"),
    (["bench", "staleness", "--dataset", "breast_cancer", "--straggler", "me"], "party1"),
    ([*STALENESS, "--learning-rate", "0.3", "--rounds", "2", "--factor", "0"], "pace"),
    (["bench", "staleness", "--dataset", "digits"], "10 classes"),
    (["bench", "staleness", "--dataset", "breast_cancer", "--label-party", "me"], "'me'"),
    (["sweep", "noise", "--dataset", "breast_cancer", "--label-party", "me"], "'me'"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_mistake_gets_one_line_and_exit_status_2(
    capsys: Capture, arguments: list[str], told: str
) -> None:
    error = refused(capsys, *arguments)
    assert error.count("\n") == 1
    assert told in error


def test_json_holds_no_infinity() -> None:
    arguments = ("--learning-rate", "0.3", "--workers", "1", "--quiet", "--json", "out.json")
    assert run(*SWEEP, *arguments) == 0

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(Path("out.json").read_text(encoding="utf-8"), parse_constant=refuse)
