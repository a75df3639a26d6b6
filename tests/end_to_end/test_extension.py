"""A new exchange and a new algorithm from outside the package: all that asks, finds them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.documents import what_to_choose, who_learns_what
from securevfl.auditing.judging import NotRun
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError
from securevfl.job import Job, parse_job
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.protocols.exchange import WAYS, Exchange, SendsResiduals, SendsSignals, SendsSingly
from securevfl.protocols.exchanges.plain import PlainExchange
from securevfl.protocols.vertical.fedbcd import FedBcd
from securevfl.training import train
from tests import extension
from tests.end_to_end.commands import rows_of, run
from tests.end_to_end.contract import check_contract, few_rows
from tests.jobs import all_weights, fit

Rounded8 = type(extension.ROUNDED8)

JOB = """
[job]
dataset = "breast_cancer"
algorithm = "heavy-ball"
rounds = 12
learning_rate = 0.1
batch_size = "full"

[heavy-ball]
momentum = 0.5

[exchange]
scheme = "rounded8"

[network]
preset = "lan"
"""


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    extension.install()
    yield
    extension.uninstall()


def test_the_exchange_keeps_the_contract_of_all() -> None:
    check_contract(extension.ROUNDED8, {}, few_rows)


@pytest.mark.usefixtures("clean_place")
def test_a_job_file_trains_with_both() -> None:
    Path("job.toml").write_text(JOB, encoding="utf-8")
    assert run("train", "job.toml", "--json", "out.json", "--quiet") == 0
    (row,) = rows_of("out.json", "train")
    assert (row["exchange"], row["algorithm"]) == ("rounded8", "heavy-ball")
    assert row["auc"] > 0.95


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize(
    ("algorithm", "needs", "able"),
    [
        ("fdml", "each party sends its own numbers, in clear or with noise", "'plain' or 'dp'"),
        (
            "ftl",
            "each party sends its own numbers, in clear or with noise, or its parties multiply "
            "components under homomorphic keys",
            "'plain', 'dp', 'bfv', 'paillier' or 'ckks'",
        ),
        (
            "dbcd",
            "every party solves for its direction with residuals and curvature of all rows in "
            "clear",
            "'plain', 'masked' or 'dp'",
        ),
    ],
)
def test_an_algorithm_that_needs_more_than_fedbcds_rounds_refuses_it_in_one_line(
    algorithm: str, needs: str, able: str, capsys: pytest.CaptureFixture[str]
) -> None:
    l1 = "l1 = 0.01" if algorithm == "dbcd" else ""
    Path("job.toml").write_text(
        f'[job]\ndataset = "breast_cancer"\nalgorithm = "{algorithm}"\n{l1}\n'
        '[exchange]\nscheme = "rounded8"\n',
        encoding="utf-8",
    )
    assert run("train", "job.toml", "--quiet") == 2
    *_, expected = capsys.readouterr().err.splitlines()
    assert expected == (
        f"securevfl: error: algorithm = {algorithm!r}: {needs}, which 'rounded8' does not offer: "
        f"use {able}"
    )


def test_an_algorithm_that_does_not_say_what_it_needs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extension.HEAVY_BALL, "needs", ())
    with pytest.raises(ConfigError, match="'heavy-ball' does not say what it needs"):
        train(parse_job(JOB), few_rows(2))


def test_settings_that_it_says_nothing_of_are_refused() -> None:
    for exchange in ({"hide": "both"}, {"predictions": "masked"}, {"key_bits": 3072}):
        job = Job.of(exchange={"scheme": "rounded8", **exchange})
        expected = f"exchange 'rounded8' takes no {next(iter(exchange))}"
        with pytest.raises(ConfigError, match=expected):
            train(job, few_rows(3))


def test_an_algorithm_that_changes_rounds_does_not_run_in_shares_without_its_change() -> None:
    job = parse_job(JOB.replace("rounded8", "blind"))
    with pytest.raises(ConfigError, match="algorithm = 'heavy-ball': 'blind' takes fedsgd"):
        train(job, few_rows(2))


@pytest.mark.parametrize("way", ["learns", "new_rows", "messages"])
def test_an_exchange_has_no_default_for_what_it_shows(way: str) -> None:
    own = {name: each for name, each in vars(Rounded8).items() if name != way}
    with pytest.raises(TypeError, match=f"abstract method '?{way}"):
        type("Forgetful", (Exchange,), own)()


def test_what_a_finished_exchange_has_is_not_inherited_in_silence() -> None:
    ways = {name: each for name, each in vars(Rounded8).items() if name in WAYS}
    expected = (
        "exchange Rounded inherits establish_residuals, release from PlainExchange: define each"
    )
    with pytest.raises(ConfigError, match=expected):
        type("Rounded", (PlainExchange,), ways)
    ways |= {"establish_residuals": None, "release": None}
    alike = type("Rounded", (PlainExchange,), ways)()
    assert isinstance(alike, SendsSignals)
    assert not isinstance(alike, SendsSingly | SendsResiduals)


LEARNS = extension.ROUNDED8.learns(Job())
HIDDEN = replace(LEARNS, predictions="hidden")
GRADIENTS = replace(LEARNS, residuals="hidden", gradients=True)


@pytest.mark.parametrize(
    ("changes", "algorithm", "error", "told"),
    [
        ({"learns": lambda *_: HIDDEN}, "fedbcd-p", ConfigError,
         "'other' hides held-out predictions and has no sums"),
        ({"learns": lambda *_: GRADIENTS}, "fedbcd-p", ConfigError,
         "'other' reveals gradients and names no key_owners"),
        ({"release": lambda *_: None}, "fdml", AttributeError,
         "'NoneType' object has no attribute 'units'"),
    ],
    ids=["rows that are hidden", "gradients that nobody counts", "a release that says nothing"],
)  # fmt: skip
def test_an_exchange_that_contradicts_itself_is_refused(
    changes: dict[str, object], algorithm: str, error: type[Exception], told: str
) -> None:
    own = {name: each for name, each in vars(Rounded8).items() if not name.startswith("_")}
    EXCHANGES.add(type("Other", (Exchange,), {**own, "name": "other", **changes})())
    try:
        with pytest.raises(error, match=told):
            fit(few_rows(2), "other", algorithm=algorithm, rounds=2)
    finally:
        EXCHANGES.remove("other")


def test_a_word_that_no_guard_knows_is_refused() -> None:
    word: Any = "secret"
    with pytest.raises(ConfigError, match="an exchange says predictions = 'secret', expected one"):
        replace(LEARNS, predictions=word)
    with pytest.raises(ConfigError, match="an exchange says residuals = 'secret', expected one"):
        replace(LEARNS, residuals=word)


def test_its_own_settings_reach_the_algorithm() -> None:
    weights = [
        all_weights(train(parse_job(JOB.replace("0.5", momentum)), few_rows(2)))
        for momentum in ("0.5", "0.0")
    ]
    assert np.max(np.abs(weights[0] - weights[1])) > 1e-2
    with pytest.raises(ConfigError, match=r"heavy-ball\.momentum = 1\.5"):
        parse_job(JOB.replace("0.5", "1.5"))
    with pytest.raises(ConfigError, match=r"\[heavy-ball\] is for algorithm"):
        train(parse_job(JOB.replace('algorithm = "heavy-ball"', "")), few_rows(2))


@pytest.mark.usefixtures("clean_place")
def test_it_is_audited_by_what_it_says_and_shows() -> None:
    attacks = "labels_from_residuals,gram,ckks_key"
    arguments = ("--attack", attacks, "--repeats", "1", "--workers", "1", "--json", "out.json")
    assert run("audit", "--exchange", "rounded8", *arguments, "--quiet") == 0
    verdicts = {row["attack"]: row["verdict"] for row in rows_of("out.json", "audit")}
    # Rounded products tell distances between rows less well, and still better than chance.
    assert verdicts.pop("gram") in {"leaks", "undecided"}  # an error of one seed
    assert verdicts == {"labels_from_residuals": "leaks", "ckks_key": "immune"}


LABELS, DISTANCES, SCORED = "labels_from_residuals", "gram", "held_out_features"


@pytest.mark.parametrize(
    ("says", "attack", "why"),
    [
        ({"residuals": "hidden"}, LABELS, "a round shows Residuals of party1, which 'rounded8'"),
        ({"predictions": "hidden"}, DISTANCES, "a round shows RoundedPredictions of party2"),
        ({"predictions": "summed"}, DISTANCES, "a round shows RoundedPredictions of party2"),
        ({"predictions": "hidden"}, SCORED, "a round shows RoundedPredictions of party2"),
    ],
)
def test_what_it_denies_and_shows_is_never_said_to_be_immune(
    says: dict[str, Any], attack: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = extension.ROUNDED8.learns(Job())
    expected = replace(honest, **says)
    monkeypatch.setattr(Rounded8, "learns", lambda self, job: expected)
    job = Job.of(job={"batch_size": 16}, exchange={"scheme": "rounded8"})
    for message in (None, "pads"):  # whatever it says that its predictions are
        if message is not None:
            kind = sys.modules["rounded8"].RoundedPredictions
            monkeypatch.setattr(kind, "shows", message)
        (cell,) = known_attacks()[attack](Subject(job, few_rows(2), 0))
        assert isinstance(cell.outcome, NotRun)
        assert cell.outcome.reason.startswith(why)


@pytest.mark.parametrize("attack", [DISTANCES, "anchors", SCORED])
def test_what_it_shows_under_a_wrong_name_is_not_said_to_resist(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RoundedPredictions", "RoundedHeldOut"):
        monkeypatch.setattr(getattr(sys.modules["rounded8"], name), "shows", "weights")
    job = Job.of(job={"batch_size": "full"}, exchange={"scheme": "rounded8"})
    for cell in known_attacks()[attack](Subject(job, few_rows(2), 0)):
        assert isinstance(cell.outcome, NotRun)
        assert "in the view" in cell.outcome.reason


ELSEWHERE = """
from functools import partial

