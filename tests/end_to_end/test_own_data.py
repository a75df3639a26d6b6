"""Sweeps and benchmarks of a job file: its data, its parties and its settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.commands import rows_of, run, two_organizations

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
SWEEP = ("--noise", "0,2", "--repeats", "1", "--workers", "1")
COMMANDS = [
    ("bench tradeoff", ("--exchange", "plain")),
    ("bench rounds", ("--repeats", "1")),
    ("sweep noise", SWEEP),
]


def changed(*changes: tuple[str, str]) -> str:
    """The job of two organizations with some text replaced."""
    path = two_organizations()
    text = Path(path).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path(path).write_text(text, encoding="utf-8")
    return path


def settings_of(path: str) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))["settings"]
    return settings


def test_a_tradeoff_takes_a_jobs_data_settings_and_exchange(capsys: Capture) -> None:
    job = changed(("rounds = 30", "rounds = 9\nl2 = 0.01\ntarget_auc = 0.9"))
    assert run("bench", "tradeoff", job, "--json", "out.json") == 0
    plain, ckks = rows_of("out.json", "bench tradeoff")
    assert [row["exchange"] for row in (plain, ckks)] == ["plain", "ckks"]
    for row in (plain, ckks):
        assert (row["dataset"], row["max_rounds"], row["target_auc"]) == ("job", 9, 0.9)
        assert (row["local_steps"], row["learning_rate"]) == ("exact", None)
        assert row["reached_target"]
    told = settings_of("out.json")
    assert told["job"]["job"]["l2"] == 0.01
    assert [party["name"] for party in told["job"]["party"]] == ["bank", "shop"]
    assert "model" not in told
    assert "target:" not in capsys.readouterr().out


@pytest.mark.parametrize(("command", "quick"), COMMANDS[:2])
def test_without_a_target_it_is_a_little_less_than_the_job_reaches_in_clear(
    command: str, quick: tuple[str, ...], capsys: Capture
) -> None:
    job = two_organizations()
    arguments = (*quick, "--local-steps", "2,exact", "--json", "out.json")
    assert run(*command.split(), job, *arguments) == 0
    two, exact = rows_of("out.json", command)
    assert [two["local_steps"], exact["local_steps"]] == [2, "exact"]
    assert run("train", job, "--json", "train.json", "--quiet") == 0
    (trained,) = rows_of("train.json", "train")
    # The job of its own exchange is the one in clear, but for rounding.
    assert trained["auc"] - 0.0061 < exact["target_auc"] < trained["auc"] - 0.0039
    assert two["target_chosen"].startswith("0.005 below the job's own run in clear")
    assert two["target_chosen"] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("command", "quick"), COMMANDS[:2])
def test_a_jobs_own_step_size_is_taken_and_not_tuned(command: str, quick: tuple[str, ...]) -> None:
    steps = "learning_rate = 0.2\nlocal_steps = 3\nbatch_size = 40\ntarget_auc = 0.9"
    job = changed(("rounds = 30", f"rounds = 5\n{steps}"))
    assert run(*command.split(), job, *quick, "--json", "out.json") == 0
    (own,) = rows_of("out.json", command)
    assert (own["local_steps"], own["batch_size"]) == (3, 40)
    assert (own["learning_rate"], own["learning_rate_chosen"]) == (0.2, "given")
    assert run(*command.split(), job, *quick, "--local-steps=exact", "--json", "out.json") == 0
    (exact,) = rows_of("out.json", command)
    assert (exact["local_steps"], exact["batch_size"]) == ("exact", "full")
    assert exact["learning_rate"] is None


def test_a_job_that_learns_nothing_gives_no_target(capsys: Capture) -> None:
    job = two_organizations()
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    labels = np.random.default_rng(5).integers(0, 2, len(lines) - 1)
    noise = [f"{line[:-1]}{label}" for line, label in zip(lines[1:], labels, strict=True)]
    Path("bank.csv").write_text("\n".join([lines[0], *noise]), encoding="utf-8")
    assert run("bench", "tradeoff", job, "--exchange", "plain", "--quiet") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "give --target-auc" in error
    assert run("bench", "tradeoff", job, "--exchange", "plain", "--target-auc", "0.9") == 0


def test_a_sweep_takes_the_noise_and_steps_of_a_job(capsys: Capture) -> None:
    privacy = "[privacy]\nclip = 3.5\nrelease_budget = 2.0\n[exchange]\n"
    job = changed(("rounds = 30", "rounds = 4"), ("[exchange]\n", privacy))
    written = ("--json", "out.json", "--html", "out.html")
    assert run("sweep", "noise", job, *SWEEP, *written) == 0
    none, noisy = rows_of("out.json", "sweep noise")
    assert [none["noise_multiplier"], noisy["noise_multiplier"]] == [0, 2]
    for row in (none, noisy):
        assert (row["dataset"], row["algorithm"], row["clip"]) == ("job", "fedbcd-p", 3.5)
        assert row["learning_rate"] is None
        # What each party can do alone is less than both together.
        assert 0.6 < row["auc_local_only"] < row["auc_centralized"]
    assert noisy["releases"] == 4
    assert settings_of("out.json")["job"]["job"]["rounds"] == 4
    assert "step sizes from each party's own curvature" in " ".join(capsys.readouterr().out.split())
    assert "Noise sweep on job" in Path("out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("bench tradeoff", "--batch-size=5"),
        ("bench tradeoff", "--hide=both"),
        ("bench tradeoff", "--network=wan"),
        ("bench tradeoff", "--dataset=digits"),
        ("bench tradeoff", "--label-party=shop"),
        ("bench rounds", "--parties=2"),
        ("bench rounds", "--l2=0.1"),
        ("sweep noise", "--clip=2"),
        ("sweep noise", "--model=nn"),
        ("sweep noise", "--epochs=3"),
    ],
)
def test_what_a_job_says_cannot_be_said_again(command: str, option: str, capsys: Capture) -> None:
    job = two_organizations()
    assert run(*command.split(), job, option) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{option.replace('=', ' ')}: the job file job.toml says that" in error


@pytest.mark.parametrize(("command", "quick"), COMMANDS)
def test_a_seed_is_given_or_the_jobs(command: str, quick: tuple[str, ...]) -> None:
    job = changed(("rounds = 30", "rounds = 2\nseed = 7\ntarget_auc = 0.9"))
    for typed, seed in (((), 7), (("--seed", "0"), 0)):
        arguments = (*quick, *typed, "--json", "out.json", "--quiet")
        assert run(*command.split(), job, *arguments) == 0
        assert json.loads(Path("out.json").read_text(encoding="utf-8"))["seed"] == seed


@pytest.mark.parametrize(("command", "quick"), COMMANDS)
def test_few_rows_and_a_class_that_no_held_out_row_has(
    command: str, quick: tuple[str, ...], capsys: Capture
) -> None:
    job = changed(("rounds = 30", "rounds = 3\ntarget_auc = 0.6"))
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()[:61]
    # Three classes, the third of one row.
    lines[1] = lines[1][:-1] + "2"
    Path("bank.csv").write_text("\n".join(lines), encoding="utf-8")
    assert run(*command.split(), job, *quick, "--json", "out.json") == 0, capsys.readouterr().err
    assert all(row["dataset"] == "job" for row in rows_of("out.json", command))


@pytest.mark.parametrize(("command", "quick"), COMMANDS)
def test_real_targets_have_no_auc(command: str, quick: tuple[str, ...], capsys: Capture) -> None:
    job = changed(("rounds = 30", 'rounds = 3\nloss = "squared"'))
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    real = [f"{line}.{place}" for place, line in enumerate(lines[1:])]
    Path("bank.csv").write_text("\n".join([lines[0], *real]), encoding="utf-8")
    assert run(*command.split(), job, *quick) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "job.toml: targets are real" in error
