"""Parties and cells on Ray come to what processes come to, and Ray is told of no data."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from securevfl import ray_cluster
from securevfl.errors import ConfigError
from tests.end_to_end.commands import run, two_organizations

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
Found = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What one process found that did everything on one cluster, and where its files are."""
    folder = tmp_path_factory.mktemp("ray")
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.end_to_end.ray_jobs", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    (line,) = ended.stdout.splitlines()
    report: dict[str, Any] = json.loads(line)
    return report, folder


@needs_ray
@pytest.mark.framework
@pytest.mark.usefixtures("clean_place")
def test_a_small_job_runs_on_a_cluster_of_its_own() -> None:
    steps = "dataset = 'breast_cancer'\nrounds = 3\nstart = 'seeded'\n"
    text = f"[job]\n{steps}[output]\ndirectory = '{{}}'\n"
    for where in ("here", "there"):
        Path(f"{where}.toml").write_text(text.format(where), encoding="utf-8")
    assert run("train", "here.toml", "--quiet") == 0
    command = [sys.executable, "-m", "securevfl", "train", "there.toml", "--ray", "local"]
    subprocess.run([*command, "--quiet"], check=True, timeout=300)  # noqa: S603
    for name in ("party1.safetensors", "party2.safetensors"):
        assert Path("there", name).read_bytes() == Path("here", name).read_bytes()


@needs_ray
@pytest.mark.framework
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "victim", "text"),
    [
        ("signal", "party2", "The actor died "),
        ("ray", "party1", "The actor died "),
        ("stopping", "party2", "silent for 10 s"),
    ],
)
def test_a_killed_or_frozen_party_changes_nothing(
    found: Found, how: str, victim: str, text: str
) -> None:
    report, folder = found
    for name in ("party1", "party2"):
        model, twin = (folder / each / f"{name}.safetensors" for each in (how, "expected"))
        assert model.read_bytes() == twin.read_bytes()
    gone, goes_on = report[how]["said"]
    assert gone.startswith(f"{victim} is gone ({text}")
    assert goes_on == f"all go on after {report[how]['before']} rounds"
    assert 0 < report[how]["before"] < report[how]["rounds"] == 300


def test_a_cluster_of_ones_own_gets_a_token_before_ray_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # to be put back as it was
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(ConfigError, match="anyone in the network can use its cluster"):
        ray_cluster.require_token()
    monkeypatch.delitem(sys.modules, "ray")
    ray_cluster.require_token()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(bytes.fromhex(token)) == 32
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    ray_cluster.require_token()
    assert os.environ["RAY_AUTH_TOKEN"] == token


def test_no_cluster_is_made_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray was imported, and is connected with none: it would open its ports to everybody."""
    ray = ModuleType("ray")
    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: ray)
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    with (
        pytest.raises(ConfigError, match="anyone in the network can use its cluster"),
        ray_cluster.cluster(ray_cluster.LOCAL),
    ):
        pytest.fail("it was made")


@needs_ray
@pytest.mark.framework
@pytest.mark.slow
def test_no_stranger_runs_anything_and_no_data_enter_the_object_store(found: Found) -> None:
    """Ray's ports are open on every interface; the table of party1 alone would be 50 kB."""
    told, _ = found
    assert told["stranger"] == ""
    assert told["words"] < 4000
    assert told["stored"] < 1 << 20
    assert told["stored with data"] >= 7 << 20


@needs_ray
@pytest.mark.framework
@pytest.mark.slow
def test_cells_give_what_processes_give_and_what_a_machine_lacks_is_no_death(found: Found) -> None:
    told, _ = found
    assert told["cells"] == [[0, 0.0], [1, 0.5], [2, 1.0]]
    assert told["error"] == "task 3"
    assert told["unmade"].startswith("its machine cannot make it: ModuleNotFoundError")
    assert told["no death"]


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize("command", [("train", "job.toml"), ("audit",), ("sweep", "noise")])
def test_without_ray_a_line_says_how_to_get_it(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    two_organizations()
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    assert run(*command, "--ray", "local") == 2
    assert capsys.readouterr().err.splitlines() == [
        "securevfl: error: --ray needs ray: pip install 'securevfl[ray]'"
    ]


@needs_ray
@pytest.mark.framework
@pytest.mark.usefixtures("clean_place")
def test_processes_and_ray_are_two_places(capsys: Capture) -> None:
    two_organizations()
    # Ray is not even imported.
    assert run("train", "job.toml", "--processes", "--ray", "local") == 2
    assert "give only one" in capsys.readouterr().err
