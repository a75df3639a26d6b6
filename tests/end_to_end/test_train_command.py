"""`securevfl train`: what it says first, what it overwrites, and how it goes on."""

import hashlib
import json
import re
import shutil
import signal
import stat
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from securevfl import training
from securevfl.crypto import native_products
from securevfl.job import Job
from securevfl.models.storage import load_model
from securevfl.parties import link_costs
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.checkpoints import Checkpoints, last_session
from securevfl.reports.training import Forecast
from securevfl.runtime.line import LinkCosts
from tests.end_to_end.commands import (
    example,
    killed_after,
    refused,
    rows_from,
    rows_of,
    run,
    started,
    two_organizations,
    wait_until,
    weights,
)
from tests.jobs import Settings

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

EVERY = 3
EVERY_THREE = {"checkpoint_every": EVERY}
NOISE = {"noise_multiplier": 1.0}
PARTIES = ("bank", "shop")


def job(scheme: str = "plain", output: Settings | None = None, /, **settings: object) -> str:
    """The path of a job on two tiny files, with a checkpoint every three rounds."""
    given = {"rounds": 12, "tolerance": 0.0, "allow_feature_leak": True, **settings}
    return two_organizations(given, scheme, output={"checkpoint_every": EVERY, **(output or {})})


def said(error: str) -> int:
    """Lines of standard error beside those on what the files are like."""
    return sum(not line.startswith("party '") for line in error.splitlines())


def test_a_manifest_beside_the_models_says_what_a_run_was_made_of() -> None:
    path = job(rounds=3)
    (row,) = rows_from("train", path)
    text = Path("models/manifest.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert found["job_hash"] == row["job_hash"]
    for kind, files in (
        ("data", {f"{name} data": f"{name}.csv" for name in PARTIES}),
        ("models", {f"{name}.safetensors": f"models/{name}.safetensors" for name in PARTIES}),
    ):
        digests = {n: hashlib.sha256(Path(f).read_bytes()).hexdigest() for n, f in files.items()}
        assert found[kind] == digests
    assert found["started"] <= found["ended"]
    assert found["machine"]["processor"]
    assert found["version"]
    assert str(Path.cwd()) not in text
    with Path("shop.csv").open("a", encoding="utf-8") as file:
        file.write("\n9999,0.5,0.5")
    assert run("train", path, "--force", "--quiet") == 0
    other = json.loads(Path("models/manifest.json").read_text(encoding="utf-8"))["data"]
    assert [name for name in other if other[name] != found["data"][name]] == ["shop data"]


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("plain", {}),
        ("plain", {"batch_size": 64, "local_steps": 3, "learning_rate": 0.1}),
        ("bfv", {}),
    ],
)
def test_a_killed_job_goes_on_to_the_same_parameters(
    capsys: Capture, scheme: str, settings: dict[str, object]
) -> None:
    path = job(scheme, **settings)
    assert run("train", path, "--quiet") == 0
    whole = weights()
    killed_after(8, "train", path, "--force")
    assert next(iter(last_session(Path("models"), PARTIES).values())).rounds == 6
    capsys.readouterr()
    (row,) = rows_from("train", path, "--resume")
    printed = capsys.readouterr()
    assert "resumes after 6 rounds" in printed.err
    assert "times and bytes cover the rounds after 6" in printed.out
    np.testing.assert_array_equal(weights(), whole)
    assert (row["rounds"], row["rounds_before"]) == (12, 6)
    assert sorted(path.name for path in Path("models").iterdir()) == [
        "bank.safetensors",
        "manifest.json",
        "shop.safetensors",
    ]


def test_a_job_killed_before_its_first_checkpoint_starts_again_uncounted() -> None:
    """What guards wrote down then would refuse another start, but not the same one."""
    path = job("bfv", label_guard="visits")
    killed_after(2, "train", path)
    assert run("train", path, "--force", "--quiet", "--seed", "5") == 2
    assert run("train", path, "--resume", "--quiet") == 0
    assert run("train", path, "--force", "--quiet") == 0


