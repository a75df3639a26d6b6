"""Every `securevfl bench` and `sweep` command, run small, and the files of a job under them."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, with_config
from typer.main import get_group

from securevfl.cli.bench import bench
from securevfl.crypto.schemes import running_engine
from securevfl.reports import benchmarks, rows
from tests.end_to_end.commands import (
    rows_from,
    rows_of,
    run,
    settings_in,
    started,
    two_organizations,
    wait_until,
)
from tests.jobs import Settings

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
SMALL: dict[str, tuple[type, int, str]] = {
    "tradeoff": (
        rows.TradeoffRow, 5,
        "--exchange plain,ckks --he-per-step false,true --local-steps 5,exact --max-rounds 2 "
        "--learning-rate 0.3 --schedule inverse-sqrt",
    ),
    "crypto": (
        benchmarks.CryptoRow, 5, "--samples 8 --features 2 --key-bits 2048 --repeats 1 --rounds 10",
    ),
}  # fmt: skip


def test_every_command_is_run_here() -> None:
    assert set(get_group(bench).commands) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_command_shows_a_table_and_writes_its_rows(name: str, capsys: Capture) -> None:
    row, count, options = SMALL[name]
    assert run("bench", name, *options.split(), "--seed", "3", "--json", "out.json") == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if not line.startswith("key of")) <= 80
    assert "…" not in shown
    found = rows_of("out.json", f"bench {name}")
    assert len(found) == count
    # The keys and types that the row says, nothing more and nothing less.
    exactly: Any = with_config(extra="forbid")(row)
    adapter: TypeAdapter[Any] = TypeAdapter(exactly)
    for each in found:
        adapter.validate_json(json.dumps(each), strict=True)
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["seed"] == 3


SWEEP = "sweep noise --dataset breast_cancer --noise 0,2 --epochs 2 --batch-size 64 --repeats 2"
OF_A_JOB = {
    "bench tradeoff": ("--exchange", "plain"),
    "sweep noise": ("--noise", "0,2", "--repeats", "1", "--workers", "1"),
}


def page() -> str:
    """What a command wrote for people."""
    return Path("out.html").read_text(encoding="utf-8")


def said(capsys: Capture) -> str:
    """What a command showed, on lines that a terminal has room for."""
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    return shown


def test_quiet_says_nothing(capsys: Capture) -> None:
    assert run("bench", "crypto", *SMALL["crypto"][2].split(), "--quiet") == 0
    assert capsys.readouterr() == ("", "")


# ----------------------------------------------------------------------------- bench tradeoff


def tradeoff(arguments: str, *more: str) -> list[dict[str, Any]]:
    return rows_from("bench tradeoff", *arguments.split(), *more)


def test_a_tradeoff_shows_what_its_rows_add_up_to(capsys: Capture) -> None:
    rows = tradeoff("--exchange plain,ckks --local-steps 1,5")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "ckks" in printed
    assert "learning rate" in printed
    named = [(row["exchange"], row["local_steps"]) for row in rows]
    assert named == [("plain", 1), ("plain", 5), ("ckks", 1), ("ckks", 5)]
    for row in rows:
        assert row["compute_s"] + row["communication_s"] == pytest.approx(row["total_s"])
        phases = {"local", "encrypt", "evaluate", "decrypt", "offline"}
        assert set(row["compute_by_phase_s"]) == phases
    assert rows[0]["ciphertext_bytes"] == 0 < rows[2]["ciphertext_bytes"]


def test_a_target_that_is_not_reached_is_a_row_and_no_error(capsys: Capture) -> None:
    rows = tradeoff("--exchange plain --target-auc 0.9999 --max-rounds 3")
    assert not any(row["reached_target"] for row in rows)
    assert "* target not reached" in capsys.readouterr().out


def test_repeats_have_seeds_of_their_own_and_rows_hold_medians() -> None:
    (row,) = tradeoff("--exchange plain --repeats 3 --local-steps 5 --seed 7 --quiet")
    assert [each["seed"] for each in row["runs"]] == [7, 8, 9]
    assert row["rounds"] == np.median([each["rounds"] for each in row["runs"]])


def test_engine_and_round_trips_go_to_the_schemes_that_have_them() -> None:
    rows = tradeoff(
        "--exchange paillier,bfv --engine fast --round-trips 2 --local-steps 5 --max-rounds 1 "
        "--learning-rate 0.3 --key-bits 2048 --batch-size 57 --quiet"
    )
    assert [(row["engine"], row["round_trips"]) for row in rows] == [
        ("fast", 2),
        (running_engine("bfv"), 2),
    ]


def test_exact_steps_stand_beside_numbers_that_keep_their_batches_and_one_step_size(
    capsys: Capture,
) -> None:
    arguments = "--exchange plain --local-steps 1,5,exact --batch-size 57 --max-rounds 20"
    one, five, exact = tradeoff(arguments, "--html", "out.html")
    assert "securevfl bench tradeoff --exchange plain --local-steps 1,5,exact" in page()
    assert page().count("<svg") == 3
    assert [row["batch_size"] for row in (one, five, exact)] == [57, 57, "full"]
    assert one["learning_rate"] == five["learning_rate"] > 0
    assert "tuned at Q = 5" in one["learning_rate_chosen"]
    assert (exact["local_steps"], exact["learning_rate"]) == ("exact", None)
    assert exact["learning_rate_chosen"] == "from each party's own curvature"
    assert exact["reached_target"]
    assert "on all rows in every round" in capsys.readouterr().out


def test_rows_that_repeat_homomorphic_work_stand_beside_those_that_do_not(capsys: Capture) -> None:
    found = tradeoff(
        "--exchange plain,bfv --local-steps 1,5 --max-rounds 2 --learning-rate 0.3 "
        "--he-per-step false,true --model mlp --hidden [2,2] --schedule inverse-sqrt "
        "--round-trips 2"
    )
    named = [(row["exchange"], row["local_steps"], row["he_per_step"]) for row in found]
    assert named == [
        ("plain", 1, False), ("plain", 5, False),
        ("bfv", 1, False), ("bfv", 1, True), ("bfv", 5, False), ("bfv", 5, True),
    ]  # fmt: skip
    assert [row["messages"] for row in found[2:]] == [8, 8, 8, 2 * 2 * 6]
    shown, told = capsys.readouterr().out, settings_in()
    assert "5 HE" in shown
    assert "for benchmarks only" in shown
    vary = told["vary"]
    assert (vary["job.model"], vary["job.hidden"]) == (["mlp"], [[2, 2]])


def test_a_step_size_may_fall_with_the_root_of_rounds() -> None:
    arguments = "--exchange plain --local-steps 1 --max-rounds 9 --target-auc 1"
    constant, falling = (
        [row["auc"] for row in tradeoff(arguments, "--learning-rate=0.02", "--schedule", schedule)]
        for schedule in ("constant", "inverse-sqrt")
    )
    assert constant > falling


def test_a_grid_varies_any_key_and_takes_one_step_algorithms_once(capsys: Capture) -> None:
    found = tradeoff(
        "--vary algorithm=fedsgd,fedbcd-p --vary exchange.scheme=plain --local-steps 5,exact "
        "--learning-rate 0.1 --proximal 0,0.1 --max-rounds 2"
    )
    named = [(row["algorithm"], row["local_steps"], row["proximal"]) for row in found]
    assert named == [
        ("fedsgd", 1, 0), ("fedsgd", 1, 0.1),
        ("fedbcd-p", 5, 0), ("fedbcd-p", 5, 0.1),
        ("fedbcd-p", "exact", 0), ("fedbcd-p", "exact", 0.1),
    ]  # fmt: skip
    shown = said(capsys)
    assert "proximal" in shown
    assert "on all rows in every round" in shown
    assert found[3]["varied"]["job.proximal"] == 0.1


def test_a_title_names_the_network_and_the_model_of_the_grid(capsys: Capture) -> None:
    tradeoff("--exchange plain --local-steps 1 --max-rounds 1 --learning-rate 0.1 --network 20:50")
    assert "linear, S = 64, 20:50, to AUC" in said(capsys)


def test_a_grid_draws_loss_and_auc_of_every_cell_and_number_of_parties() -> None:
    options = (
        "--algorithm fedsgd,fedbcd-p --local-steps 5 --vary parties=2,3 --max-rounds 5 "
        "--exchange plain --start zero --learning-rate 0.1 --repeats 2 --html out.html --quiet"
    )
    found = tradeoff(options)
    assert {row["parties"] for row in found} == {2, 3}
    for row in found:
        for each in row["runs"]:
            assert [point["rounds"] for point in each["curve"]] == [1, 2, 3, 4, 5]
            losses = [point["training_loss"] for point in each["curve"]]
            assert losses[-1] < losses[0] == pytest.approx(math.log(2))
            assert each["curve"][-1]["auc"] == each["auc"]
    assert page().count("<svg") == 6
    for text in ("training loss", "held-out AUC", "algorithm = fedbcd-p", "K = 3"):
        assert text in page()
    assert "<script" not in page()


def test_each_q_may_have_a_step_size_of_its_own() -> None:
    one, ten = tradeoff("--exchange plain --local-steps 1,10 --tuning per-q --max-rounds 20")
    assert "tuned at Q = 1 " in one["learning_rate_chosen"]
    assert "tuned at Q = 10 " in ten["learning_rate_chosen"]


# --------------------------------------------------------------------- joint, crypto


def test_crypto_measures_every_engine_in_one_process(capsys: Capture) -> None:
    rows = rows_from("bench crypto", *["--samples", "8", "--features", "2", "--repeats", "1"])
    engines = [(row["scheme"], row["engine"], row["key_bits"]) for row in rows]
    assert engines == [
        *(("paillier", engine, bits) for engine in ("fast", "phe") for bits in (2048, 3072)),
        ("ckks", "tenseal", None),
        ("bfv", running_engine("bfv"), None),
        ("none", "numpy", None),
    ]
    assert [row["exact"] for row in rows] == [row["scheme"] != "ckks" for row in rows]
    assert rows[2]["ratio_to_phe_2048"] == 1
    assert "phe" in capsys.readouterr().out


def test_crypto_measures_one_scheme_on_columns_of_zeros_and_ones() -> None:
    shape = "--samples 9000 --features 2 --scheme bfv --zero-one --repeats 1"
    bfv, seal, clear = rows_from("bench crypto", *shape.split(), "--engine", "native,seal")
    assert (bfv["engine"], seal["engine"]) == (running_engine("bfv"), "seal")
    assert (bfv["exact"], bfv["matrix_fraction_bits"]) == (True, 0)
    assert (clear["scheme"], bfv["ratio_to_phe_3072"]) == ("none", None)
    assert bfv["bytes_key"] > 100_000


# ------------------------------------------------------------------------ noise, staleness


def test_a_sweep_shows_a_table_and_writes_json_and_a_page(capsys: Capture) -> None:
    arguments = ["--model", "lr,nn", "--hidden", "4", "--workers", "1", "--html", "out.html"]
    assert run(*SWEEP.split(), *arguments, "--json", "out.json") == 0
    assert "best party alone" in said(capsys)
    rows = rows_of("out.json", "sweep noise")
    assert [(row["own_prediction"], row["model"], row["noise_multiplier"]) for row in rows] == [
        (own, model, z) for own in ("exact", "noisy") for model in ("lr", "nn") for z in (0, 2)
    ]
    # Of each model one over levels, and one over rounds for each own prediction.
    assert page().count("<svg") == 6
    assert "What is not promised" in page()
    assert "http" not in page().replace("http://www.w3.org", "")


def test_processes_give_the_same_rows_and_json_holds_no_infinity() -> None:
    for workers in ("1", "2"):
        options = ("--learning-rate", "0.3", "--quiet", "--workers", workers)
        assert run(*SWEEP.split(), *options, "--json", f"{workers}.json") == 0
    assert rows_of("1.json", "sweep noise") == rows_of("2.json", "sweep noise")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(Path("1.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_killed_sweep_goes_on_and_fresh_forgets(capsys: Capture) -> None:
    sweep = [*SWEEP.split(), "--learning-rate", "0.3", "--workers", "1"]
    arguments = [*sweep, "--repeats", "16"]
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "securevfl" / "sweeps"
    with started(*arguments) as process:
        wait_until(process, lambda: any(path.stat().st_size > 2000 for path in folder.glob("*")))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert run(*arguments, "--json", "out.json") == 0
    assert "going on: " in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    assert len(rows_of("out.json", "sweep noise")[0]["aucs"]) == 16
    (folder / "journal").touch()
    assert run(*sweep, "--fresh") == 0
    assert "going on" not in capsys.readouterr().err


# ------------------------------------------------------------------------ of a job's file


def bank_with(change: Any) -> None:  # noqa: ANN401
    """The bank's file with other lines behind the first."""
    first, *lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    Path("bank.csv").write_text("\n".join([first, *change(lines)]), encoding="utf-8")


