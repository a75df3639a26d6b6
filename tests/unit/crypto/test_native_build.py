"""The library is compiled on installation, or left out; what tools find in its C."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from securevfl.crypto import native_products
from securevfl.crypto.native import build

ROOT = Path(__file__).parents[3]
has_compiler = pytest.mark.skipif(
    shutil.which("cc") is None,
    reason="no C compiler",
)
INTERFACE = "hatchling.builders.hooks.plugin.interface"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The hook, on a stand-in for hatchling, which is there only while wheels are made."""
    parts = INTERFACE.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(parts[depth - 1]))
    monkeypatch.setattr(sys.modules[INTERFACE], "BuildHookInterface", object, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.NativeHook()
    made.said = []
    made.root = str(ROOT)
    made.app = SimpleNamespace(display_warning=made.said.append)
    made.module = module
    return made


def compiles_to(path: Path, monkeypatch: pytest.MonkeyPatch, hook: Any) -> None:  # noqa: ANN401
    """Nothing of this test lands in the checkout."""
    made = hook.module._build_module(ROOT)
    stand_in = SimpleNamespace(compiled=lambda: made.compiled(path, "-O0"), LIBRARY=build.LIBRARY)
    monkeypatch.setattr(hook.module, "_build_module", lambda _: stand_in)


@has_compiler
def test_a_wheel_is_for_this_platform_and_carries_the_library(
    hook: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    compiles_to(tmp_path / "native.so", monkeypatch, hook)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", data)
    assert hook.said == []
    assert (tmp_path / "native.so").exists()
    assert data["artifacts"] == ["securevfl/crypto/native/native.so"]
    assert not data["pure_python"]
    assert data["tag"].startswith("py3-none-")
    assert not data["tag"].endswith("any")


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("no-such-compiler", "nothing compiled: .*no-such-compiler"),
        ("cc '", "nothing compiled: No closing quotation"),
        ("false", "false failed: nothing said"),
        ("sh -c 'echo sources >&2; echo error: no stdint.h >&2; exit 1'", "error: no stdint.h"),
    ],
)
def test_without_a_compiler_the_installation_is_pure_python_and_says_so_in_a_line(
    compiler: str,
    says: str,
    hook: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CC", compiler)
    compiles_to(tmp_path / "native.so", monkeypatch, hook)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook.initialize("editable", data)
    (line,) = hook.said
    assert re.search(says, line)
    assert "\n" not in line
    assert data == {"artifacts": [], "pure_python": True}
    assert list(tmp_path.iterdir()) == []


def test_a_library_is_known_by_its_sources_and_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = build.digest()
    with monkeypatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS, "-ffast-math"))
        assert build.digest() != own
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.digest() != own


def test_a_checkout_with_a_compiler_uses_its_library(tmp_path: Path) -> None:
    """Or tests of products in C would be skipped, and nobody would know."""
    failed = build.compiled(tmp_path / "native.so", "-O0")
    if failed is not None:
        pytest.skip(failed)
    command = "python securevfl/crypto/native/build.py"
    assert native_products.why_not() is None, f"{native_products.why_not()}; {command}"
    assert native_products.fills_slots()


def test_where_nothing_can_be_written_the_installation_goes_on(
    hook: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    compiles_to(tmp_path / "missing" / "native.so", monkeypatch, hook)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", data)
    (line,) = hook.said
    assert re.search("nothing compiled: .*missing", line)
    assert data == {"artifacts": [], "pure_python": True}


CHECKS = """
import sys
from pathlib import Path
import pytest
from securevfl.crypto import native_products
from securevfl.crypto.native import build
build.LIBRARY = Path(sys.argv[1])
assert native_products.why_not() is None, native_products.why_not()
options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly"]
sys.exit(pytest.main([*options, *sys.argv[2:]]))
"""


@pytest.mark.slow
@has_compiler
def test_no_undefined_behaviour_and_no_access_outside_of_arrays(tmp_path: Path) -> None:
    """The tests of words, bounds and hostile bytes, under two sanitizers."""
    library = tmp_path / "native.so"
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    assert build.compiled(library, *flags) is None
    names = ("libasan.so", "libstdc++.so")  # the latter is what SEAL throws with
    asked = [["cc", f"-print-file-name={name}"] for name in names]
    preloaded = [
        subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
        for each in asked
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONPATH": str(ROOT),
    }
    here = Path(__file__).parent
    parts = ("native", "native_products", "native_tables")
    tests = [str(here / f"test_{part}.py") for part in parts]
    command = [sys.executable, "-c", CHECKS, str(library), *tests]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("valgrind") is None or not Path("/usr/include/valgrind/memcheck.h").exists(),
    reason="no valgrind",
)
@has_compiler
def test_no_branch_and_no_address_depends_on_a_secret_and_all_are_erased(tmp_path: Path) -> None:
    sources = [*map(str, build.HERE.glob("*.c")), str(Path(__file__).parent / "secrets.c")]
    more = ["-Wno-psabi", '-DSOURCES=""', f"-I{build.HERE}", "-Wl,--wrap=free"]
    program = tmp_path / "secrets"
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run(["cc", *flags, *more, *sources, "-o", str(program)], check=True)  # noqa: S603, S607
    has_vector = "fma" in Path("/proc/cpuinfo").read_text() and os.uname().machine == "x86_64"
    said = []
    for asked in ("0 2 3", "0 3 2", "1 2 3", "1 3 2", "0 2 3 leak", "1 2 3 leak", "0 2 3 keep"):
        if asked[0] == "0" or has_vector:
            command = ["valgrind", "-q", str(program), *asked.split()]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            said.append(("leak" in asked, "depends on uninitialised" in done.stderr))
            said.append(("keep" in asked, "kept" in done.stdout))
    assert said
    assert all(control == reported for control, reported in said)