def test_states_are_for_their_owner_alone_and_hold_the_last_two(tmp_path: Path) -> None:
    killed_after(8, "train", job())
    for name in PARTIES:
        checkpoints = Checkpoints(tmp_path / "models", name)
        assert set(checkpoints.load()) == {3, 6}
        for path in (checkpoints.newest, checkpoints.before):
            assert stat.S_IMODE(path.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR


def test_an_unfinished_job_scores_nothing(capsys: Capture) -> None:
    path = job()
    killed_after(8, "train", path)
    message = refused(capsys, "predict", path, "--out", "scores.csv")
    assert "training is unfinished, and `securevfl train JOB.toml --resume` continues" in message
    assert run("train", path, "--resume", "--quiet") == 0
    assert run("predict", path, "--out", "scores.csv", "--quiet") == 0


def test_an_unfinished_session_is_told_and_not_overwritten(capsys: Capture) -> None:
    path = job()
    killed_after(8, "train", path)
    before = {each: each.read_bytes() for each in Path("models").iterdir()}
    for arguments, message in (
        ((), "holds a checkpoint of this job after 6 rounds: --resume continues"),
        (("--seed", "5"), "holds a checkpoint of another job after 6 rounds"),
        (("--seed", "5", "--resume"), "belongs to job"),
        (("--resume", "--force"), "give only one"),
    ):
        assert message in refused(capsys, "train", path, *arguments)
    assert {each: each.read_bytes() for each in Path("models").iterdir()} == before


def test_a_session_that_is_damaged_or_has_other_data_does_not_go_on(capsys: Capture) -> None:
    path = job()
    killed_after(8, "train", path)
    shop = Path("shop.csv").read_text(encoding="utf-8")
    Path("shop.csv").write_text(re.sub(r"(?m)^3,(-?)", r"3,\g<1>9", shop), encoding="utf-8")
    told = "party 'shop': its data differ from those of the session"
    assert told in refused(capsys, "train", path, "--resume")
    Path("models/bank.state").write_bytes(b"half of it")
    assert "is damaged; --force starts again" in refused(capsys, "train", path, "--resume")
    assert run("train", path, "--force", "--quiet") == 0


def test_a_finished_job_says_so_and_keeps_its_models(capsys: Capture) -> None:
    path = job()
    assert "no checkpoint of this job" in refused(capsys, "train", path, "--resume")
    assert run("train", path, "--quiet") == 0
    whole = weights()
    for arguments, message in (
        ((), "models/bank.safetensors, models/shop.safetensors would be overwritten"),
        (("--seed", "5"), "or --force to replace"),
        (("--resume",), "this job has finished, after 12 rounds"),
    ):
        error = refused(capsys, "train", path, *arguments)
        assert said(error) == 1  # before a word about the job
        assert message in error
    np.testing.assert_array_equal(weights(), whole)
    assert run("train", path, "--force", "--seed", "5", "--quiet") == 0
    assert np.abs(weights() - whole).max() > 1e-9


@pytest.mark.parametrize(
    ("scheme", "settings", "why"),
    [
        ("dp", {}, "would release again"),
        ("plain", {"algorithm": "fdml"}, "keeps no state"),
        ("plain", {"algorithm": "dbcd", "l1": 0.01}, "keeps no state"),
    ],
)
def test_what_cannot_go_on_says_so_first_and_when_it_is_asked(
    capsys: Capture, scheme: str, settings: Settings, why: str
) -> None:
    path = job(**settings)
    if scheme == "dp":
        path = two_organizations({"rounds": 12}, "dp", output=EVERY_THREE, privacy=NOISE)
    killed_after(4, "train", path)
    told = " ".join(capsys.readouterr().err.split())
    assert "cannot be resumed after an interrupt" in told
    assert why in told
    assert not list(Path("models").glob("*.state*"))
    assert why in refused(capsys, "train", path, "--resume")


def test_a_run_that_diverges_leaves_no_session_that_would_again(capsys: Capture) -> None:
    path = job(loss="squared", learning_rate=1e200)
    assert "diverged" in refused(capsys, "train", path, "--quiet")
    assert not list(Path("models").glob("*"))


@pytest.mark.parametrize("option", ["--json", "models"])
@pytest.mark.parametrize("place", ["taken/out", "/proc/nowhere/out"])
def test_a_place_that_cannot_be_written_is_found_before_training(
    capsys: Capture, option: str, place: str
) -> None:
    Path("taken").write_bytes(b"")
    models = option == "models"
    path = job("plain", {"directory": place} if models else None)
    error = refused(capsys, "train", path, *(() if models else (option, place)))
    assert "cannot be written to" in error
    assert said(error) == 1
    assert not Path("models").exists()


def test_a_disk_without_room_is_found_before_training(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    error = refused(capsys, "train", job())
    assert re.search(r"models: 0\.\d+ MB will be written and 0\.02 MB are free", error)
    assert said(error) == 1
    assert not Path("models").exists()


def test_it_says_first_what_it_will_do_and_who_learns_what(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_products, "why_not", lambda: "no C compiler")
    (row,) = rows_from("train", job("bfv"), "--html", "page.html")
    assert (row["auc"] > 0.97, row["dropped_rows"]) == (True, {"bank": 20, "shop": 0})
    printed = capsys.readouterr()
    page = Path("page.html").read_text(encoding="utf-8")
    for text in (
        "bank alone",
        "Training loss by rounds",
        "to do first: hide = ",
        "train job.toml --html page.html --json out.json",
    ):
        assert text in page
    assert "bank alone" in printed.out
    message = printed.err
    assert "rows left out because not every party has them: bank 20 of 400" in printed.out
    assert max(map(len, message.splitlines())) <= 80
    words = " ".join(message.split())
    for piece in (
        "bank (labels) 2 400 380 20",
        "shop 2 380 380 0",
        r"\d+ rows to train on, \d+ held out; classes '0' \d\d\.\d%, '1' \d\d\.\d%",
        "fedbcd-p under bfv: at most 12 rounds of all rows, exact local steps in each",
        "bank learns: every H_k",
        "shop learns: only its own gradient",
        "H_k is party k's part of the prediction",
        "to do first: hide = 'both' with loss = 'taylor-logistic' shows nobody a number per person",
        "products are SEAL's, and slower than native ones: no C compiler",
        "a checkpoint every 3 rounds in models, from which --resume continues",
        r"set-up took [\d.]+ m?s, a round takes [\d.]+ m?s: at most 12 rounds take about",
    ):
        assert re.search(piece if "\\" in piece else re.escape(piece), words), piece


def test_a_quiet_run_says_only_what_it_left_out(capsys: Capture) -> None:
    assert run("train", job(), "--quiet") == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "securevfl: rows left out because not every party has them: bank 20 of 400\n"
    )


@pytest.mark.parametrize(
    ("scheme", "sections", "why"),
    [
        ("plain", {"output": {"checkpoint_every": 0}}, "no checkpoint had been written"),
        ("dp", {"privacy": NOISE}, "would release again"),
    ],
)
def test_an_interrupt_that_nothing_goes_on_from_says_why(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    sections: dict[str, Settings],
    why: str,
) -> None:
    path = two_organizations({"rounds": 12}, scheme, **sections)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Forecast, "after", interrupt)
    assert run("train", path, "--quiet") == 130
    message, last = capsys.readouterr().err.splitlines()[-2:]
    assert message.startswith("securevfl: cannot be resumed: ")
    assert why in message
    assert last == "securevfl: interrupted"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_can_go_on(how: signal.Signals) -> None:
    path = job(rounds=1_000_000)
    with started("train", path, "--seed", "1") as process:
        wait_until(process, Path("models/shop.state.before").exists)
        process.send_signal(how)
        _, error = process.communicate()
    rounds = last_session(Path("models"), PARTIES)["bank"].rounds
    assert rounds % EVERY == 0
    if how == signal.SIGINT:
        assert process.returncode == 130
        *_, message, last = error.splitlines()
        assert message == (
            f"securevfl: stopped after {rounds} rounds; continue with: "
            "securevfl train job.toml --seed 1 --resume"
        )
        assert last == "securevfl: interrupted"
    assert not list(Path("models").glob("*.safetensors")), "half a model is none"
    killed_after(2, "train", path, "--seed", "1", "--resume")


