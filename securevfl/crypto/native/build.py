"""Compile the C sources beside this file into one library beside them; needs nothing but Python.

Run as a program, it does so in a checkout; an installation does it by its hook.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "native.so"
# Doubles must be rounded where the sources say, by products and sums of their own.
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")
SECONDS = 120


def digest() -> str:
    """SHA-256 of sources and flags in hex digits: the library tells of which ones it was made."""
    found = sha256(" ".join(FLAGS).encode())
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]):
        found.update(path.read_bytes())
    return found.hexdigest()


def compiled(target: Path = LIBRARY, *more: str) -> str | None:
    """Compile to `target` with further flags; returns one line where that fails."""
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [*compiler, *FLAGS, f'-DSOURCES="{digest()}"', *more, *sources]
            done = subprocess.run(  # noqa: S603
                [*command, "-o", str(made)], check=False, capture_output=True, timeout=SECONDS
            )
            if done.returncode:
                lines = done.stderr.decode(errors="replace").strip().splitlines()
                said = next((line for line in lines if "error" in line), "nothing said")
                return f"{compiler[0]} failed: {said}"
            made.replace(target)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"nothing compiled: {error}"
    return None


if __name__ == "__main__":
    sys.exit(compiled())
