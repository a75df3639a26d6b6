import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imports_gate(copy: Path) -> tuple[int, str]:
    """Exit status and output of the Makefile's own target, in a copy of the repository."""
    # --old-file: the copy has no environment of its own and is to make none.
    command = ["make", "imports", "--old-file=.venv/installed-dev"]
    done = subprocess.run(  # noqa: S603
        [*command, f"BIN={Path(sys.executable).parent}"],
        cwd=copy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its gate, as they are."""
    place = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "securevfl", place / "securevfl")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, place)
    return place


def test_the_gate_is_open_to_the_package_as_it_is(copy: Path) -> None:
    status, output = imports_gate(copy)
    assert (status, "0 broken" in output) == (0, True), output


@pytest.mark.parametrize(
    ("room", "imported", "contract"),
    [
        ("crypto", "securevfl.cli", "Layers: each module"),
        ("protocols/exchanges", "securevfl.protocols.vertical.fedbcd", "Protocols: algorithms"),
        ("protocols/vertical", "securevfl.protocols.exchanges.plain", "Protocols: algorithms"),
        ("runtime", "torch", "Cryptography, messages and runtime"),
        ("protocols", "torch", "Networks are an extra"),
        ("horizontal", "flwr", "Flower is an extra"),
        ("auditing", "securevfl.horizontal.client", "Clients that hold rows have a room"),
        ("horizontal", "securevfl.protocols.session", "Layers: each module"),
        ("benchmarks", "tenseal", "Homomorphic libraries"),
        ("benchmarks", "securevfl.crypto.inspection", "What an audit may open"),
        ("attacks", "securevfl.runtime.views", "Attacks: from what is known"),
    ],
)
def test_a_forbidden_import_fails_the_gate(
    copy: Path, room: str, imported: str, contract: str
) -> None:
    planted = copy / "securevfl" / room / "planted.py"
    planted.write_text(f"import {imported}\n", encoding="utf-8")
    try:
        status, output = imports_gate(copy)
    finally:
        planted.unlink()
    broken = [part for part in output.split(" KEPT") if "BROKEN" in part]
    assert status != 0, output
    assert contract in "".join(broken), output
    assert "planted" in output
