"""The gates of `make check` close."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imports_gate(copy: Path) -> tuple[int, str]:
    """Exit status and output of the Makefile's own target, in a copy of the repository."""
    # --old-file: the copy has no environment of its own and is to make none.
    command = ["make", "imports", "--old-file=.venv/installed-dev"]
    done = subprocess.run(  # noqa: S603
        [*command, f"BIN={Path(sys.executable).parent}"],
        cwd=copy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split())


def test_an_upward_import_fails_the_gate(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "securevfl", tmp_path / "securevfl")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    settings = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(each["name"] for each in contracts if each["type"] == "layers")
    status, output = imports_gate(tmp_path)
    assert (status, f"{layers} KEPT" in output) == (0, True), output
    planted = tmp_path / "securevfl" / "crypto" / "planted.py"
    planted.write_text("import securevfl.cli\n", encoding="utf-8")
    status, output = imports_gate(tmp_path)
    assert (status != 0, f"{layers} BROKEN" in output) == (True, True), output
    assert "securevfl.crypto.planted" in output