def test_blind_says_what_its_end_tells_and_how_likely_it_fails(capsys: Capture) -> None:
    assert run("train", job("blind")) in {0, 4}
    printed = capsys.readouterr()
    words = " ".join(printed.err.split())
    assert "fedbcd-p under blind: 12 rounds of all rows" in words
    assert "tells feature parties 2 numbers of labels, which count as 40 bits" in words
    assert "read off" not in words
    said_after = re.search(r"the result with it, with probability (\S+)", printed.out)
    assert said_after is not None
    assert 0 < float(said_after[1]) < 2.0**-6
    assert max(map(len, (printed.out + printed.err).splitlines())) <= 80


def test_blind_warns_of_an_end_that_few_rows_make(capsys: Capture) -> None:
    few = job("blind", rounds=1, batch_size=10, allow_label_leak=True)
    assert run("train", few) in {0, 3, 4}
    printed = " ".join(capsys.readouterr().err.split())
    assert re.search(r"of 1\d rows have .* so they can be read off it", printed)


def test_the_example_job_runs_as_it_is_and_its_models_load_again(capsys: Capture) -> None:
    (row,) = rows_from("train", example())
    assert row["reached_target"]
    assert row["key_fingerprints"].keys() == {"party1"}
    assert "models/party2.safetensors" in capsys.readouterr().out
    model = load_model(Path("models/party2.safetensors"))
    assert model.header.job_hash == row["job_hash"]
    assert len(model.header.columns) == len(model.mean) == 15


