"""The documents say what the code does."""

import os
import pkgutil
import re
import sys
from pathlib import Path
from types import FrameType

import pytest
import typer.main

from bench.documents import OUTSIDE, page
from securevfl.cli.app import command_line
from securevfl.crypto import native_products
from securevfl.data.sources import load
from securevfl.job import parse_job
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.guards.feature_guard import LIMIT
from securevfl.protocols.guards.person_record import (
    CHANGED_FOR_EACH_COLUMN,
    MODEL_LIMIT,
    OTHERS_LIMIT,
)
from securevfl.training import Environment, train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECURITY = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
DESIGN = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
PAGES = [
    *ROOT.glob("*.md"),
    *(path for folder in ("docs", "bench") for path in sorted((ROOT / folder).rglob("*.md"))),
]
# A file or module in backticks, and whether the page says that it is gone.
PLACE = re.compile(
    r"`((?:securevfl|tests|bench|docs|crypto|protocols)/[\w./-]+|securevfl\.[\w.]+)`"
    r"(\s\(since removed\))?"
)


def between(text: str, name: str, opening: str | None = None) -> str:
    """What stands between `<!-- name -->` and `<!-- /name -->`."""
    return text.partition(f"<!-- {opening or name} -->")[2].partition(f"<!-- /{name} -->")[0]


def commands() -> list[str]:
    """Every command as it is typed, without `securevfl`."""
    found = []
    for name, command in typer.main.get_command(command_line()).commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", None)
        found += [f"{name} {part}" for part in parts] if parts else [name]
    return found


def test_the_readme_is_a_page_that_is_read_to_its_end() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_exchange_is_in_the_table_of_who_learns_what(exchange: str) -> None:
    assert f"`{exchange}`" in between(SECURITY, "exchanges", "exchanges: learns")


def test_every_layer_is_in_the_diagram() -> None:
    diagram = DESIGN.split("## The rooms")[1].split("```")[1]
    for module in sorted((ROOT / "securevfl").iterdir()):
        name = module.stem
        if not name.startswith("_") and name != "py":
            assert name in diagram, name


def test_a_symbol_has_one_meaning_and_one_name_in_code() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in between(DESIGN, "symbols").strip().splitlines()[2:]
    ]
    symbols, names = ([row[column] for row in rows] for column in (0, 1))
    assert len(set(symbols)) == len(symbols) > 30
    assert len(set(names)) == len(names)
    code = [path for part in ("securevfl", "bench") for path in (ROOT / part).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(p.read_text(encoding="utf-8") for p in code)))
    assert {name.strip("`") for name in names} <= words


# Letters of the papers, and of this code once, for what the table calls otherwise.
OTHER_LETTERS = {
    "C_g": "β_g",
    "σ_g": "z_g·2β_g",
    "η_t": "η_i",
    "√(t": "√(i",
    "round t:": "round i:",
    "sensitivity 2C": "2β",
    "[−C, C]": "[−β, β]",
    "±C ": "±β",
    "T releases": "ν releases",
    "⌊N/": "⌊DEGREE/",
    "primes, N)": "primes, DEGREE)",
    "(M, ": "test rows",
    "Xᵀv + L": "largest_product",
}


def test_docstrings_have_no_second_letter_for_what_the_table_names() -> None:
    for path in (ROOT / "securevfl").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for letter, instead in OTHER_LETTERS.items():
            assert letter not in text, (path, letter, instead)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.stem)
def test_tables_are_what_result_files_and_descriptions_say(path: Path) -> None:
    """`make docs` writes them."""
    text = path.read_text(encoding="utf-8")
    assert text == page(text, path.parent)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_and_named_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), target
    if path.name == "CHANGELOG.md":  # names what was there then
        return
    for name, past in PLACE.findall(text):
        if name.startswith("securevfl."):
            pkgutil.resolve_name(name)
        else:
            exists = (ROOT / name).exists() or (ROOT / "securevfl" / name).exists()
            assert exists or past, name


def test_no_file_is_longer_than_600_lines() -> None:
    rooms = ("bench", "securevfl", "tests")
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, path


def test_the_guards_limit_is_the_documented_one() -> None:
    assert f"up to 1/{1 / OTHERS_LIMIT:.0f} of the labels' variance" in SECURITY
    assert f"fewer than {CHANGED_FOR_EACH_COLUMN} labels for each column" in SECURITY
    assert MODEL_LIMIT == 1 / 2
    assert "refuses above ½" in SECURITY
    assert LIMIT == 1 / 32
    assert "or 1/32 of it" in SECURITY


def files_of_a_round(scheme: str) -> set[str]:
    """The package's files in which a function is called between two rounds of a job."""
    package, seen = str(ROOT / "securevfl") + os.sep, set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.add(Path(frame.f_code.co_filename).relative_to(package).as_posix())

    def progress(done: int) -> None:
        sys.setprofile(note if done == 3 else None)

    settings = 'job = { dataset = "breast_cancer", rounds = 5, eval_every = "never" }'
    job = parse_job(f'{settings}\nexchange.scheme = "{scheme}"')
    try:
        train(job, load("breast_cancer"), Environment(progress=progress))
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(
    ("scheme", "headings"),
    [
        ("plain", ["In clear and under encryption", "In clear"]),
        ("bfv", ["In clear and under encryption", "Under `bfv`"]),
        ("blind", ["Under `blind`"]),
    ],
)
def test_the_design_lists_the_files_that_run_in_a_round(scheme: str, headings: list[str]) -> None:
    lists = re.split(r"^(?=\S.*:\n\n)", between(DESIGN, "round"), flags=re.M)
    named = {
        file
        for part in lists
        if part.split(":\n")[0].strip() in ["Every round", *headings]
        for item in re.findall(r"^\d+\. ([^:\n]+)", part, re.M)
        for file in re.findall(r"`([^`]+\.py)`", item)
    }
    in_c = {
        f"crypto/{name}.py"
        for name in ("native_products", "native_key", "native/__init__", "masks")
    }
    by_seal = native_products.why_not() is not None
    named -= in_c if by_seal else {"crypto/seal_codec.py"}
    assert files_of_a_round(scheme) == named
