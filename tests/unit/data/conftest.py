import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Read once, since tests take the variable away.
REAL_DATA = Path(os.environ.get("SECUREVFL_DATA") or "/nowhere")


@pytest.fixture
def real_file() -> Callable[[str], Path]:
    """A file below $SECUREVFL_DATA, skipping the test where it is not there."""

    def find(relative: str) -> Path:
        path = REAL_DATA / relative
        if not path.is_file():
            pytest.skip(f"real data not found: {relative}")
        return path

    return find
