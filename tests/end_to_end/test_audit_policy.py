"""`securevfl audit` in continuous integration: which exit status a policy gives."""

import pytest

from tests.end_to_end.commands import example, rows_of, run

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

LABELS = "labels_from_residuals"
IN_CLEAR = ('scheme = "bfv"', 'scheme = "plain"')
QUICK = ("--repeats", "1", "--workers", "1", "--quiet", "--json", "audit.json")


def audited(*arguments: str) -> tuple[int, list[str]]:
    """The exit status, and each row's verdict."""
    status = run("audit", "job.toml", *QUICK, *arguments)
    return status, [row["verdict"] for row in rows_of("audit.json", "audit")]


def test_the_example_keeps_its_policy_by_structure(capsys: Capture) -> None:
    example()
    assert audited("--attack", LABELS) == (0, ["immune"])
    assert capsys.readouterr().err == ""


def test_a_leak_breaks_a_policy(capsys: Capture) -> None:
    example(IN_CLEAR)
    assert audited("--attack", LABELS) == (1, ["leaks"])
    says = f"securevfl: must_resist: {LABELS} leaks under plain: auc 1\n"
    assert capsys.readouterr().err == says


def test_an_attack_that_cannot_be_run_breaks_a_policy(capsys: Capture) -> None:
    example(IN_CLEAR, ("[job]", '[job]\nloss = "squared"'))
    assert audited("--attack", LABELS) == (1, ["not_shown"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"securevfl: must_resist: {LABELS} is not shown to resist under plain: ")
    assert line.endswith("residuals of squared loss do not tell classes by sign")


def test_auditing_another_exchange_does_not_keep_the_jobs_policy(capsys: Capture) -> None:
    example()
    status, verdicts = audited("--attack", "ckks_key", "--must-resist", "ckks_key",
                               "--exchange", "plain")  # fmt: skip
    assert (status, verdicts) == (1, ["immune"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "under bfv: nothing was measured" in line