def test_a_seed_on_the_command_line_replaces_the_jobs() -> None:
    # A scoring of each would be one more than the held-out guard allows.
    path = example(("rounds = 100", 'rounds = 2\neval_every = "never"'))
    first, second = (
        rows_from("train", path, "--seed", seed, "--force", "--quiet")[0] for seed in ("1", "2")
    )
    assert first["job_hash"] != second["job_hash"]


def test_labels_that_follow_from_nothing_end_with_a_status_of_their_own(capsys: Capture) -> None:
    path = two_organizations()
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    labels = np.random.default_rng(2).permutation([line[-1] for line in lines[1:]])
    mixed = [line[:-1] + label for line, label in zip(lines[1:], labels, strict=True)]
    Path("bank.csv").write_text("\n".join([lines[0], *mixed]), encoding="utf-8")
    # It fits its own rows better than a constant does, and has a held-out AUC of 0.56.
    (row,) = rows_from("train", path, "--quiet", status=3)
    assert "warning: the model is not distinguishable from chance" in capsys.readouterr().err
    assert not row["learned"]
    assert row["auc"] > 0.52
    assert {each.stem for each in Path("models").glob("*.safetensors")} == {"bank", "shop"}


def test_a_job_with_noise_says_what_it_promises(capsys: Capture) -> None:
    path = example(
        ('scheme = "bfv"', 'scheme = "dp"'),
        ("[audit]", "[privacy]\nnoise_multiplier = 1.0\ngradient_clip = 1.0\n"
         "gradient_noise_multiplier = 4.0\nlabel_noise_multiplier = 2.0\n\n[audit]"),
        ("# target_auc = 0.99", "learning_rate = 0.3\neval_every = 0\nstandardize = false"),
    )  # fmt: skip
    # Noise is fresh in every run, and decides whether a party alone is better (status 4) or the
    # loss has risen by the end (5), or is no lower than that of a constant (3).
    assert run("train", path, "--json", "out.json") in (0, 3, 4, 5)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    held_out = "held-out rows: releases = 1"
    for words in ("epsilon of releases", "end to end", held_out, "labels: z = 2", "fresh"):
        assert words in shown
    promise = rows_of("out.json", "train")[0]["privacy"]
    assert promise["epsilon_end_to_end"] > promise["epsilon_release"] > 0
    assert promise["epsilon_label"] > 0


