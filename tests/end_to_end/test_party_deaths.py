"""Parties and their relay, killed again and again at any moment: the model is the same."""

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import pytest

from securevfl.models.storage import load_model
from tests.end_to_end.commands import LONG, run, started
from tests.link_parties import free_address
from tests.organizations import Organizations

KILLS = 50
ROUNDS = {"plain": 4000, "bfv": 1000}
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "guards"))


@pytest.mark.parametrize("scheme", [*ROUNDS])
def test_fifty_deaths_at_random_moments_change_nothing(scheme: str) -> None:
    settings = {"tolerance": 0, "eval_every": "never", "allow_label_leak": True}
    at = free_address()
    who = Organizations("bank club shop", scheme, at, rounds=ROUNDS[scheme], **settings)
    for name in who.names:
        who.write_own_file(name, allow_label_leak=True)
    job, chance = who.agree(), random.Random(7)  # noqa: S311
    commands: dict[str, tuple[str, ...]] = {
        name: ("party", "run", job, *who.own(name), "--quiet") for name in who.names
    }
    commands["relay"] = ("relay", "--listen", at)
    kills, deadline = 0, time.monotonic() + 4 * LONG
    with contextlib.ExitStack() as stack:
        alive = {name: stack.enter_context(started(*each)) for name, each in commands.items()}
        while any(alive[name].poll() is None for name in who.names):
            assert time.monotonic() < deadline
            time.sleep(chance.expovariate(1.0))
            victim = chance.choice([*commands])
            if kills < KILLS and alive[victim].poll() is None:
                alive[victim].send_signal(signal.SIGKILL)
                alive[victim].wait()
                kills += 1
                time.sleep(chance.random())
                alive[victim] = stack.enter_context(started(*commands[victim]))
        for name in who.names:
            assert alive[name].returncode == 0, alive[name].communicate()
    assert kills == KILLS
    assert run("train", who.together(), "--quiet") in (0, 3, 4)
    for name in who.names:
        result = json.loads(Path(f"{name}/models/result.json").read_text(encoding="utf-8"))
        assert result["rounds"] == load_model(Path(f"models/{name}.safetensors")).header.rounds
        assert who.model(name) == Path(f"models/{name}.safetensors").read_bytes()
