import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Read once, since tests take the variable away.
REAL_DATA = Path(os.environ.get("SECUREVFL_DATA") or "/nowhere")


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without data: no $SECUREVFL_DATA, and an empty cache folder, which is returned."""
    cache = tmp_path / "user-cache"
    monkeypatch.delenv("SECUREVFL_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _name: cache)
    return cache


@pytest.fixture
def real_file() -> Callable[[str], Path]:
    """A file below $SECUREVFL_DATA, skipping the test where it is not there."""

    def find(relative: str) -> Path:
        path = REAL_DATA / relative
        if not path.is_file():
            pytest.skip(f"real data not found: {relative}")
        return path

    return find
