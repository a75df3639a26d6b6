"""How commands begin, what they load and do without, and how an interrupt ends them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from securevfl import __version__
from tests.end_to_end.commands import run, started, wait_until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("clean_place")
SLOW = {
    *("torch", "sklearn", "scipy", "matplotlib", "tenseal", "polars", "dp_accounting"),
    *("phe", "gmpy2", "jinja2", "urllib.request"),
}
NEEDED_BY_WORK = {"numpy", "asyncio", "cryptography", "safetensors"}
COMMANDS = [
    *("train", "audit", "sweep noise", "data list", "data where", "data get"),
    *("predict", "model show", "relay"),
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


def python(code: str, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check)  # noqa: S603


def loaded(arguments: str) -> tuple[set[str], str]:
    """The modules that a command line imports, and its first line on stderr."""
    ended = python(SAYS_WHAT_IS_LOADED, *arguments.split(), check=False)
    *warning, last = ended.stderr.splitlines()
    assert last.startswith("loaded ")
    return set(last.split()), warning[0] if warning else ""


def test_the_package_loads_nothing_before_it_is_asked_for_something() -> None:
    code = "import securevfl, sys; dir(securevfl); sys.stderr.write(' '.join(sys.modules))"
    modules = set(python(code).stderr.split())
    assert "securevfl" in modules
    assert not modules & (SLOW | NEEDED_BY_WORK | {"typer", "pydantic"})


def test_a_job_loads_the_library_of_its_own_scheme_and_no_other() -> None:
    code = """
import sys
from securevfl.data.sources import load
from securevfl.job import Job
from securevfl.training import train
data = load("breast_cancer")
for scheme in ("plain", "bfv", "paillier"):
    job = {"rounds": 1, "batch_size": "full", "eval_every": 0}
    train(Job.of(job=job, exchange={"scheme": scheme}), data)
    print(scheme, *sys.modules)
"""
    lines = [line.split() for line in python(code).stdout.splitlines()]
    modules = {scheme: set(names) for scheme, *names in lines}
    assert not modules["plain"] & SLOW
    assert modules["bfv"] & SLOW == {"tenseal"}
    assert modules["paillier"] & SLOW == {"tenseal", "gmpy2", "phe"}


def test_the_version_is_printed_and_nothing_else_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr() == (f"securevfl {__version__}\n", "")


def test_help_of_every_command_loads_nothing_that_is_slow() -> None:
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
    modules = set(python(code).stderr.split())
    assert "typer" in modules
    assert not modules & (SLOW | NEEDED_BY_WORK)


MALFORMED, UNKNOWN, MOVED = "[job", "[job]\nround = 3\n", "[job]\nstaleness = 2\n"
OWN = '[job]\ndataset = "breast_cancer"\n[fdml]\nstaleness = 2\n'
FILES = """
[[party]]
name = "bank"
role = "label"
data = "bank.csv"
id_column = "id"
label_column = "y"
[[party]]
name = "shop"
role = "feature"
data = "shop.csv"
id_column = "id"
"""


@pytest.mark.parametrize(
    ("arguments", "job", "said"),
    [
        ("bench tradeoff --exchang plain", "", "--exchange"),
        ("train nowhere.toml", "", "nowhere.toml"),
        ("predict nowhere.toml --out scores.csv", "", "nowhere.toml"),
        ("train job.toml", MALFORMED, "not TOML"),
        ("train job.toml", UNKNOWN, "nearest known key is 'rounds'"),
        ("train job.toml", MOVED, "staleness belongs in [fdml]"),
    ],
)
def test_a_mistake_that_is_seen_at_once_loads_nothing_for_work(
    arguments: str, job: str, said: str
) -> None:
    Path("job.toml").write_text(job, encoding="utf-8")
    modules, told = loaded(arguments)
    assert said in told
    assert not modules & (SLOW | NEEDED_BY_WORK)


@pytest.mark.parametrize(
    ("arguments", "job", "said"),
    [
        ("bench tradeoff --dataset brest_cancer", "", "breast_cancer"),
        ("bench tradeoff --dataset a9a", "", "data get a9a"),
        ("bench tradeoff --exchange plian", "", "nearest is 'plain'"),
        ("bench tradeoff --batch-size 100000", "", "456"),
        ("sweep noise --dataset breast_cancer --clip 0", "", "clip"),
        ("audit --exchange bvf", "", "'bvf'"),
        ("audit --dataset brest_cancer", "", "breast_cancer"),
        ("train job.toml", FILES, "bank.csv"),
        ("train job.toml", OWN, "[fdml] is for algorithm 'fdml', not 'fedbcd-p'"),
        ("data where a9b", "", "a9a"),
    ],
)
def test_a_mistake_loads_nothing_that_is_slow(arguments: str, job: str, said: str) -> None:
    Path("job.toml").write_text(job, encoding="utf-8")
    modules, told = loaded(arguments)
    assert said in told
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


def test_an_interrupt_within_an_exec_ends_with_its_status() -> None:
    # Python notes it and dies of the signal, as libraries make classes by exec.
    Path("interrupted.py").write_text(
        "from securevfl.__main__ import main\n"
        "from securevfl.cli import app\n"
        "def work():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        raise SystemExit(130)\n"
        "app.main = work\n"
        "main()\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


# ----------------------------------------------------------------------------- without torch


def test_networks_on_sparse_rows_load_no_torch() -> None:
    python(f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from securevfl.job import Job
from securevfl.training import train
from tests.sparse_data import few_ones, sparse
job = Job.of(job={{"rounds": 1, "model": "mlp", "learning_rate": 0.1}})
train(job, sparse(few_ones()))
assert "torch" not in sys.modules
""")


