import subprocess
import sys
from pathlib import Path

import pytest

from securevfl.lazy import Lazy

# What `import securevfl` and reading a job need; polars takes most of a second.
EARLY = ("securevfl.recipe", "securevfl.data.read", "securevfl.data.join", "securevfl.job")


def test_a_module_is_imported_when_something_of_it_is_first_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = Lazy("slow_to_import")
    assert "slow_to_import" not in sys.modules
    assert module.answer == 42
    assert "slow_to_import" in sys.modules
    monkeypatch.delitem(sys.modules, "slow_to_import")
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = Lazy("no_such_module").answer


def test_what_reads_files_imports_polars_only_when_it_reads() -> None:
    lines = [f"import {name}" for name in EARLY]
    lines.append("import sys; sys.exit('polars' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False)  # noqa: S603
    assert done.returncode == 0
