"""A mistake gets one line and exit status 2, whatever command it is made in."""

from pathlib import Path

import pytest

from tests.end_to_end.commands import example, refused, two_organizations

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
# With a rate of its own: none is chosen, by training, before the mistake is seen.
RATE = "bench tradeoff --learning-rate 0.3"
SWEEP = "sweep noise --dataset breast_cancer"
AUDIT = "audit --exchange plain --workers 1 --repeats 1 --quiet"
TAKES = "train job.toml --quiet"
SAID = "the job file job.toml says that"
MISTAKES = {
    "bench tradeof": "tradeoff",
    "bench tradeoff --exchang plain": "--exchange",
    "bench tradeoff --dataset breast_cancr": "breast_cancer",
    "bench tradeoff --exchange plian": "nearest is 'plain'",
    "bench tradeoff --exchange BFV": "nearest is 'bfv'",
    "bench tradeoff --exchange masked": "at least 3 parties",
    "bench tradeoff --exchange plain --he-per-step true": "no cell has homomorphic work",
    "bench tradeoff --exchange plain,blind": "compare what `securevfl train` prints under each",
    "bench tradeoff --hidden [3]": "needs model = 'mlp'",
    "bench tradeoff --hidden 3": "job.hidden = 3: Input should be a valid array",
    "bench tradeoff --local-steps 0": "local_steps = 0",
    "bench tradeoff --local-steps 1,two": "local_steps = 'two'",
    "bench tradeoff --batch-size -5": "batch_size = -5",
    "bench tradeoff --batch-size 100000": "456",
    "bench tradeoff --target-auc 1.5": "target_auc",
    "bench tradeoff --learning-rate nan": "learning_rate",
    "bench tradeoff --parties 1": "parties",
    "bench tradeoff --network mars": "lan",
    f"{RATE} --exchange paillier --key-bits 1024": "3072",
    "bench tradeoff --exchange ckks --hide both": "taylor-logistic",
    f"{RATE} --exchange ckks --engine gpu": "gpu",
    f"{RATE} --exchange ckks,bfv --engine phe": "'phe', one of",
    "bench tradeoff --exchange paillier --round-trips 1": "needs scheme bfv",
    "bench tradeoff --dataset a9a": "securevfl data get a9a",
    "bench tradeoff job.toml --quick --repeats 2": "drop --repeats",
    "bench tradeoff --algorithm fedavg": "fedavg",
    "bench tradeoff --learning-rate 0": "learning_rate",
    "bench tradeoff --exchange": "--exchange VALUE,VALUE",
    "bench tradeoff --vary local_steps": "KEY=VALUES",
    "bench tradeoff --vary x=1": "no such key",
    "bench tradeoff --local-steps 1,,5": "separated by commas",
    "bench tradeoff --network 20:fast": "20:100",
    "bench rounds": "now `python -m bench.rounds`",
    "bench crypto --scheme bvf": "bfv, paillier, ckks",
    "bench crypto --scheme bfv,": "expected names, separated by commas",
    "bench crypto --samples 8": "--features",
    "bench crypto --samples 0 --features 1": "from 1 on",
    "sweep noise --noise 0,one": "--noise",
    f"{SWEEP} --noise=-1": "noise_multiplier",
    "sweep noise --model svm": "job.model = 'svm'",
    f"{SWEEP} --clip 0": "clip",
    f"{SWEEP} --delta 2": "delta",
    "sweep noise --mechanism cauchy": "privacy.mechanism = 'cauchy'",
    "sweep noise --clipp 1": "no such option --clipp: the nearest is --clip",
    "sweep noise --clip": "--clip VALUE,VALUE",
    "sweep noise --vary clip=": "separated by commas",
    "sweep noise --clip 1,2": "privacy.clip has 2 values",
    "sweep noise --noise-multiplier 1": "levels of --noise",
    "sweep noise --exchange bfv": "under dp",
    "sweep noise --algorithm fedavg": "fedavg",
    f"{SWEEP} --hidden 4": "needs model = 'mlp'",
    "sweep noise --staleness many": "fdml.staleness = 'many'",
    f"{SWEEP} --algorithm fedsgd --own-prediction noisy": "[fdml] is for algorithm 'fdml'",
    "sweep noise": "securevfl data get a9a",
    f"{SWEEP} --label-party me": "'me'",
    "sweep noise job.toml --quick --repeats 2": "drop --repeats",
    "data where a9b": "a9a",
    "train": "--example",
    "train job.toml --round 3": "no such option --round: set `rounds` under [job] in the job file",
    "train job.toml --exchange bfv": "set `scheme` under [exchange] in the job file",
    "train job.toml --network wan": "set [network] in the job file",
    "train job.toml --forse": "--force",
    "train nowhere.toml": "nowhere.toml",
    "audit --exchange bvf --repeats 1 --quiet": "--exchange = 'bvf'",
    f"{AUDIT} --attack gramm": "attack = 'gramm'",
    f"{AUDIT} --dataset brest_cancer": "breast_cancer",
    f"{AUDIT} --batch-size 0": "--batch-size",
    f"{AUDIT} --label-party nobody": "label_party: 'nobody'",
    "audit --exchange plain --repeats 0 --quiet": "repeats",
    f"{AUDIT} --attack gram --must-resist anchors": "'anchors' is not run",
    f"{AUDIT} --quick --must-resist gram": "--quick is one seed and no policy",
    "audit --exchange plain --quick --repeats 2": "--quick is one seed and no policy",
    f"{AUDIT} job.toml --dataset digits": SAID,
    f"{AUDIT} job.toml --batch-size 64": SAID,
    f"{AUDIT} job.toml --local-steps 1": SAID,
    f"{AUDIT} --batch-size 100000": "batch_size",
    f"{AUDIT} --learning-rate -1": "learning_rate",
    f"{AUDIT} --learning-rate fast": "--learning-rate = 'fast'",
    f"{AUDIT} --local-steps 0": "--local-steps = '0'",
    f"{AUDIT} --local-steps exact --learning-rate 0.1": "has no step size",
    # What a job says cannot be said again.
    "bench tradeoff job.toml --dataset=digits": f"--dataset digits: {SAID}",
    "bench tradeoff job.toml --label-party=shop": f"--label-party shop: {SAID}",
    "sweep noise job.toml --dataset=digits": f"--dataset digits: {SAID}",
    "sweep noise job.toml --epochs=3 --rounds=3": "give only one",
    "sweep noise job.toml --clip=0": "clip",
    # Options that have no meaning.
    f"{TAKES} --listen 127.0.0.1:0": "--listen needs --processes",
    f"{TAKES} --restarts 1": "--restarts needs --processes",
    f"{TAKES} --silence 5": "--silence needs --processes",
    f"{TAKES} --processes --listen here": "'here': expected HOST:PORT",
    f"{TAKES} --processes --listen 127.0.0.1:65535": "have port 65536, at most 65535",
    f"{TAKES} --processes --offline": "--offline makes pads in this process",
}