def test_fdml_is_a_job_like_others(capsys: Capture) -> None:
    path = example(
        ('algorithm = "fedbcd-p"', 'algorithm = "fdml"'),
        ('scheme = "bfv"', 'scheme = "plain"'),
        ("target_auc = 0.99", ""),
    )
    (row,) = rows_from("train", path)
    assert row["algorithm"] == "fdml"
    assert row["auc"] > 0.97
    assert 0 < row["brier"] < 0.1
    assert 0 < row["log_loss"] < 0.2
    assert 0 < row["calibration_error"] < 0.1
    assert sum(each["rows"] for each in row["reliability"]) == 113
    assert row["r2"] is None
    assert "models:" in capsys.readouterr().out


def test_data_list_and_where_say_what_is_here(capsys: Capture) -> None:
    assert run("data", "list") == 0
    assert "breast_cancer" in capsys.readouterr().out
    (row,) = rows_from("data where", "a9a")
    assert "securevfl data get a9a" in capsys.readouterr().out
    assert row["present"] is False


def test_a_forecast_says_what_each_party_will_cost_and_leaves_nothing_behind(
    capsys: Capture,
) -> None:
    path = job("bfv", learning_rate=0.1, local_steps=2, rounds=6)
    assert run("train", path, "--forecast", "--json", "forecast.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:5]] == ["bank", "shop", "the"]
    assert "forecast of 6 rounds from a dry run of" in lines[5]
    assert not Path("models").exists()
    (expected,) = rows_of("forecast.json", "train --forecast")
    (row,) = rows_from("train", path)
    assert expected["bytes_sent"] == row["bytes_sent"]
    assert expected["exact_bytes"]


@pytest.mark.parametrize("option", ["--processes", "--resume", "--offline", "--html=page.html"])
def test_a_forecast_takes_no_options_of_a_run(capsys: Capture, option: str) -> None:
    assert "--forecast is a dry run" in refused(capsys, "train", job(), "--forecast", option)


def test_a_forecast_resolves_its_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def counted(job: Job, facts: Facts, modules: Collection[str]) -> Plan:
        jobs.append(job)
        return resolve(job, facts, modules)

    monkeypatch.setattr(training, "resolve", counted)
    assert run("train", job("blind", rounds=2), "--forecast") == 0
    assert len(jobs) == 1


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ([], 1),
        (["--quiet", "--json", "out.json"], 1),
        (["--quiet"], 0),
        (["--processes"], 0),
        (["--forecast"], 1),
        (["--forecast", "--quiet"], 0),
    ],
)
def test_links_are_measured_only_where_somebody_sees_what_they_cost(
    options: list[str], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def costs() -> LinkCosts:
        measured.append(True)
        return LinkCosts()

    monkeypatch.setattr(link_costs, "measured_link_costs", costs)
    assert run("train", job(rounds=1), *options) == 0
    assert len(measured) == times


def test_a_machine_without_loopback_trains_and_counts_lines_alone(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_costs, "measured_link_costs", lambda: None)
    (row,) = rows_from("train", job(rounds=1))
    assert row["links"] is None
    warning = "does not connect to itself over loopback: network times count lines alone"
    assert warning in capsys.readouterr().err
