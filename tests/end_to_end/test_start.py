"""How commands begin and how an interrupt ends them."""

import subprocess
import sys
from pathlib import Path

import pytest

from securevfl import __version__
from tests.end_to_end.commands import run, started, wait_until

pytestmark = pytest.mark.usefixtures("clean_place")
SLOW = {
    *("torch", "sklearn", "scipy", "matplotlib", "tenseal", "polars", "dp_accounting"),
    *("phe", "gmpy2", "jinja2", "urllib.request"),
}
NEEDED_BY_WORK = {"numpy", "asyncio", "cryptography", "safetensors"}
COMMANDS = [
    *("train", "audit", "sweep noise", "data list", "data where", "data get"),
    *("predict", "model show"),
    *(f"bench {name}" for name in ("tradeoff", "crypto")),
]
SAYS_WHAT_IS_LOADED = """
import runpy, sys
sys.argv = ["securevfl", *sys.argv[1:]]
try:
    runpy.run_module("securevfl", run_name="__main__")
finally:
    sys.stderr.write("loaded " + " ".join(sys.modules) + "\\n")
"""


def loaded(arguments: str) -> tuple[set[str], str]:
    """The modules that a command line imports, and its first line on stderr."""
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", SAYS_WHAT_IS_LOADED, *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    *warning, last = ended.stderr.splitlines()
    assert last.startswith("loaded ")
    return set(last.split()), warning[0] if warning else ""


def test_the_package_loads_nothing_before_it_is_asked_for_something() -> None:
    code = "import securevfl, sys; dir(securevfl); sys.stderr.write(' '.join(sys.modules))"
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = set(ended.stderr.split())
    assert "securevfl" in modules
    assert not modules & (SLOW | NEEDED_BY_WORK | {"typer", "pydantic"})


def test_a_job_loads_the_library_of_its_own_scheme_and_no_other() -> None:
    code = """
import sys
from securevfl.data.sources import load
from securevfl.job import Job
from securevfl.training import train
data = load("breast_cancer")
for scheme in ("plain", "bfv"):
    train(Job.of(job={"rounds": 1}, exchange={"scheme": scheme}), data)
    print(scheme, *sys.modules)
"""
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = {line.split()[0]: set(line.split()[1:]) for line in ended.stdout.splitlines()}
    assert not modules["plain"] & SLOW
    assert modules["bfv"] & SLOW == {"tenseal"}


def test_the_version_is_printed_and_nothing_else_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr() == (f"securevfl {__version__}\n", "")


def test_help_loads_nothing_that_is_slow() -> None:
    # One process for all of them: whichever loads something shows it.
    every = "; ".join(
        f"sys.argv = {['securevfl', *command.split(), '--help']!r}; run()"
        for command in (*COMMANDS, "bench", "sweep", "data", "")
    )
    code = (
        "import sys\nfrom securevfl.cli.app import main\n"
        "def run():\n    try:\n        main()\n    except SystemExit as ended:\n"
        "        assert not ended.code, sys.argv\n"
        f"{every}\nsys.stderr.write(' '.join(sys.modules))"
    )
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = set(ended.stderr.split())
    assert "typer" in modules
    assert not modules & (SLOW | NEEDED_BY_WORK)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bench tradeoff --exchang plain", "--exchange"),
        ("train nowhere.toml", "nowhere.toml"),
        ("predict nowhere.toml --out scores.csv", "nowhere.toml"),
        ("train malformed.toml", "not TOML"),
        ("train unknown.toml", "nearest known key is 'rounds'"),
        ("train moved.toml", "staleness belongs in [fdml]"),
    ],
)
def test_a_mistake_that_is_seen_at_once_loads_nothing_for_work(arguments: str, said: str) -> None:
    Path("malformed.toml").write_text("[job", encoding="utf-8")
    Path("unknown.toml").write_text("[job]\nround = 3\n", encoding="utf-8")
    Path("moved.toml").write_text("[job]\nstaleness = 2\n", encoding="utf-8")
    modules, warning = loaded(arguments)
    assert said in warning
    assert not modules & (SLOW | NEEDED_BY_WORK)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bench tradeoff --dataset brest_cancer", "breast_cancer"),
        ("bench tradeoff --dataset a9a", "data get a9a"),
        ("bench tradeoff --exchange plian", "nearest is 'plain'"),
        ("bench tradeoff --batch-size 100000", "456"),
        ("sweep noise --dataset breast_cancer --clip 0", "clip"),
        ("audit --exchange bvf", "'bvf'"),
        ("audit --dataset brest_cancer", "breast_cancer"),
        ("train files.toml", "bank.csv"),
        ("train own.toml", "[fdml] is for algorithm 'fdml', not 'fedbcd-p'"),
        ("data where a9b", "a9a"),
    ],
)
def test_a_mistake_loads_nothing_that_is_slow(arguments: str, said: str) -> None:
    Path("files.toml").write_text(
        '[[party]]\nname = "bank"\nrole = "label"\ndata = "bank.csv"\nid_column = "id"\n'
        'label_column = "y"\n[[party]]\nname = "shop"\nrole = "feature"\ndata = "shop.csv"\n'
        'id_column = "id"\n',
        encoding="utf-8",
    )
    Path("own.toml").write_text(
        '[job]\ndataset = "breast_cancer"\n[fdml]\nstaleness = 2\n', encoding="utf-8"
    )
    modules, warning = loaded(arguments)
    assert said in warning
    assert not modules & SLOW


@pytest.mark.parametrize(
    "library", ["pydantic_core", "_multiarray_umath", "libtorch_cpu", "sealapi"]
)
def test_an_interrupt_while_something_is_imported_is_no_traceback(library: str) -> None:
    more = ("--model=mlp", "--exchange=plain", "--local-steps=1") if "torch" in library else ()
    with started("bench", "tradeoff", *more) as process:
        mapped = Path(f"/proc/{process.pid}/maps")
        wait_until(process, lambda: library in mapped.read_text(encoding="utf-8"))
        process.send_signal(2)
        error = process.communicate()[1]
    assert "Traceback" not in error
    assert "interrupted" in error
    assert process.returncode == 130


def test_a_command_named_here_is_a_command() -> None:
    for command in COMMANDS:
        assert run(*command.split(), "--help") == 0