def one_line(error: str) -> str:
    """The error, beside which nothing is said."""
    (line,) = error.splitlines()
    assert line.startswith("securevfl: error: ")
    return line


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_status_2(capsys: Capture, words: str) -> None:
    if "job.toml" in words:
        two_organizations()
    assert MISTAKES[words] in one_line(refused(capsys, *words.split()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("# local_steps", "local_step"), "nearest known key is 'local_steps'"),
        (("rounds = 100", "rounds = 0"), "job.rounds = 0"),
        (('"bfv"', '"bvf"'), "nearest is 'bfv'"),
        (("# batch_size = 128", "batch_size = 32"), "label guard"),
        (('preset = "wan"', "latency_ms = 5"), "both latency_ms and bandwidth_mbit"),
        (("[exchange]", "[exchange"), "not TOML"),
        (("seed = 0", "learning_rate = 1e200\nloss = 'squared'"), "diverged"),
        (('directory = "models"', 'directory = "/proc/nowhere"'), "/proc/nowhere"),
    ],
)
def test_a_mistake_in_a_job_file_names_the_key(
    capsys: Capture, change: tuple[str, str], message: str
) -> None:
    assert message in one_line(refused(capsys, "train", example(change), "--quiet"))


def test_a_job_beyond_its_budget_is_one_line(capsys: Capture) -> None:
    budget = "[privacy]\nnoise_multiplier = 1.0\nrelease_budget = 2.0\n\n[audit]"
    job = example(('scheme = "bfv"', 'scheme = "dp"'), ("[audit]", budget))
    assert "the budget is 2" in one_line(refused(capsys, "train", job))
    assert not Path("models").exists()


def test_real_targets_are_refused_by_what_needs_an_auc(capsys: Capture) -> None:
    job = two_organizations({"rounds": 3, "loss": "squared"})
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    real = [f"{line}.{place}" for place, line in enumerate(lines[1:])]
    Path("bank.csv").write_text("\n".join([lines[0], *real]), encoding="utf-8")
    for command in ("bench tradeoff", "sweep noise"):
        error = one_line(refused(capsys, *command.split(), job))
        assert "job.toml: targets are real" in error


@pytest.mark.parametrize("words", ["", "party"])
def test_a_command_without_its_subcommand_shows_help(capsys: Capture, words: str) -> None:
    shown = refused(capsys, *words.split()).splitlines()
    assert shown[0].startswith("Usage: securevfl")
    assert "Commands:" in shown
