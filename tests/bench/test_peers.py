import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.peers.__main__ import (
    HERE,
    PEERS,
    PeersSettings,
    answer,
    environment,
    last_line,
    peers,
    pinned,
    prepared,
    row_of,
)
from bench.peers.run_securevfl import main as run_securevfl
from securevfl.benchmarks.progress import silent
from securevfl.errors import ConfigError, DataError

SCRIPTS = sorted({f"{peer.script}.py" for peer in PEERS.values()})
DISTRIBUTIONS = {"fate": "pyfate", "secretflow": "secretflow-lite"}
"""Where packages are called otherwise than what installs them."""


@pytest.mark.parametrize("changes", [{}, {"rounds": 10, "batch_size": "full"}])
def test_prepared_rows_and_batches_are_those_that_this_package_trains_on(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """The steps that peers are told to take, replayed from what they read."""
    settings = PeersSettings.model_validate(changes)
    arrays = prepared(settings)
    path = tmp_path / "rows.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    columns = {
        part: np.hstack([arrays[f"label_{part}"], arrays[f"other_{part}"]])
        for part in ("train", "test")
    }
    weights, intercept = np.zeros(30), 0.0
    for rows in arrays["visits"]:
        batch = columns["train"][rows]
        errors = 1 / (1 + np.exp(-(batch @ weights + intercept))) - arrays["y_train"][rows]
        weights -= 0.3 * batch.T @ errors / len(rows)
        intercept -= 0.3 * errors.mean()
    own = run_securevfl(str(path), {"job": settings.job, "exchange": {"scheme": "plain"}})
    assert own["rounds"] == settings.rounds == len(arrays["visits"])
    np.testing.assert_allclose(own["scores"], columns["test"] @ weights + intercept, atol=1e-9)


def test_batches_are_equal_runs_of_rows_or_refused() -> None:
    visits = prepared(PeersSettings())["visits"]
    assert visits.shape == (16, 65)
    assert (np.diff(visits) == 1).all()
    with pytest.raises(ConfigError, match="batch_size: 64 does not part 456 rows equally"):
        prepared(PeersSettings(rows=456))


def test_a_row_has_medians_and_aucs_of_both_sides() -> None:
    arrays = {"y_train": np.zeros(4), "y_test": np.array([0, 1, 1]), "visits": np.zeros((2, 4))}
    scores = [[0.1, 0.2, 0.3], [0.2, 0.1, 0.3]]

    def line(wall: float, sent: int | None, ranks: list[float]) -> dict[str, Any]:
        found = {"wall_s": wall, "cpu_s": wall / 2, "bytes": sent, "rounds": 2, "scores": ranks}
        return last_line(f"banner\n{json.dumps({**found, 'versions': {'x': '1'}})}\n")

    theirs = [line(wall, None, scores[1]) for wall in (8.0, 6.0, 90.0)]
    own = [line(wall, 100, scores[0]) for wall in (2.0, 1.0, 3.0)]
    row = row_of("x", "bfv", theirs, own, arrays)
    assert (row["peer_wall_s"], row["wall_s"], row["peer_cpu_s"], row["cpu_s"]) == (8, 2, 4, 1)
    assert (row["peer_auc"], row["auc"]) == (0.5, 1.0)
    assert (row["peer_bytes"], row["bytes"], row["batch_rows"]) == (None, 100, 4)
    assert row["peer_versions"] == {"x": "1"}
    assert row_of("x", "bfv", [], own, arrays)["peer_auc"] is None


def test_without_environments_this_package_runs_alone() -> None:
    settings = PeersSettings(
        peers=("VertiMosaic logistic",), rounds=2, repeats=1, own_only=True, batch_size="full"
    )
    (row,) = peers(settings, silent)
    assert row["peer_wall_s"] is None
    assert 0.9 < row["auc"] <= 1
    assert row["rounds"] == 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_its_peer_alone_in_versions_that_are_pinned(name: str) -> None:
    """Nothing of this package runs beside a peer, and nothing of a peer in this process."""
    requirements = [line.split("==") for line in pinned(HERE / name)]
    assert all(re.fullmatch(r"\d+(\.\w+)+", version) for _, version in requirements)
    found = imported(HERE / name)
    named = {distribution.replace("-", "_") for distribution, _ in requirements}
    for module in found - sys.stdlib_module_names:
        assert DISTRIBUTIONS.get(module, module).replace("-", "_") in named
    assert not (imported(HERE / "__main__.py") - {"numpy"}) & (found - sys.stdlib_module_names)


def imported(path: Path) -> set[str]:
    """The packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def test_a_peer_gets_nothing_of_the_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run_x.py").write_text(
        "import json, os, sys\nprint(json.dumps([[*os.environ], os.getcwd(), sys.path]))\n"
    )
    monkeypatch.setattr("bench.peers.__main__.HERE", tmp_path)
    monkeypatch.setenv("ACCESS_TOKEN", "secret")
    names, place, paths = answer(Path(sys.executable), "run_x", tmp_path / "rows.npz", {})
    assert set(names) <= {"HOME", "PATH", "LC_CTYPE"}
    assert not Path(place).exists()
    assert not {str(tmp_path), ""} & set(paths)


def test_a_peer_that_takes_too_long_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child, as FATE's parties are, that would answer if it lived on."""
    (tmp_path / "run_x.py").write_text(
        "import subprocess, sys, time\n"
        f"fifo = open({str(tmp_path / 'fifo')!r}, 'w')\n"
        "child = 'import sys, time; time.sleep(15); sys.stdout.write(\"alive\")'\n"
        "subprocess.Popen([sys.executable, '-c', child], stdout=fifo)\n"
        "fifo.write('started ')\nfifo.flush()\ntime.sleep(60)\n"
    )
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr("bench.peers.__main__.HERE", tmp_path)
    monkeypatch.setattr("bench.peers.__main__.LONGEST_S", 3)
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(DataError, match="run_x: more than 3 s"):
        answer(Path(sys.executable), "run_x", tmp_path / "rows.npz", {})
    os.set_blocking(reader, True)  # the end comes when nobody is left to write
    with open(reader, encoding="utf-8") as fifo:
        assert fifo.read() == "started "


def test_what_is_missing_or_fails_is_said(tmp_path: Path) -> None:
    settings = PeersSettings(environments=tmp_path)
    with pytest.raises(ConfigError, match=r"no environment .*run_spu: --set install=true makes it"):
        environment(settings, HERE / "run_spu.py")
    nowhere = PeersSettings(environments=tmp_path, install=True, python="python0.1")
    with pytest.raises(ConfigError, match=r"python: no 'python0\.1' here"):
        environment(nowhere, HERE / "run_spu.py")
    job = {"job": settings.job, "exchange": {"scheme": "plain"}}
    with pytest.raises(DataError, match="run_securevfl: FileNotFoundError: "):
        answer(Path(sys.executable), "run_securevfl", tmp_path / "none.npz", job)
    (tmp_path / "script.py").write_text("import numpy\n")
    with pytest.raises(DataError, match="names no requirements"):
        pinned(tmp_path / "script.py")