def test_a_tradeoff_takes_a_jobs_data_settings_and_exchange(capsys: Capture) -> None:
    job = two_organizations({"rounds": 9, "l2": 0.01, "target_auc": 0.9})
    plain, ckks = tradeoff(job)
    assert [row["exchange"] for row in (plain, ckks)] == ["plain", "ckks"]
    for row in (plain, ckks):
        assert (row["dataset"], row["max_rounds"], row["target_auc"]) == ("job", 9, 0.9)
        assert (row["local_steps"], row["learning_rate"]) == ("exact", None)
        assert row["reached_target"]
    told = settings_in()
    assert told["job"]["job"]["l2"] == 0.01
    assert [party["name"] for party in told["job"]["party"]] == ["bank", "shop"]
    assert "target:" not in capsys.readouterr().out


def test_without_a_target_it_is_a_little_less_than_the_job_reaches_in_clear(
    capsys: Capture,
) -> None:
    job = two_organizations()
    two, exact = tradeoff(f"{job} --exchange plain --local-steps 2,exact")
    assert [two["local_steps"], exact["local_steps"]] == [2, "exact"]
    assert two["target_chosen"].startswith("0.005 below the job's own run in clear")
    assert two["target_chosen"] in " ".join(capsys.readouterr().out.split())
    (trained,) = rows_from("train", job, "--quiet")
    # The job of its own exchange is the one in clear, but for rounding.
    assert trained["auc"] - 0.0061 < exact["target_auc"] < trained["auc"] - 0.0039


