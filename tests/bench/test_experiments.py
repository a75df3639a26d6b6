"""Every experiment: its page, its command line, and a small run of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.documents import OUTSIDE
from bench.experiment import HERE, experiment, experiments, main

NAMES = experiments()


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_what_result_files_say(name: str) -> None:
    """`make docs` writes them."""
    of = experiment(name)
    assert of.write_tables() == (of.folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_in_the_overview_with_its_command(name: str) -> None:
    assert f"`python -m bench.{name}`" in (HERE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_result_file_is_of_a_run_and_in_a_table(name: str) -> None:
    of = experiment(name)
    files = set(of.folder.glob("*.json"))
    assert {path.stem for path in files} <= set(of.runs)
    assert files <= {
        (path.parent / word).resolve()
        for path in (of.folder / "README.md", *OUTSIDE)
        for block in re.findall("<!-- table: ([^>]*) -->", path.read_text(encoding="utf-8"))
        for word in block.split()
    }


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    return subprocess.run(  # noqa: S603
        command, cwd=HERE.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_writes_rows(name: str, tmp_path: Path) -> None:
    assert run(name, "--help").returncode == 0
    of = experiment(name)
    first = next(iter(of.runs))
    plots = ["--html", str(tmp_path)] if of.html else []
    done = run(name, first, "--quick", "--to", str(tmp_path), *plots)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / f"{first}.json").read_text(encoding="utf-8"))["rows"]
    assert done.stdout
    if of.html:
        assert "<svg" in (tmp_path / f"{first}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nothing",), "no run 'nothing': there are theorem1"),
        (("--set", "rounds=many"), "--set rounds: "),
        (("--set", "epochs=3"), "--set epochs: "),
        (("--set", "rounds"), "expected KEY=VALUE"),
        (("--html", "plots"), "--html: theorem1 has no page of plots"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["theorem1", *arguments])
    with pytest.raises(SystemExit) as ended:
        main(experiment("theorem1"))
    shown = capsys.readouterr().err
    assert (ended.value.code, shown.count("\n")) == (2, 1)
    assert expected in shown
