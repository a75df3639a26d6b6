"""Plant faults in a copy of the package, one at a time, and print those that no test notices.

    python tests/plant_faults.py [--workers N] [ID...]

`faults.toml` has the faults and the tests that should fail. These must pass without any fault. A
fault is caught if one of them fails, and not if the code cannot be run at all.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("bench", "securevfl", "tests")
LONGEST_SECONDS = 600
# Settings of the tests that run this one.
FOREIGN = ("PYTEST", "COV", "XDIST")
BROKEN = re.compile("^FAILED .* - (Syntax|Import|ModuleNotFound|Name|UnboundLocal)Error", re.M)


class FaultError(Exception):
    """A fault or its tests that do not fit the code."""


@dataclass(frozen=True)
class Fault:
    """An entry of `faults.toml`; `old` and `new` are pieces of the file's text, in pairs."""

    id: str
    what: str
    file: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    tests: tuple[str, ...]

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Fault":
        listed = {key: entry[key] for key in ("old", "new", "tests")}
        pairs = {key: (v,) if isinstance(v, str) else tuple(v) for key, v in listed.items()}
        return cls(**{**entry, **pairs})

    def planted(self, text: str) -> str:
        """The file's text with the fault; a FaultError if the fault does not fit it."""
        for old, new in zip(self.old, self.new, strict=True):
            if text.count(old) != 1:
                raise FaultError(
                    f"{self.id}: {text.count(old)} times in {self.file}, expected once: {old!r}; "
                    "move the entry along with the code"
                )
            text = text.replace(old, new)
        try:
            compile(text, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise FaultError(f"{self.id}: {error}") from error
        return text


def all_faults() -> list[Fault]:
    entries = tomllib.loads((ROOT / "tests/faults.toml").read_text("utf-8"))["fault"]
    return [Fault.of(entry) for entry in entries]


class Copy:
    """A copy of the package, its experiments and tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "hatch_build.py"):
            shutil.copy(ROOT / name, folder)
        found = self._python("-c", "import securevfl; print(securevfl.__file__)").stdout.strip()
        if not Path(found).is_relative_to(folder):
            raise FaultError(f"{found} is imported, expected the copy in {folder}")

    def failure(self, tests: Sequence[str]) -> str:
        """What pytest prints if a test fails, else nothing; a FaultError if they cannot run."""
        plain = ["-p", "no:cacheprovider", "-p", "no:randomly"]
        ended = self._python("-m", "pytest", "-x", "-vv", "-rfs", "--tb=short", *plain, *tests)
        failed = ended.returncode == 1 and re.search("^FAILED ", ended.stdout, re.M)
        passed = ended.returncode == 0 and not re.search("^SKIPPED ", ended.stdout, re.M)
        if not (failed or passed) or BROKEN.search(ended.stdout):
            raise FaultError(f"tests that do not run:\n{ended.stdout}{ended.stderr}")
        return ended.stdout if failed else ""

    @contextmanager
    def having(self, fault: Fault) -> Iterator[None]:
        """Plant a fault, and take it back."""
        file = self._folder / fault.file
        text = file.read_text("utf-8")
        try:
            self._write(file, fault.planted(text))
            yield
        finally:
            self._write(file, text)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text, "utf-8")
        # Python tells versions apart by their size and second.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()

    def _python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        return subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            cwd=self._folder,
            env={**kept, "PYTHONPATH": str(self._folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )


def caught(faults: Sequence[Fault], *, workers: int = 1) -> Iterator[tuple[Fault, bool]]:
    """Each fault, and whether a test of its own fails.

    Raises:
        FaultError: a fault that does not fit the code, or tests that fail without any.
    """
    copies: SimpleQueue[Copy] = SimpleQueue()

    def found(fault: Fault) -> bool:
        copy = copies.get()
        try:
            with copy.having(fault):
                return bool(copy.failure(fault.tests))
        except FaultError as error:
            raise FaultError(f"{fault.id}: {error}") from error
        finally:
            copies.put(copy)

    with ExitStack() as stack:
        folders = [stack.enter_context(TemporaryDirectory()) for _ in range(workers)]
        first, *others = (Copy(Path(folder).resolve()) for folder in folders)
        if failure := first.failure(sorted({test for fault in faults for test in fault.tests})):
            raise FaultError(f"tests that fail without any fault:\n{failure}")
        for copy in (first, *others):
            copies.put(copy)
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        yield from zip(faults, pool.map(found, faults), strict=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Plant faults, and see which no test notices.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="of faults.toml; all by default")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    known = {fault.id: fault for fault in all_faults()}
    if unknown := set(given.ids) - known.keys():
        parser.error(f"no fault {', '.join(sorted(unknown))} in faults.toml")
    survive = 0
    faults = [known[each] for each in given.ids or known]
    for fault, is_caught in caught(faults, workers=given.workers):
        survive += not is_caught
        word = "caught  " if is_caught else "SURVIVED"
        sys.stdout.write(f"{word} {fault.id:5} {fault.what}\n")
        sys.stdout.flush()
    return int(survive > 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FaultError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