def test_a_jobs_own_step_size_is_taken_and_not_tuned() -> None:
    steps: Settings = {"learning_rate": 0.2, "local_steps": 3, "batch_size": 40}
    job = two_organizations({"rounds": 5, "target_auc": 0.9, **steps})
    (own,) = tradeoff(f"{job} --exchange plain")
    assert (own["local_steps"], own["batch_size"]) == (3, 40)
    assert (own["learning_rate"], own["learning_rate_chosen"]) == (0.2, "given")
    (exact,) = tradeoff(f"{job} --exchange plain --local-steps=exact")
    assert (exact["local_steps"], exact["batch_size"]) == ("exact", "full")
    assert exact["learning_rate"] is None


def test_a_job_that_learns_nothing_gives_no_target(capsys: Capture) -> None:
    job, labels = two_organizations(), np.random.default_rng(5).integers(0, 2, 400)
    bank_with(lambda lines: [f"{line[:-1]}{labels[at]}" for at, line in enumerate(lines)])
    assert run("bench", "tradeoff", job, "--exchange", "plain", "--quiet") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "give --target-auc" in error
    assert run("bench", "tradeoff", job, "--exchange", "plain", "--target-auc", "0.9") == 0


def test_a_sweep_takes_the_noise_and_steps_of_a_job(capsys: Capture) -> None:
    job = two_organizations({"rounds": 4}, privacy={"clip": 3.5, "release_budget": 2.0})
    none, noisy = rows_from("sweep noise", job, *OF_A_JOB["sweep noise"], "--html", "out.html")
    assert [none["noise_multiplier"], noisy["noise_multiplier"]] == [0, 2]
    for row in (none, noisy):
        assert (row["dataset"], row["algorithm"], row["clip"]) == ("job", "fedbcd-p", 3.5)
        assert row["learning_rate"] is None
        # What each party can do alone is less than both together.
        assert 0.6 < row["auc_local_only"] < row["auc_centralized"]
    assert noisy["releases"] == 4
    assert settings_in()["jobs"]["lr"]["job"]["rounds"] == 4
    assert "step sizes from each party's own curvature" in " ".join(capsys.readouterr().out.split())
    assert "Noise sweep on job" in page()


