"""Organizations on a network that fails all the time: nothing is lost, and memory stays flat."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.chaos import Chaos
from tests.end_to_end.commands import LONG, run
from tests.organizations import Organizations

SECONDS = 600.0
ROUNDS = 3000
MOST_BYTES = 400e6

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "guards"))


def resident(process: int) -> float:
    """Bytes in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096.0


async def harmed(chaos: Chaos, chance: random.Random, until: Callable[[], bool]) -> int:
    """Harm a network until something happens; how often."""
    faults: list[Callable[[], Awaitable[None] | None]] = [
        chaos.cut, chaos.corrupt, chaos.lose, chaos.stall,
    ]  # fmt: skip
    count = 0
    while not until():
        await asyncio.sleep(chance.expovariate(1.0))
        chance.choice(faults)()
        chaos.delay = chance.choice([0.0, 0.0, 0.01])
        chaos.rate = chance.choice([None, None, 1e6])
        count += 1
        if count % 60 == 0:  # nobody notices before its pings are not answered
            chaos.freeze()
    return count


async def job(who: Organizations, number: int, seconds: float) -> int:
    """One job from agreement to models on such a network; how often it was harmed."""
    chance = random.Random(number)  # noqa: S311
    async with Chaos(who.listen["bank"], number) as chaos:
        who.reached["bank"] = chaos.address
        who.job |= {"name": f"loans{number}", "seed": number}
        path = who.agree()
        lives = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "securevfl", "party", "run", path, *who.own(name), "--force",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )
            for name in who.names
        ]  # fmt: skip
        said = [asyncio.ensure_future(life.communicate()) for life in lives]
        ended, began = asyncio.gather(*said), time.monotonic()

        def over() -> bool:
            for life in lives:
                if life.returncode is None:
                    assert resident(life.pid) < MOST_BYTES
            return ended.done() or time.monotonic() - began > seconds

        try:
            count = await harmed(chaos, chance, over)
            chaos.delay, chaos.rate = 0.0, None
            told = await asyncio.wait_for(ended, LONG)
        finally:
            for life in lives:
                if life.returncode is None:
                    life.kill()
        assert [life.returncode for life in lives] == [0, 0], told
    return count


def test_ten_minutes_of_failures_change_nothing() -> None:
    who = Organizations(rounds=ROUNDS, tolerance=0, eval_every="never")
    for name in who.names:
        who.write_own_file(name, most_repeated_rounds=100_000, alignments_per_peer_per_year=10_000)
    began, number, harms = time.monotonic(), 0, 0
    while (left := SECONDS - (time.monotonic() - began)) > 0:
        harms += asyncio.run(job(who, number, left))
        assert run("train", who.together(), "--quiet", "--force") in (0, 3, 4)
        for name in who.names:
            assert who.model(name) == Path(f"models/{name}.safetensors").read_bytes()
        number += 1
    sys.stderr.write(f"{number} jobs, {harms} faults\n")
    assert harms > SECONDS / 10
