"""The documents say what the code does."""

import re
from pathlib import Path

import pytest
import typer.main

from securevfl.cli.app import app
from securevfl.protocols.catalogue import EXCHANGES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every command as it is typed, without `securevfl`."""
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", None)
        found += [f"{name} {part}" for part in parts] if parts else [name]
    return found


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme(command: str) -> None:
    assert command in README


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_exchange_is_in_the_table_of_who_learns_what(exchange: str) -> None:
    table = README.split("## Who learns what")[1].split("\n## ")[0]
    assert f"`{exchange}`" in table


def test_every_layer_is_in_the_diagram() -> None:
    diagram = README.split("## How it is built")[1].split("```")[1]
    for module in sorted((ROOT / "securevfl").iterdir()):
        name = module.stem
        if not name.startswith("_") and name != "py":
            assert name in diagram, name


@pytest.mark.parametrize("document", ["README.md", "SECURITY.md", "docs/threat-model.md"])
def test_links_and_named_files_exist(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target
    for target in re.findall(r"`((?:tests|bench|docs|crypto|protocols)/[\w./]+)`", text):
        assert (ROOT / target).exists() or (ROOT / "securevfl" / target).exists(), target


def test_no_file_is_longer_than_400_lines() -> None:
    for path in (ROOT / "securevfl").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_the_guards_limit_is_the_documented_one() -> None:
    assert "above ⅛" in SECURITY