def test_a_sweep_takes_keys_in_place_of_a_jobs() -> None:
    job = two_organizations({"rounds": 4, "batch_size": 76}, privacy={"clip": 3.5})
    words = [*OF_A_JOB["sweep noise"], "--clip", "1.5", "--model", "lr,nn", "--hidden", "4"]
    found = rows_from("sweep noise", job, *words, "--epochs", "2", "--quiet")
    assert [(row["model"], row["noise_multiplier"]) for row in found] == [
        ("lr", 0), ("lr", 2), ("nn", 0), ("nn", 2),
    ]  # fmt: skip
    assert {row["clip"] for row in found} == {1.5}
    told = settings_in()["jobs"]["nn"]
    # Two epochs of three batches each.
    assert (told["job"]["rounds"], told["job"]["hidden"], told["privacy"]["clip"]) == (6, [4], 1.5)


def test_a_grid_over_data_sets_replaces_that_of_a_job() -> None:
    Path("job.toml").write_text('[job]\ndataset = "digits"\nrounds = 2\n', encoding="utf-8")
    words = "--vary dataset=breast_cancer --vary parties=2,3 --target-auc 0.5 --quiet"
    assert {(row["dataset"], row["parties"]) for row in tradeoff(f"job.toml {words}")} == {
        ("breast_cancer", 2), ("breast_cancer", 3),
    }  # fmt: skip


