"""Flower's two engines against this project's own simulation: the same clients, batches and θ.

In processes of their own: Flower and Ray warn, and leave threads behind.
"""

import importlib.metadata
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra securevfl[flower] is not installed")

from securevfl.flower import vector_of
from securevfl.horizontal.simulation import simulate_federation
from tests.flower_app import of, problems, start
from tests.link_parties import free_address

pytestmark = pytest.mark.framework
ROOT = Path(__file__).parents[2]
APP = """
from tests.flower_app import client, server

client_app = client(["fedbcgd+"], 2, 2)
server_app = server(["fedbcgd+"], 2, 2, {file!r})
"""
PROJECT = """
[project]
name = "quadratics"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "quadratics:server_app"
clientapp = "quadratics:client_app"
"""


def require_same(file: Path, methods: tuple[str, ...], clients: int, rounds: int) -> None:
    found = np.load(file)
    every = problems(clients)
    ours = [every[index] for index in found["whose"]]
    for method in methods:
        assert found[method].shape == (rounds + 1, 12)
        for done in range(1, rounds + 1):
            expected = simulate_federation(ours, of(method, clients, done), vector_of(start()))
            np.testing.assert_allclose(
                found[method][done], expected.state.weights, rtol=0, atol=1e-6
            )


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """An environment without telemetry whose home is empty, and Flower's commands in its PATH."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for entry in importlib.metadata.distribution("flwr").entry_points:
        script = f"#!{sys.executable}\nfrom {entry.module} import {entry.attr}\n{entry.attr}()\n"
        (commands / entry.name).write_text(script, "utf-8")
        (commands / entry.name).chmod(0o700)
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.mark.parametrize(
    ("methods", "clients", "rounds"),
    [
        (("fedbcgd+",), 2, 1),
        pytest.param(("fedavg", "fedbcgd", "fedbcgd+"), 6, 10, marks=pytest.mark.slow),
    ],
)
def test_flowers_simulation_trains_as_ours_does(
    methods: tuple[str, ...], clients: int, rounds: int, place: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "found.npz"
    said = [str(each) for each in (file, clients, rounds, *methods)]
    command = [sys.executable, "-m", "tests.flower_app", *said]
    done = subprocess.run(  # noqa: S603
        command, env=place, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    require_same(file, methods, clients, rounds)


def free_port() -> int:
    return int(free_address().split(":")[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def superlink(place: dict[str, str], tmp_path: Path) -> Iterator[None]:
    """A SuperLink and two SuperNodes, each a process here, as `here` in Flower's settings."""
    port = free_port()
    home = Path(place["FLWR_HOME"])
    home.mkdir()
    settings = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(settings + "insecure = true\n", "utf-8")
    commands = [
        f"flower-superlink --insecure --disable-runtime-dependency-installation --port {port}"
    ]
    commands += [
        f"flower-supernode --insecure --superlink 127.0.0.1:{port} --port {free_port()} "
        f"--node-config partition-id={node}"
        for node in range(2)
    ]
    running = []
    try:
        for index, command in enumerate(commands):
            log = (tmp_path / f"{index}.log").open("wb")
            program, *words = command.split()
            line = [sys.executable, str(tmp_path / "bin" / program), *words]
            running.append(
                subprocess.Popen(  # noqa: S603
                    line, env=place, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
                )
            )
            log.close()
            while not answers(port):
                assert running[0].poll() is None, (tmp_path / "0.log").read_text("utf-8")
                time.sleep(0.1)
        yield
    finally:
        # Nodes first: their helpers end with them.
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("superlink")
def test_flowers_deployment_trains_as_ours_does(place: dict[str, str], tmp_path: Path) -> None:
    app, file = tmp_path / "app", tmp_path / "found.npz"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT, "utf-8")
    (app / "quadratics.py").write_text(APP.format(file=str(file)), "utf-8")
    command = [sys.executable, str(tmp_path / "bin" / "flwr"), "run", str(app), "here", "--stream"]
    done = subprocess.run(  # noqa: S603
        command, env=place, cwd=app, capture_output=True, text=True, check=False
    )
    logs = "".join(path.read_text("utf-8") for path in sorted(tmp_path.glob("*.log")))
    assert file.exists(), done.stdout + done.stderr + logs
    require_same(file, ("fedbcgd+",), 2, 2)
