"""What a run tells a person while nothing happens, and when it gives up."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from securevfl.cli.party_consent import _lines
from securevfl.cli.party_run import Telling
from securevfl.errors import ConfigError, PeerTimeout, PeerUnreachable
from securevfl.parties import links
from securevfl.parties.life import alone
from tests.link_parties import Group, run
from tests.unit.parties.test_stopping import agreement

DAY = 86_400.0


def telling(folder: Path) -> tuple[Telling, list[str]]:
    said: list[str] = []
    made = Telling(agreement(), "bank", folder / "status.json", said.append, lambda *done: None)
    made.enter("training")
    made.channels.append(SimpleNamespace(awaited="Residuals from shop"))  # type: ignore[arg-type]
    said.clear()
    return made, said


def test_whoever_waits_says_for_whom_after_a_minute_and_ten(tmp_path: Path) -> None:
    made, said = telling(tmp_path)
    for passed, told in ((59, 0), (61, 1), (600, 1), (661, 2), (1261, 3)):
        made.changed -= passed - (made.progressed - made.changed)
        made.look(DAY)
        assert len(said) == told
    assert said[0].startswith("training: waits for Residuals from shop, for ")
    made.rounds(1, 10)
    made.changed -= 61
    made.look(DAY)
    assert len(said) == 4


def test_a_long_alignment_is_no_silence(tmp_path: Path) -> None:
    bar: list[tuple[object, ...]] = []
    made, said = telling(tmp_path)
    made.bar = lambda *shown: bar.append(shown)
    made.changed -= 61
    made.ids(5, 10)
    made.look(DAY)
    assert (bar, said) == ([("aligns, ids", 5, 10)], [])


def test_patience_ends_with_whom_it_waited_for(tmp_path: Path) -> None:
    made, said = telling(tmp_path)
    made.progressed -= DAY
    with pytest.raises(PeerTimeout, match="no progress for 24 hours in 'training': waits for Resi"):
        made.look(DAY)
    made.rounds(1, 10)
    made.look(DAY)
    made.progressed -= DAY
    for again in ("training", "connecting"):  # what repeats is no progress, and so is connecting
        made.phase = again
        made.rounds(1, 10)
        with pytest.raises(PeerTimeout):
            made.look(DAY)
    assert not said


def test_the_status_holds_no_more_than_how_far_it_is(tmp_path: Path) -> None:
    made, _ = telling(tmp_path)
    made.rounds(3, 10)
    made.line("waits for shop: \x1b[31mnobody listens\n")
    made.write()
    status = json.loads((tmp_path / "status.json").read_text(encoding="utf-8"))
    assert status["waiting"] == "waits for shop: \\x1b[31mnobody listens\\n"
    assert (status["round"], status["rounds"], status["peers"]) == (3, 10, ["shop"])


@pytest.mark.parametrize(("own", "places"), [("bank", 1), ("club", 0), ("shop", 3)])
def test_who_is_to_sign_sees_each_place_that_its_machine_connects_to(
    own: str, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer writes them, and may name one within this party's network."""
    group, called = Group("bank club post shop", "bank club", "10.0.0.1:9200"), set[str]()

    async def dial(url: str, *_: object, **__: object) -> NoReturn:
        called.add(url)
        raise PeerUnreachable("nobody is there")

    async def program() -> None:
        async with group.links(own) as ends:
            connecting = asyncio.create_task(ends.connect())
            while len(called) < places:
                await asyncio.sleep(0.01)
            connecting.cancel()
            await asyncio.wait([connecting])

    monkeypatch.setattr(links, "dial", dial)
    run(program())
    said = f"your machine connects to {', '.join(sorted(called))}"
    assert (said in _lines(group.agreed, own)) == bool(called)


def test_a_place_in_a_job_is_held_once_in_a_folder_of_this_user(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "job"
    with (
        alone(folder, "bank"),
        pytest.raises(ConfigError, match="party 'bank' is running already"),
        alone(folder, "bank"),
    ):
        pass
    with alone(folder, "bank"):
        pass
    assert [each.stat().st_mode & 0o777 for each in (folder.parent, folder)] == [0o700] * 2
