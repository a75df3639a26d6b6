import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securevfl.reports import results as module
from securevfl.reports.results import commit, keep, results


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    found = subprocess.run(  # noqa: S603
        ["git", "-C", str(folder), *who, *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "securevfl").mkdir()
    (tmp_path / "securevfl" / "code.py").write_text("a = 1\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    return tmp_path


def test_a_result_names_its_command_line_and_when_it_was_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed = ["/somewhere/bin/securevfl", "bench", "crypto", "--json", "x.json"]
    monkeypatch.setattr(sys, "argv", typed)
    path = tmp_path / "x.json"
    keep(path, command="bench crypto", seed=0, settings={}, rows=[{"a": 1}])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["argv"] == ["securevfl", *typed[1:]]
    assert found["command"] == "bench crypto"
    assert datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert found["machine"]["processor"]


def test_a_module_is_named_as_it_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/securevfl/__main__.py", "audit"])
    found = results(command="audit", seed=0, settings={}, rows=[])
    assert found["argv"] == ["python", "-m", "securevfl", "audit"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/bench/rounds/__main__.py", "a9a"])
    found = results(command="bench.rounds", seed=0, settings={}, rows=[])
    assert found["argv"] == ["python", "-m", "bench.rounds", "a9a"]


def test_a_result_names_the_commit(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert results(command="x", seed=0, settings={}, rows=[])["commit"] == head


def test_changed_code_is_no_commit(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "result.json").write_text("{}", encoding="utf-8")  # results are no code
    assert commit() == head
    (checkout / "securevfl" / "code.py").write_text("a = 2\n", encoding="utf-8")
    assert commit() == f"{head}-dirty"


def test_an_installed_package_has_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKOUT", checkout / "securevfl")
    assert commit() is None
