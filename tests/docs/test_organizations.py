"""What the page for organizations says that the tool prints, at mistakes that people make."""

import re
import socket
from pathlib import Path

import pytest

from securevfl.parties.own_file import Policy
from tests.docs.examples import is_said
from tests.docs.test_documents import between
from tests.end_to_end.commands import refused, run, started, wait_until
from tests.organizations import Organizations

PAGE = (Path(__file__).parents[2] / "docs/how-to/between-organizations.md").read_text("utf-8")
pytestmark = pytest.mark.usefixtures("clean_place")


def together(capsys: pytest.CaptureFixture[str], shops: str, banks: str, who: Organizations) -> str:
    """What the bank says whose shop is there."""
    with started("party", "run", shops, *who.own("shop"), "--quiet") as shop:
        wait_until(shop, lambda: bool(list(Path("shop/state").glob("*/status.json"))))
        said = refused(capsys, "party", "run", banks, *who.own("bank"), "--quiet")
        shop.communicate()
    return said


def test_the_mistakes_on_the_page_are_what_the_tool_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    who = Organizations()
    bank, job = who.own("bank"), who.agree(sign=False)
    text = Path(job).read_text(encoding="utf-8")
    said = []

    def note(*arguments: str) -> None:
        said.append(refused(capsys, "party", *arguments))

    def changed(old: str, new: str) -> str:
        assert re.search(old, text)
        Path("changed.toml").write_text(re.sub(old, new, text, count=1), encoding="utf-8")
        return "changed.toml"

    note("sign", changed(r'name = "bank"', r'name = "bank"\ndata = "bank.csv"'), *bank)
    note("sign", changed(r"address = .*", ""), *bank)
    note("join", "12345-four", *bank)
    note("run", job, *bank)
    host, port = who.listen["bank"].split(":")
    assert run("party", "sign", job, *bank, "--yes") == 0
    with socket.create_server((host, int(port))):
        note("run", job, *bank, "--quiet")
    del who.listen["bank"]
    who.write_own_file("bank", exchanges=["bfv"])
    note("run", job, *bank)
    who.write_own_file("bank")
    note("run", job, *bank, "--quiet")
    Path("bank/bank.key").chmod(0o644)
    note("sign", job, *bank)
    Path("bank/bank.key").chmod(0o600)

    rows = re.findall(r"^\| `([^`]*)` \|", between(PAGE, "mistakes"), re.MULTILINE)
    assert len(rows) == 10
    for row in rows[:8]:
        assert any(is_said(row, each) for each in said), f"{row!r} not in\n{''.join(said)}"


@pytest.mark.slow
def test_the_mistakes_of_two_are_what_the_tool_prints(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    other, job = who.agree("other.toml", rounds=11), who.agree()
    *_, differ, ids = re.findall(r"^\| `([^`]*)` \|", between(PAGE, "mistakes"), re.MULTILINE)
    assert is_said(differ, together(capsys, other, job, who))
    who.ids["shop"] = "C-"
    who.write_data()
    for path in Path("shop/state").glob("*/status.json"):
        path.unlink()
    assert is_said(ids, together(capsys, job, job, who))


def test_the_page_has_the_codes_limits() -> None:
    assert f"{Policy().most_repeated_rounds} rounds again" in PAGE
