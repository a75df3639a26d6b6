"""The site that `make site` builds."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.from_code import command_line, job_file, party_file
from tests.docs.test_documents import commands

ROOT = Path(__file__).parents[2]


def test_every_command_is_on_the_page_of_commands() -> None:
    page = command_line()
    for command in commands():
        assert f"\n## securevfl {command}\n" in page
        assert f"Usage: securevfl {command} [OPTIONS]" in page


@pytest.mark.parametrize(("page", "least"), [(job_file, 70), (party_file, 45)])
def test_every_key_of_a_file_is_described_with_its_values(
    page: Callable[[], str], least: int
) -> None:
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|[^|]*\|(.*)\|$", page(), re.MULTILINE)
    assert len(rows) > least
    assert [key for key, values, meaning in rows if not (values.strip() and meaning.strip())] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_for_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for path in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r"""(?:src=|<link[^>]*href=|url\(|@import )["']?(https?://[^"')]*)""", text
        )
        assert loaded == [], path
