"""Every example of the tutorial and of the how-tos runs."""

from pathlib import Path

import pytest

from securevfl.auditing import measuring
from tests.docs.examples import Block, Reader, blocks, commands, is_said
from tests.link_parties import free_address

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path
    for path in (*sorted((DOCS / "how-to").glob("*.md")), DOCS / "reference" / "python.md")
}
EVERY = (DOCS / "tutorial.md", *PAGES.values())
pytestmark = pytest.mark.usefixtures("clean_place", "own_attacks")


@pytest.fixture
def own_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that a page adds is known on that page alone."""
    monkeypatch.setattr(measuring, "_ATTACKS", dict(measuring.known_attacks()))


def test_the_readme_runs_as_written() -> None:
    assert Reader().follow(README) > 3
    models = {path.stem for path in Path("models").glob("*.safetensors")}
    assert models == {"clinic", "laboratory"}


def test_the_home_page_runs_as_written() -> None:
    assert Reader().follow((DOCS / "index.md").read_text(encoding="utf-8")) > 1


def test_the_tutorial_runs_as_written() -> None:
    assert Reader().follow(TUTORIAL) > 5


@pytest.mark.parametrize("name", PAGES)
def test_a_how_to_runs_after_the_tutorials_files_are_made(name: str) -> None:
    address = free_address()
    reader = Reader(hosts={"relay.example.org:7000": address, "0.0.0.0:7000": address})
    reader.follow(TUTORIAL, languages=("python", "toml"))
    assert reader.follow(PAGES[name].read_text(encoding="utf-8")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_what_takes_minutes_runs_too(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    if not any(block.title == "takes minutes" for block in blocks(page)):
        pytest.skip("nothing on this page takes minutes")
    reader = Reader(slow=True)
    if path.stem != "tutorial":
        reader.follow(TUTORIAL, languages=("python", "toml"))
    assert reader.follow(page) > 0


def test_what_a_page_shows_is_held_against_what_is_printed() -> None:
    printed = "bfv  exact  42 0.9959  1.73 s\nended as the loss had settled\n"
    assert is_said("bfv exact 41 0.98 948 ms", printed)
    assert not is_said("bfv exact 41 0.90", printed)
    assert not is_said("ended at the target", printed)
    assert is_said("ended … settled", printed)


def test_a_page_that_is_wrong_fails() -> None:
    for text in (
        "```console\n$ securevfl data list\nno such line\n```\n",
        "```bash\nsecurevfl train missing.toml\n```\n",
        '```console title="exit status 2"\n$ securevfl data list\n```\n',
        "```python\nassert False\n```\n",
        '```toml\n[exchange]\nshceme = "bfv"\n```\n',
    ):
        with pytest.raises(AssertionError):
            Reader().follow(text)


def test_a_command_may_go_on_in_the_next_line() -> None:
    block = Block("console", "", "$ securevfl a \\\n  --b\nshown\n$ c\n")
    assert [(" ".join(typed.split()), shown) for typed, shown in commands(block)] == [
        ("securevfl a --b", ["shown"]),
        ("c", []),
    ]