NEED_TORCH = "securevfl: error: networks need torch: pip install 'securevfl[networks]'"
# Blocked where modules are found: scipy stumbles over a None among those that are loaded.
WITHOUT_TORCH = """
import runpy, sys
from importlib.machinery import PathFinder
class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "torch" else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
for line in sys.argv[1:]:
    sys.argv = ["securevfl", *line.split()]
    try:
        runpy.run_module("securevfl", run_name="__main__")
    except SystemExit as ended:
        print("status", ended.code or 0)
"""
JOB = """
[job]
dataset = "breast_cancer"
rounds = 2
model = "MODEL"
[exchange]
scheme = "bfv"
[output]
directory = "MODEL"
"""


def run_without_torch(*lines: str) -> tuple[list[int], str]:
    """Exit statuses of command lines in a process where torch cannot be imported, and stderr."""
    for model in ("linear", "mlp"):
        Path(f"{model}.toml").write_text(JOB.replace("MODEL", model), encoding="utf-8")
    ended = python(WITHOUT_TORCH, *lines)
    told = [line.split() for line in ended.stdout.splitlines()]
    return [int(words[1]) for words in told if words[:1] == ["status"]], ended.stderr


def test_linear_jobs_run_without_torch_and_a_network_is_one_line_before_any_work() -> None:
    statuses, said = run_without_torch(
        "train linear.toml",
        "train mlp.toml",
        "sweep noise --dataset breast_cancer --model nn --noise 1",
    )
    assert statuses == [0, 2, 2], said
    errors = [line for line in said.splitlines() if line.startswith("securevfl: ")]
    assert errors == [NEED_TORCH] * 2
    assert Path("linear").exists()
    assert not Path("mlp").exists()


def test_theorem_1_is_tried_without_torch_and_its_networks_say_what_they_need() -> None:
    small = ["--set", "rounds=2", "--set", "batch_size=228", "--to", "."]
    ended = python(f"""{WITHOUT_TORCH}
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["theorem1", *{small}]
runpy.run_module("bench.theorem1", run_name="__main__")
""")
    rows = json.loads(Path("theorem1.json").read_text(encoding="utf-8"))["rows"]
    without = [row["case"] for row in rows if row["deviation"] is None]
    assert (len(rows), without) == (24, ["network, identity", "network, 4 hidden"])
    need = NEED_TORCH.removeprefix("securevfl: error: ")
    assert [line for line in ended.stdout.splitlines() if "torch" in line] == [
        f"{case}: {need}" for case in without
    ]


@pytest.mark.slow
def test_sweeps_and_audits_of_linear_models_take_no_torch() -> None:
    statuses, said = run_without_torch(
        "sweep noise --dataset breast_cancer --model lr --noise 1 --epochs 1 --repeats 1 "
        "--learning-rate 0.1 --own-prediction noisy --workers 1 --quiet",
        "audit linear.toml --exchange plain --attack gram --repeats 1 --workers 1 --quiet",
    )
    assert statuses == [0, 0], said
