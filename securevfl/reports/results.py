"""Results as JSON: always command, version, seed, settings, machine and rows."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from securevfl import __version__
from securevfl.files import replace_file

LIBRARIES = ("numpy", "phe", "gmpy2", "tenseal", "scikit-learn")


def machine() -> dict[str, Any]:
    """What a reader needs to judge the seconds by."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def results(
    *, command: str, seed: int, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What a result file holds."""
    return {
        "command": command,
        "version": __version__,
        "seed": seed,
        "settings": settings,
        "machine": machine(),
        "rows": rows,
    }


def write_results(
    path: Path,
    *,
    command: str,
    seed: int,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write a result file in one step.

    Raises:
        DataError: it cannot be written.
    """
    result = results(command=command, seed=seed, settings=settings, rows=rows)
    text = json.dumps(result, indent=2, allow_nan=False, default=str) + "\n"
    replace_file(path, text.encode(), "result file")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
