"""What a party's disk, words and memory hold of another: nothing beyond its view."""

import contextlib
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.commands import LONG, started
from tests.organizations import Organizations

PLANTED, STRANGER = 987.654321012345, "planted-stranger"
FORMS = {
    "value": (repr(PLANTED).encode(), struct.pack("<d", PLANTED)),
    "id": (STRANGER.encode(),),
    "column": (b"shop_a",),
}


@pytest.fixture
def who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Organizations:
    """A bank and a shop, which has a value and a person of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "guards"))
    made = Organizations(scheme="bfv", allow_label_leak=True)
    for name in made.names:
        made.write_own_file(name, allow_label_leak=True)
    path = Path("shop/shop.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    number, _, rest = lines[7].split(",")
    lines[7] = f"{number},{PLANTED!r},{rest}"
    path.write_text("\n".join([*lines, f"{STRANGER},0.5,0.5"]), encoding="utf-8")
    return made


def planted_in(held: bytes) -> set[str]:
    return {name for name, forms in FORMS.items() if any(form in held for form in forms)}


def files(folder: str) -> bytes:
    return b"\0".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())


@contextlib.contextmanager
def running(who: Organizations) -> Iterator[list["subprocess.Popen[str]"]]:
    job = who.agree()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started("party", "run", job, *who.own(n))) for n in who.names]


def test_a_party_keeps_and_says_nothing_of_another_ones_rows(who: Organizations) -> None:
    with running(who) as processes:
        said = ["".join(process.communicate(timeout=LONG)) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert planted_in(files("bank") + said[0].encode()) == set()
    assert planted_in(files("shop")) == {*FORMS}


def memory_of(process: int) -> bytes:
    """What a process can write to, now."""
    held = []
    with Path(f"/proc/{process}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text(encoding="utf-8").splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found is not None:
                start, end = (int(each, 16) for each in found.groups())
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(start)
                    held.append(memory.read(end - start))
    return b"".join(held)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc to read memory by")
def test_a_party_that_waits_for_the_end_holds_nothing_of_another_ones_rows(
    who: Organizations,
) -> None:
    with running(who) as (bank, shop):
        deadline = time.monotonic() + LONG
        while not Path("bank/models/result.json").exists():
            assert time.monotonic() < deadline
        for process in (bank, shop):
            os.kill(process.pid, signal.SIGSTOP)
        of_bank, of_shop = memory_of(bank.pid), memory_of(shop.pid)
    assert b"bank_a" in of_bank
    assert planted_in(of_bank) == set()
    assert planted_in(of_shop) == {*FORMS}
