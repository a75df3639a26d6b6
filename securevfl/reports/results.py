"""Results as JSON: what was run, on which code and machine, and its rows."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from securevfl import __version__
from securevfl.files import replace_file, sha256

LIBRARIES = ("numpy", "phe", "gmpy2", "tenseal", "scikit-learn")
CHECKOUT = Path(__file__).parents[2]


def machine() -> dict[str, Any]:
    """What a reader needs to judge the seconds by."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def commit() -> str | None:
    """The git commit of the code that runs, `-dirty` where the package was changed since.

    None for an installed package: a repository around it would be another one.
    """
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        return None

    def ask(*arguments: str) -> str | None:
        found = subprocess.run(  # noqa: S603  # our own words, no shell
            [git, "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() if found.returncode == 0 else None

    head = ask("rev-parse", "HEAD")
    return (
        f"{head}-dirty"
        if head and ask("status", "--porcelain", "--", "securevfl", "bench/**.py")
        else head
    )


def manifest(
    started: str, job_hash: str, data: Mapping[str, str], models: Iterable[Path]
) -> dict[str, Any]:
    """Of a run: SHA-256 of what it read and made, the code, the machine, start and end (UTC).

    Whoever has a guess of a small file can confirm it by its hash, so this stays with the data.
    """
    return {
        "job_hash": job_hash,
        "data": data,
        "models": {path.name: sha256(path) for path in models},
        "started": started,
        "ended": now(),
        "version": __version__,
        "commit": commit(),
        "machine": machine(),
    }


def as_json(result: Mapping[str, Any]) -> bytes:
    """What a file of it holds."""
    return (json.dumps(result, indent=2, allow_nan=False, default=str) + "\n").encode()


def now() -> str:
    """This second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def results(
    *,
    command: str,
    seed: int,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    missing: Sequence[str] = (),
) -> dict[str, Any]:
    """What a result file holds.

    `command` names what was run, `argv` is the line as typed; `commit` and `date` (UTC) say on
    which code and when; `rows` are the results. Where an interrupt left something undone, `partial`
    is true and `missing` says what.
    """
    program = Path(sys.argv[0])
    folder = program.parent
    module = f"bench.{folder.name}" if folder.parent.name == "bench" else folder.name
    typed = ["python", "-m", module] if program.name == "__main__.py" else [program.name]
    cut = {"partial": True, "missing": list(missing)} if missing else {}
    return {
        "command": command,
        "argv": [*typed, *sys.argv[1:]],
        "version": __version__,
        "commit": commit(),
        "date": now(),
        "seed": seed,
        "settings": settings,
        "machine": machine(),
        **cut,
        "rows": rows,
    }


def keep(
    json_path: Path | None,
    html_path: Path | None = None,
    page: Callable[[Mapping[str, Any]], str] | None = None,
    **made: Any,  # noqa: ANN401
) -> None:
    """Write a result file and its page, each in one step and where it is asked for.

    `page` makes a page of a result, whose parts are `made`, see `results`.
    """
    if json_path is not None:
        replace_file(json_path, as_json(results(**made)), "result file")
    if html_path is not None and page is not None:
        replace_file(html_path, page(results(**made)).encode(), "page")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def marks(missing: Sequence[str], *, quick: bool = False) -> list[str]:
    """A line on what an interrupt left undone, and one on a run that was small to be quick."""
    cut = [f"PARTIAL, interrupted: missing {'; '.join(missing)}"] if missing else []
    return cut + (
        ["QUICK: a first look; do not base a decision or a policy on it"] if quick else []
    )


def marks_of(result: Mapping[str, Any]) -> list[str]:
    """The same of what a result file holds."""
    return marks(result.get("missing", ()), quick=result["settings"].get("quick", False))