@pytest.mark.parametrize("command", OF_A_JOB)
def test_a_seed_is_given_or_the_jobs(command: str) -> None:
    job = two_organizations({"rounds": 2, "seed": 7, "target_auc": 0.9})
    for typed, seed in (((), 7), (("--seed", "0"), 0)):
        rows_from(command, job, *OF_A_JOB[command], *typed, "--quiet")
        assert json.loads(Path("out.json").read_text(encoding="utf-8"))["seed"] == seed


@pytest.mark.parametrize("command", OF_A_JOB)
def test_few_rows_and_a_class_that_no_held_out_row_has(command: str) -> None:
    job = two_organizations({"rounds": 3, "target_auc": 0.6})
    # Three classes, the third of one row.
    bank_with(lambda lines: [f"{lines[0][:-1]}2", *lines[1:60]])
    assert all(row["dataset"] == "job" for row in rows_from(command, job, *OF_A_JOB[command]))


@pytest.mark.parametrize("command", ["bench tradeoff", "sweep noise"])
def test_a_first_look_is_one_run_of_fewer_rows(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    more = {"bench tradeoff": ("--exchange", "plain", "--target-auc", "0.9")}
    monkeypatch.setattr("securevfl.cli.options.QUICK_ROWS", 100)
    arguments = more.get(command, ("--workers", "1"))
    rows = rows_from(command, two_organizations(), "--quick", *arguments)
    assert settings_in()["quick"] is True
    assert {(row["dataset"], row["repeats"]) for row in rows} == {("job, 100 rows", 1)}
    assert "QUICK" in capsys.readouterr().out
