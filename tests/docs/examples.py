"""The examples of a page, run one after another in the folder where the reader would be.

Of fenced blocks, in the order of the page: `python` is executed, unless it is a file; a block with
`title="NAME"` is written to that file; other `toml` is held against the keys of job files; `bash`
is run line by line, and `console` too, where what is shown below a `$ command` is compared loosely
with what it prints: words have to be there in their order, figures between 0 and 1 to 0.03. A title
says `exit status N` (or several) where it is not 0, and `takes minutes` of what the slow test alone
runs. On a page about several organizations it may say where the block is run: `at the bank` is the
folder `bank`, and `at the bank, meanwhile` runs one command while the reader goes on, until the
next block there; what is read from one screen and typed elsewhere is the code of an invitation.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from securevfl.job import Job
from tests.end_to_end.commands import LONG, run, wait_until

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLACE = re.compile(r"at the (\w+)(, meanwhile)?(?:, )?(.*)")
SHARE = re.compile(r"\b0\.\d+")
CODE = re.compile(r"\b\d{5}(?:-[a-z]+)+@\S+")
# Codes, keys and six words to read aloud differ from run to run.
RANDOM = re.compile(rf"{CODE.pattern}|[\w-]{{43,}}|(?<=: )(?:[a-z-]+ ){{5}}[a-z-]+$")
CLOSE = 0.03


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title or nothing, and its text."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Running:
    """A command that goes on, what is to be shown of it, and the file that it prints to."""

    process: "subprocess.Popen[str]"
    shown: list[str]
    printed: Path

    def end(self) -> None:
        """Compare what it has said by its end."""
        status = self.process.wait(LONG)
        text = self.printed.read_text(encoding="utf-8")
        assert status == 0, text
        for line in self.shown:
            assert is_said(line, text), f"{line!r} not in\n{text}"


@dataclass
class Reader:
    """Somebody who does what a page says.

    Attributes:
        slow: whether to run what takes minutes, too.
        names: of the Python on the page.
        hosts: where the page says one HOST:PORT and the reader has another.
    """

    slow: bool = False
    names: dict[str, Any] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)

    def follow(self, page: str, languages: tuple[str, ...] = ()) -> int:
        """Run a page's blocks, or those of some languages; returns how many."""
        done = 0
        for host, own in self.hosts.items():
            page = page.replace(host, own)
        try:
            for block in blocks(page):
                if (not languages or block.language in languages) and self._do(block):
                    done += 1
            for each in self.running.values():
                each.process.terminate()
                each.end()
        finally:
            for each in self.running.values():
                each.process.kill()
        return done

    def _do(self, block: Block) -> bool:
        if block.title == "takes minutes" and not self.slow:
            return False
        if block.language == "python" and not block.title.endswith(".py"):
            exec(block.text, self.names)  # noqa: S102  # the pages are ours
        elif at := PLACE.fullmatch(block.title):
            self._do_at(at[1], Block(block.language, at[3], block.text), meanwhile=bool(at[2]))
        elif block.language in {"bash", "console"}:
            _type(block)
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "toml":
            for name, section in tomllib.loads(block.text).items():
                require_known(name, section)
        else:
            return False
        return True

    def _do_at(self, place: str, block: Block, *, meanwhile: bool) -> None:
        if place in self.running:
            self.running.pop(place).end()
        codes = [CODE.search(each.printed.read_text()) for each in self.running.values()]
        told = next((code[0] for code in codes if code), "")
        if told:
            block = Block(block.language, block.title, CODE.sub(told, block.text))
        Path(place).mkdir(exist_ok=True)
        with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
            if meanwhile:
                self.running[place] = _start(block)
            else:
                _type(block)


def _start(block: Block) -> Running:
    """Start a block's one command; a command that tells a code has told it."""
    ((command, shown),) = commands(block)
    printed = Path("printed.txt").absolute()
    with printed.open("wb") as file:
        process = subprocess.Popen(  # noqa: S602  # the pages are ours
            f"exec {command}",
            shell=True,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdin is not None
    with process.stdin as answers:
        answers.write("y\n")
    if any(CODE.search(line) for line in shown):
        wait_until(process, lambda: CODE.search(printed.read_text(encoding="utf-8")) is not None)
    return Running(process, shown, printed)


def _type(block: Block) -> None:
    message = block.title if block.title.startswith("exit status") else "0"
    expected = {int(each) for each in re.findall(r"\d+", message)}
    for command, shown in commands(block):
        status, printed = typed(command)
        assert status in expected, f"{command}: status {status}\n{printed}"
        for line in shown:
            assert is_said(line, printed), f"{command}: {line!r} not in\n{printed}"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page; examples of doctest are pytest's own."""
    found = [Block(language, title, text) for language, title, text in BLOCK.findall(page)]
    return [block for block in found if not block.text.startswith(">>>")]


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines shown below it."""
    text = block.text.replace("\\\n", " ")
    if block.language == "bash":
        yield from ((line, []) for line in text.splitlines() if line and line[0] != "#")
        return
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, [line for line in shown if words(line)]


def typed(command: str) -> tuple[int, str]:
    """The exit status of a command line and all that it printed."""
    name, *arguments = command.split()
    if name == "securevfl" and not set(command) & set("|><\"'"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = run(*arguments)
        return status, printed.getvalue()
    done = subprocess.run(  # noqa: S602  # the pages are ours
        command, shell=True, capture_output=True, text=True, check=False, env=environment()
    )
    return done.returncode, done.stdout + done.stderr


def require_known(name: str, section: Any) -> None:  # noqa: ANN401
    """Hold a part of a job file against the section's keys."""
    annotation = Job.model_fields[name].annotation
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    known = next(each.model_fields for each in kinds if hasattr(each, "model_fields"))
    for part in section if isinstance(section, list) else [section]:
        assert set(part) <= set(known), name


def environment() -> Mapping[str, str]:
    """Where `securevfl` and `python` are those that run the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def words(line: str) -> list[str]:
    """What two runs have in common: words, not figures and their units."""
    return re.findall(r"(?<!\w)[A-Za-z_]{3,}(?!\w)", RANDOM.sub("", line))


def is_said(line: str, printed: str) -> bool:
    """Whether a line that a page shows is somewhere in what was printed."""
    return any(_alike(line, other) for other in printed.splitlines())


def _alike(line: str, other: str) -> bool:
    expected, found = words(line), iter(words(other))
    if not all(word in found for word in expected):
        return False
    shares = [float(each) for each in SHARE.findall(other)]
    return all(
        any(abs(float(share) - each) <= CLOSE for each in shares) for share in SHARE.findall(line)
    )
