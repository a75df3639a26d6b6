"""Processes of a job end with their supervisor, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

LONG = 60.0  # seconds after which a test that waits has failed


@pytest.mark.usefixtures("clean_place")
def test_an_interrupt_ends_all_of_them(tmp_path: Path) -> None:
    """No process and no socket is left, and the command line says how it goes on."""
    Path("job.toml").write_text(
        "[job]\ndataset = 'breast_cancer'\nrounds = 1000000\n[output]\ncheckpoint_every = 1\n",
        encoding="utf-8",
    )
    ended, _ = _ends_when(
        lambda process: process.send_signal(signal.SIGINT), tmp_path, expected=130
    )
    assert ended[-1] == "securevfl: interrupted"
    assert any("rounds it goes on with: securevfl train job.toml" in line for line in ended)


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_actors_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    Path("job.toml").write_text(
        "[job]\ndataset = 'breast_cancer'\nrounds = 1000000\n[output]\ncheckpoint_every = 1\n",
        encoding="utf-8",
    )
    _ends_when(subprocess.Popen.kill, tmp_path, expected=-signal.SIGKILL)


def _ends_when(
    end: Callable[["subprocess.Popen[str]"], None], folder: Path, expected: int
) -> tuple[list[str], Mapping[int, str]]:
    """What a job of processes says that is ended in its midst, and that nobody is left of it."""
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "securevfl", "train", "job.toml", "--processes"]
    process = subprocess.Popen(  # noqa: S603
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    deadline = time.monotonic() + LONG
    while not (folder / "models" / "party2.state.before").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    children = _children(process.pid)
    assert len(children) == 2
    end(process)
    _, told = process.communicate(timeout=LONG)
    assert process.returncode == expected
    while left := [pid for pid in children if _lives(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    assert not list((folder / "tmp").iterdir())
    assert not (folder / "models" / ".actors").exists()
    return told.splitlines(), children


def _children(parent: int) -> dict[int, str]:
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text(encoding="utf-8")
            if f"\nPPid:\t{parent}\n" in text:
                found[int(status.parent.name)] = text
    return found


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
