import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from matplotlib import get_cachedir
from threadpoolctl import threadpool_info

from securevfl.data import VerticalDataset, load, where

# No test is timed: machines are noisy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

NOT_FOUND = "real data not found"


@pytest.fixture
def generator() -> np.random.Generator:
    """The test's own: what other tests draw, or in what order, changes nothing."""
    return np.random.default_rng(0)


@pytest.fixture
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, an empty cache and an empty memory of earlier jobs."""
    monkeypatch.chdir(tmp_path)
    # All but this: building the cache of fonts takes longer than a test.
    monkeypatch.setenv("MPLCONFIGDIR", get_cachedir())
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("SECUREVFL_DATA", raising=False)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., VerticalDataset]:
    """`load` from $SECUREVFL_DATA alone, skipping the test where the data set is not there."""
    cache = tmp_path_factory.mktemp("cache")

    def load_real(name: str, *, parties: int | None = None) -> VerticalDataset:
        folder = os.environ.get("SECUREVFL_DATA")
        with pytest.MonkeyPatch.context() as patch:
            # Neither data nor built tables of the user's own cache decide what is tested.
            patch.setattr("platformdirs.user_cache_path", lambda _name: cache)
            if not (folder and where(name, data_dir=Path(folder)).present):
                pytest.skip(f"{NOT_FOUND}: {name}")
            return load(name, parties=parties)

    return load_real


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # What it takes to see a failure again.
    seed = terminalreporter.config.getoption("randomly_seed", None)
    blas = ", ".join(
        f"{each.get('architecture')} with {each['num_threads']} threads"
        for each in threadpool_info()
        if each["user_api"] == "blas"
    )
    terminalreporter.write_line(f"order: --randomly-seed={seed}; BLAS: {blas}")
    skipped = terminalreporter.stats.get("skipped", [])
    missing = sum(NOT_FOUND in str(report.longrepr) for report in skipped)
    if missing:
        terminalreporter.write_line(
            f"{missing} tests skipped: {NOT_FOUND}; set SECUREVFL_DATA", yellow=True
        )


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without data: no $SECUREVFL_DATA, and an empty cache folder, which is returned."""
    cache = tmp_path / "user-cache"
    monkeypatch.delenv("SECUREVFL_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _name: cache)
    return cache
