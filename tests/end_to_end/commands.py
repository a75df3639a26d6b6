"""Command lines as tests type them."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from securevfl.cli.app import main


def run(*arguments: str) -> int:
    """The exit status of a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["securevfl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def rows_of(path: str, command: str) -> list[dict[str, Any]]:
    """The rows of a result file that has everything a result file has."""
    result = json.loads(Path(path).read_text(encoding="utf-8"))
    assert set(result) == {
        *("command", "argv", "version", "commit", "date"),
        *("seed", "settings", "machine", "rows"),
    }
    assert result["command"] == command
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def example(*changes: tuple[str, str]) -> str:
    """The path of the example job with some text replaced."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run("train", "--example") == 0
    text = printed.getvalue()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("job.toml").write_text(text, encoding="utf-8")
    return "job.toml"