from securevfl.auditing.judging import ACCURACY, Finding
from securevfl.auditing.measuring import Attack, add_attack


@add_attack
@partial(Attack, "elsewhere", "anybody", "nothing")
def elsewhere(subject):
    return Finding(ACCURACY, 0.5, chance=0.5)
"""
AUDITED = """
from securevfl import audit

def run(scheme):
    job = {"job": {"dataset": "breast_cancer"}, "exchange": {"scheme": scheme}}
    print(audit(job, attacks=["elsewhere"], repeats=2, workers=2).verdicts)
"""
IMPORTED = """
if __name__ == "__main__":  # the processes import neither of both by themselves
    import elsewhere
    import rounded8
    run("rounded8")
"""
TYPED = """
if __name__ == "__main__":
    exec(open("elsewhere.py").read(), {"__name__": "nowhere"})
    run("plain")
"""


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        pytest.param(IMPORTED, 0, "{'elsewhere': 'no_leak_found'}", marks=pytest.mark.slow),
        (TYPED, 1, "import it in a module, or audit with one worker"),
    ],
)
def test_processes_of_an_audit_import_what_is_from_elsewhere_or_refuse(
    script: str, status: int, said: str, tmp_path: Path
) -> None:
    extension.write_files("add-an-exchange.md", tmp_path)
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE, encoding="utf-8")
    (tmp_path / "audited.py").write_text(AUDITED + script, encoding="utf-8")
    shown = subprocess.run(  # this interpreter, words of this test
        [sys.executable, "audited.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert shown.returncode == status
    assert said in shown.stdout + shown.stderr


def test_it_stands_in_the_tables_of_the_documents() -> None:
    learns = [line for line in who_learns_what() if "every H_k in 8 bits" in line]
    assert len(learns) == 1
    assert any("`rounded8`" in line[0] for line in what_to_choose())


@pytest.mark.parametrize("command", [["audit"], ["bench", "tradeoff"]])
def test_help_names_it(command: list[str], tmp_path: Path) -> None:
    extension.write_files("add-an-exchange.md", tmp_path)
    shown = subprocess.run(  # noqa: S603  # this interpreter, words of this test
        [sys.executable, "with_rounded8.py", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert "rounded8" in shown.stdout


def test_names_are_taken_once() -> None:
    with pytest.raises(ConfigError, match="is known already"):
        extension.install()
    taken = FedBcd("output")
    with pytest.raises(ConfigError, match="name of a section"):
        ALGORITHMS.add(taken)
    assert Job.of(output={"checkpoint_every": 3}).output.checkpoint_every == 3
