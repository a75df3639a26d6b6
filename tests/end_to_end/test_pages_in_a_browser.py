"""Pages for people, as a browser shows them: from the result files of experiments."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from securevfl.reports.page import audit_page
from securevfl.reports.scorecard import scorecard_page
from securevfl.reports.sweep import sweep_page
from securevfl.reports.trained import tradeoff_page, train_page
from tests.end_to_end.commands import example, run

EXPERIMENTS = Path(__file__).parents[2] / "bench"
CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
FOLD = "(yes) => document.querySelectorAll('details').forEach(each => (each.open = !yes))"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESK, PAPER = 390, 1440, 718  # of A4 within its margins
PAGES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "audit/credit": lambda result: audit_page(with_few_figures(result)),
    "noise/lr": sweep_page,
    "tradeoff": tradeoff_page,
    "train": train_page,
    "scorecard": scorecard_page,
    "blind": train_page,
}


def with_few_figures(result: Mapping[str, Any], kept: int = 9) -> dict[str, Any]:
    """An audit whose first rows alone have figures: drawing takes longer than looking."""
    rows = result["rows"]
    bare = [{**row, "detail": {**row["detail"], "curves": []}} for row in rows[kept:]]
    return {**result, "rows": [*rows[:kept], *bare]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of result files of the example in clear, and of a grid over it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("XDG_STATE_HOME", str(folder))
        job = example(('"bfv"', '"plain"'))
        assert run("train", job, "--json", "train.json", "--quiet") == 0
        card = ("--scorecard", "--json", "scorecard.json", "--quiet")
        assert run("model", "show", *map(str, Path("models").glob("*.safetensors")), *card) == 0
        job = example(('"bfv"', '"blind"'))
        assert run("train", job, "--json", "blind.json", "--quiet", "--force") in {0, 4}
        grid = ("--local-steps", "1,exact", "--max-rounds", "9", "--quiet")
        assert run("bench", "tradeoff", *grid, "--json", "tradeoff.json") == 0
    return folder


@pytest.fixture(scope="module")
def browser(trained: Path) -> Iterator[Browser]:
    """A Chromium of this machine: $CHROMIUM, or by one of its usual names.

    Once it runs, this thread has an event loop, and no job can be run beside it.
    """
    del trained
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium found: install one, or name it in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=PAGES)
def shown(
    request: pytest.FixtureRequest,
    browser: Browser,
    trained: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Page, list[str]]]:
    """A page, and what the browser asked for or complained of since it was opened."""
    folder = tmp_path_factory.mktemp("page")
    made = trained / f"{request.param}.json"
    found = made if made.exists() else EXPERIMENTS / f"{request.param}.json"
    result = json.loads(found.read_text(encoding="utf-8"))
    path = folder / "page.html"
    path.write_text(PAGES[request.param](result), encoding="utf-8")
    page = browser.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda asked: heard.append(asked.url))
    page.goto(path.as_uri())
    heard.remove(path.as_uri())
    yield page, heard
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_can_be_read_on_a_phone_and_on_a_desk_by_day_and_by_night(
    shown: tuple[Page, list[str]],
    width: int,
    scheme: Any,  # noqa: ANN401
) -> None:
    page, heard = shown
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme, media="screen")
    for folded in (True, False):
        page.evaluate(FOLD, folded)
        assert page.evaluate(CHECKS) == []
    assert heard == []


def test_a_page_is_printed_whole_and_dark_on_white(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.evaluate(FOLD, True)  # as it is opened
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(CHECKS) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = "[...document.querySelectorAll('details *')].filter(e => !e.checkVisibility()).length"
    assert page.evaluate(hidden) == 0


def test_a_trained_model_is_shown_whole_on_a_desk(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    if "model of" not in page.inner_text("h1"):
        pytest.skip("a page of many settings scrolls")
    page.set_viewport_size({"width": DESK, "height": 844})
    frames = "[...document.querySelectorAll('.wide')]"
    assert page.evaluate(f"{frames}.filter(e => e.scrollWidth > e.clientWidth).length") == 0
    text = page.inner_text("main")
    for said in (r"\d+ rows to train on, \d+ held", "classes", "learns: ", "\nended ", "in common"):
        assert re.search(said, text)
    rounds = page.inner_text(".lead").split(" rounds")[0].split()[-1]
    if "blind" in text:
        assert re.search(rf"job.rounds\n{rounds}\n", page.inner_text("footer"))


def test_an_audit_shows_its_findings_and_folds_what_they_rest_on(browser: Browser) -> None:
    page = browser.new_page()
    result = json.loads((EXPERIMENTS / "audit/minibatches.json").read_text(encoding="utf-8"))
    page.set_content(audit_page(with_few_figures(result)))
    seen = "(what) => [...document.querySelectorAll(what)].map(e => e.checkVisibility())"
    assert set(page.evaluate(seen, ".found li")) == {True}
    for what in ("table.matrix", "figure", ".notes li", "dl:not(footer dl)"):
        assert set(page.evaluate(seen, what)) == {False}
    page.close()


def test_a_page_says_how_it_was_made(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    footer = page.inner_text("footer")
    assert page.inner_text("footer pre").startswith("securevfl ")
    for word in ("version", "commit", "date", "seed", "processor", "(dataset|files)"):
        assert re.search(rf"\n(job\.)?{word}\n", footer), word
