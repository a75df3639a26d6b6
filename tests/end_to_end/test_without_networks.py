"""Linear jobs take no torch, and a network without it is one line."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("clean_place")
LINE = "need torch: pip install 'securevfl[networks]'"
# Blocked where modules are found: scipy stumbles over a None among those that are loaded.
WITHOUT_TORCH = """
import runpy, sys
from importlib.machinery import PathFinder
class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "torch" else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
for line in sys.stdin.read().splitlines():
    sys.argv = ["securevfl", *line.split()]
    try:
        runpy.run_module("securevfl", run_name="__main__")
    except SystemExit as ended:
        print("status", ended.code or 0)
"""
JOB = """
[job]
dataset = "breast_cancer"
rounds = 2
[exchange]
scheme = "bfv"
"""


def run_without_torch(*lines: str) -> tuple[list[int], str]:
    """Exit statuses of command lines in a process where torch cannot be imported, and stderr."""
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", WITHOUT_TORCH],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    message = [line.split() for line in ended.stdout.splitlines()]
    return [int(words[1]) for words in message if words[:1] == ["status"]], ended.stderr


def test_linear_jobs_run_without_torch_and_a_network_is_one_line_before_any_work() -> None:
    Path("job.toml").write_text(JOB, encoding="utf-8")
    Path("mlp.toml").write_text(
        JOB.replace("[exchange]", 'model = "mlp"\n[exchange]') + '[output]\ndirectory = "mlp"\n',
        encoding="utf-8",
    )
    statuses, said = run_without_torch(
        "train job.toml",
        "train mlp.toml",
        "sweep noise --dataset breast_cancer --model nn --noise 1",
    )
    assert statuses == [0, 2, 2], said
    assert [line for line in said.splitlines() if line.startswith("securevfl: ")] == [
        f"securevfl: error: networks {LINE}",
        f"securevfl: error: networks {LINE}",
    ]
    assert Path("models").exists()
    assert not Path("mlp").exists()


@pytest.mark.slow
def test_sweeps_and_audits_of_linear_models_take_no_torch() -> None:
    Path("job.toml").write_text(JOB, encoding="utf-8")
    statuses, said = run_without_torch(
        "sweep noise --dataset breast_cancer --model lr --noise 1 --epochs 1 --repeats 1 "
        "--learning-rate 0.1 --own-prediction noisy --workers 1 --quiet",
        "audit job.toml --exchange plain --attack gram --repeats 1 --workers 1 --quiet",
    )
    assert statuses == [0, 0], said
