"""Every `securevfl bench` command, run small: its rows are what `reports` says they are."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, with_config
from typer.main import get_group

from securevfl.cli.bench import bench
from securevfl.reports import benchmarks, blind, defaults, horizontal, rows, transfer
from tests.end_to_end.commands import refused, rows_of, run, two_organizations

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")
SMALL: dict[str, tuple[type, int, str]] = {
    "tradeoff": (
        rows.TradeoffRow, 5,
        "--exchange plain,ckks --local-steps 5,exact --max-rounds 2 --learning-rate 0.3 "
        "--he-per-step --schedule inverse-sqrt",
    ),
    "rounds": (
        benchmarks.RoundsRow, 3,
        "--algorithm fedbcd-p --local-steps 1,5,exact --max-rounds 2 --learning-rate 0.3 "
        "--repeats 1",
    ),
    "joint": (
        benchmarks.JointRow, 4, "--exchange plain,bfv --parties 2,5 --max-rounds 3 --repeats 2",
    ),
    "defaults": (defaults.DefaultsRow, 1, "--dataset breast_cancer --repeats 1"),
    "transfer": (
        transfer.TransferRow, 4,
        "--dataset breast_cancer --exchange plain --local-steps 1,3 --proximal 0,0.1 "
        "--overlap 200 --batch-size 50 --units 4 --max-rounds 2 --learning-rate 0.3 --repeats 2",
    ),
    "overlap": (
        transfer.OverlapRow, 2,
        "--dataset breast_cancer --overlap 0.1,1 --units 4 --rounds 2 --learning-rate 0.3 "
        "--repeats 2",
    ),
    "crypto": (
        benchmarks.CryptoRow, 5, "--samples 8 --features 2 --key-bits 2048 --repeats 1 --rounds 10",
    ),
    "staleness": (
        benchmarks.StalenessRow, 2,
        "--dataset breast_cancer --staleness 0,unbounded --straggler none --rounds 20",
    ),
    "fdml": (
        benchmarks.FdmlRow, 9, "--dataset breast_cancer --epochs 1 --hidden 2 --repeats 1",
    ),
    "cost-law": (
        benchmarks.CostLawRow, 2, "--exchange bfv --local-steps 1,5 --rounds 1 --repeats 1",
    ),
    "overhead": (
        benchmarks.OverheadRow, 1, "--samples 16 --features 4 --rounds 5 --repeats 1",
    ),
    "blind": (
        blind.BlindRow, 6,
        "--parties 3 --steps 3:64 --loss logistic,taylor-logistic --rounds 2 --learning-rate 0.3 "
        "--repeats 1",
    ),
    "ahead": (
        blind.AheadRow, 4, "--steps 3:64 --rounds 1 --places 3",
    ),
    "theorem1": (benchmarks.Theorem1Row, 24, "--rounds 2 --batch-size 228"),
    "theorem2": (
        benchmarks.Theorem2Row, 6,
        "--local-steps 5 --batch-size 228 --over-limit 1 --steps 20 --repeats 1 "
        "--rate-dataset breast_cancer --rate-rows 256 --roots 4,8",
    ),
    "networks": (
        benchmarks.NetworksRow, 6,
        "--dataset breast_cancer --steps fedsgd,fedbcd-p:2,fedbcd-s:2 --model mlp "
        "--representation 4 --batch-size 64 --max-rounds 2 --learning-rate 0.1,0.3 --repeats 2 "
        "--scored-rows 60",
    ),
    "l1": (
        benchmarks.L1Row, 6,
        "--l1 0.1,0.05 --method dbcd,fedbcd-p --parties 2 --max-rounds 40 --fedbcd-rounds 5",
    ),
    "horizontal": (
        horizontal.HorizontalRow, 4,
        "--images digits --rows 60 --dirichlet 0.6 --clients 4 --taking-part 2 --blocks 2 "
        "--method fedavg,top-k,fedbcgd+,fedbcgd:qsgd --learning-rate 0.03,0.1 --tuning-rounds 1 "
        "--max-rounds 1 --repeats 1 --workers 1",
    ),
    "label-guard": (benchmarks.LabelGuardRow, 2, "--ratio 0.5 --epochs 1 --repeats 1"),
}  # fmt: skip


def test_every_command_is_run_here() -> None:
    # test_bench_scale.py makes shards and runs the other.
    assert set(get_group(bench).commands) == {*SMALL, "fdml-scale"}


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


def test_horizontal_has_a_page_with_accuracy_over_uploads_and_rounds() -> None:
    words = SMALL["horizontal"][2].replace("--learning-rate 0.03,0.1", "--learning-rate 0.1")
    assert run("bench", "horizontal", *words.split(), "--html", "out.html", "--quiet") == 0
    page = Path("out.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "models uploaded a client" in page


def test_quiet_says_nothing(capsys: Capture) -> None:
    assert run("bench", "overhead", *SMALL["overhead"][2].split(), "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_exact_steps_stand_beside_numbers_that_keep_their_batches_and_one_step_size(
    capsys: Capture,
) -> None:
    arguments = "--exchange plain --local-steps 1,5,exact --batch-size 57 --max-rounds 20"
    written = ("--json", "out.json", "--html", "out.html")
    assert run("bench", "tradeoff", *arguments.split(), *written) == 0
    page = Path("out.html").read_text(encoding="utf-8")
    assert "securevfl bench tradeoff --exchange plain --local-steps 1,5,exact" in page
    assert page.count("<svg") == 1
    one, five, exact = rows_of("out.json", "bench tradeoff")
    assert [row["batch_size"] for row in (one, five, exact)] == [57, 57, "full"]
    assert one["learning_rate"] == five["learning_rate"] > 0
    assert "tuned at Q = 5" in one["learning_rate_chosen"]
    assert (exact["local_steps"], exact["learning_rate"]) == ("exact", None)
    assert exact["learning_rate_chosen"] == "from each party's own curvature"
    assert exact["reached_target"]
    assert "all rows every round" in capsys.readouterr().out


def test_rows_that_repeat_homomorphic_work_stand_beside_those_that_do_not(
    capsys: Capture,
) -> None:
    arguments = "--exchange plain,bfv --local-steps 1,5 --max-rounds 2 --learning-rate 0.3"
    more = "--he-per-step --model mlp --hidden 2,2 --schedule inverse-sqrt --round-trips 2"
    words = [*arguments.split(), *more.split(), "--json", "out.json"]
    assert run("bench", "tradeoff", *words) == 0
    found = rows_of("out.json", "bench tradeoff")
    named = [(row["exchange"], row["local_steps"], row["he_per_step"]) for row in found]
    assert named == [
        ("plain", 1, False), ("plain", 5, False),
        ("bfv", 1, False), ("bfv", 5, False), ("bfv", 1, True), ("bfv", 5, True),
    ]  # fmt: skip
    assert [row["messages"] for row in found[2:]] == [8, 8, 8, 2 * 2 * 6]
    shown = capsys.readouterr().out
    assert "5 HE" in shown
    assert "for benchmarks only" in shown
    told = json.loads(Path("out.json").read_text(encoding="utf-8"))["settings"]
    assert (told["model"], told["hidden"], told["schedule"]) == ("mlp", [2, 2], "inverse-sqrt")
    assert "no homomorphic exchange" in refused(
        capsys, "bench", "tradeoff", "--exchange", "plain", "--he-per-step"
    )
    assert "belongs to model = 'mlp'" in refused(capsys, "bench", "tradeoff", "--hidden", "3")


def test_a_step_size_may_fall_with_the_root_of_rounds() -> None:
    def aucs(schedule: str) -> list[float]:
        arguments = "--exchange plain --local-steps 1 --max-rounds 9 --target-auc 1"
        words = (*arguments.split(), "--learning-rate", "0.02", "--schedule", schedule)
        assert run("bench", "tradeoff", *words, "--json", "out.json") == 0
        return [row["auc"] for row in rows_of("out.json", "bench tradeoff")]

    assert aucs("constant") > aucs("inverse-sqrt")


def test_rounds_has_exact_steps_of_every_algorithm_but_fedsgd(capsys: Capture) -> None:
    arguments = "--local-steps 5,exact --learning-rate 0.1 --repeats 1 --schedule inverse-sqrt"
    assert run("bench", "rounds", *arguments.split(), "--json", "out.json") == 0
    found = rows_of("out.json", "bench rounds")
    assert [(row["algorithm"], row["local_steps"]) for row in found] == [
        ("fedsgd", 1), ("fedbcd-p", 5), ("fedbcd-p", "exact"), ("fedbcd-s", 5),
        ("fedbcd-s", "exact"),
    ]  # fmt: skip
    assert "all rows every round" in capsys.readouterr().out


def test_rounds_draws_loss_and_auc_of_every_setting() -> None:
    options = "--algorithm fedsgd,fedbcd-p --local-steps 5 --parties 2,3 --max-rounds 5"
    written = ("--json", "out.json", "--html", "out.html", "--quiet")
    arguments = (*options.split(), "--learning-rate", "0.1", "--repeats", "2")
    assert run("bench", "rounds", *arguments, *written) == 0
    for row in rows_of("out.json", "bench rounds"):
        for each in row["runs"]:
            assert [point["rounds"] for point in each["curve"]] == [1, 2, 3, 4, 5]
            losses = [point["training_loss"] for point in each["curve"]]
            assert losses[-1] < losses[0] == pytest.approx(math.log(2))
            assert each["curve"][-1]["auc"] == each["auc"]
    page = Path("out.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    for text in ("training loss", "held-out AUC", "fedbcd-p, Q = 5", "K = 3"):
        assert text in page
    assert "<script" not in page


def test_joint_takes_the_files_of_a_job(capsys: Capture) -> None:
    job = two_organizations()
    assert run("bench", "joint", job, "--repeats", "2", "--json", "out.json") == 0
    (row,) = rows_of("out.json", "bench joint")
    assert (row["dataset"], row["parties"], len(row["runs"])) == ("job", 2, 2)
    assert row["dataset"] in capsys.readouterr().out
    assert "the job file says" in refused(capsys, "bench", "joint", job, "--parties", "5")
