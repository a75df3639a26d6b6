"""Organizations that score new rows with their model, each from a process and folder of its own."""

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.scoring.joint_model import load_models
from tests.end_to_end.commands import LONG, run, started
from tests.end_to_end.test_party_command import ends, one_line, running
from tests.organizations import Organizations


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "guards"))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def write_new_rows(who: Organizations, rows: int = 50) -> None:
    """New people, of whom each party knows some that others do not."""
    generator = np.random.default_rng(1)
    for name in who.names:
        ids = [*(f"n{number}" for number in range(rows)), *(f"{name}{each}" for each in range(5))]
        generator.shuffle(ids)
        label = ",default" if name == who.names[0] else ""
        lines = [f"id,{name}_a,{name}_b{label}"]
        for each in ids:
            values = [*map(repr, generator.normal(size=2).tolist())]
            values += [str(generator.integers(2))] if label else []
            lines.append(",".join([each, *values]))
        Path(f"{name}/new.csv").write_text("\n".join(lines), encoding="utf-8")


def trained(
    names: str = "bank shop", scheme: str = "plain", **settings: object
) -> tuple[Organizations, str]:
    """Organizations that have trained a model, and their agreement."""
    who = Organizations(names, scheme, "", **settings)
    job = who.agree()
    with running(who, job, *who.names[1:]) as others:
        assert run("party", "run", job, *who.own("bank"), "--quiet") == 0
        for process in others:
            ends(process)
    write_new_rows(who)
    return who, job


def command(who: Organizations, job: str, name: str) -> list[str]:
    out = ["--out", "scores.csv", "--force"] if name == "bank" else []
    return ["party", "predict", job, *who.own(name), "--rows", f"{name}/new.csv", *out]


@contextlib.contextmanager
def scoring(who: Organizations, job: str, *names: str) -> Iterator[list["subprocess.Popen[str]"]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started(*command(who, job, name))) for name in names]


def scores(path: str) -> list[tuple[str, float, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [
            (row["id"], float(row["probability"]), row["class"]) for row in csv.DictReader(file)
        ]


def require_scores_of_one_operator(who: Organizations) -> None:
    Path("together").mkdir(exist_ok=True)
    for name in who.names:
        shutil.copy(f"{name}/models/{name}.safetensors", "together")
    rows = [part for name in who.names for part in ("--rows", f"{name}={name}/new.csv")]
    job = who.together()
    arguments = ["--models", "together", "--out", "one.csv", "--force", "--quiet"]
    assert run("predict", job, *rows, *arguments) == 0
    expected = [(row, round(probability, 3), name) for row, probability, name in scores("one.csv")]
    assert scores("scores.csv") == expected


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        ("bank shop", "plain"),
        pytest.param("bank club shop", "bfv", marks=pytest.mark.slow),
    ],
)
def test_organizations_score_what_one_operator_would(
    names: str, scheme: str, capfd: pytest.CaptureFixture[str]
) -> None:
    who, job = trained(names, scheme)
    with scoring(who, job, *who.names[1:]) as others:
        assert run(*command(who, job, "bank")) == 0
        for name, process in zip(who.names[1:], others, strict=True):
            said = ends(process)
            assert "50 of your rows were scored" in said
            assert f"rows that not every party has are not scored: 5 of {name}" in said
    bank = capfd.readouterr()
    assert "50 rows scored: scores.csv; AUC 0." in bank.out
    assert "rows that not every party has are not scored: 5 of bank" in bank.err
    require_scores_of_one_operator(who)
    assert not list(Path("shop").glob("*scores*"))
    who.write_own_file("shop", scores_per_day=49)
    with scoring(who, job, *who.names[1:]) as others:
        assert "shop ended the job (FeatureLeakRefused)" in one_line(
            capfd, *command(who, job, "bank"), "--quiet"
        )
        assert "at most 49 a day (policy.scores_per_day)" in ends(others[-1], 2)


def test_each_party_explains_its_own_columns_and_the_sum_is_the_score(
    capfd: pytest.CaptureFixture[str],
) -> None:
    who, job = trained()
    asked = {name: [*command(who, job, name), "--explain", f"{name}/why.csv"] for name in who.names}
    with started(*asked["shop"]) as shop:
        assert run(*asked["bank"]) == 0
        assert "shop: contributions of its own columns: shop/why.csv" in ends(shop)
    said = capfd.readouterr()
    assert re.search(r"bank\.bank_a +\d\.\d+ +\d\.\d+ to \d\.\d+", said.err)
    why = {name: pl.read_csv(f"{name}/why.csv").sort("id") for name in who.names}
    assert why["bank"].columns == ["id", "(base)", "bank.bank_a", "bank.bank_b"]
    assert why["shop"].columns == ["id", "shop.shop_a", "shop.shop_b"]
    assert why["bank"]["id"].equals(why["shop"]["id"])
    total = sum(each.drop("id").to_numpy().sum(axis=1) for each in why.values())
    Path("together").mkdir()
    for name in who.names:
        shutil.copy(f"{name}/models/{name}.safetensors", "together")
    rows = {name: pl.read_csv(f"{name}/new.csv") for name in who.names}
    both = {
        name: each.filter(pl.col("id").is_in(why["bank"]["id"])).sort("id")
        for name, each in rows.items()
    }
    np.testing.assert_allclose(total, load_models("together").decision_function(both), atol=1e-9)
    assert "shop/why.csv exists" in one_line(capfd, *asked["shop"])


def test_a_network_is_not_explained_and_no_peer_is_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    who, job = trained(model="mlp")
    asked = [*command(who, job, "bank"), "--explain", "why.csv"]
    assert "the part of 'bank' is a network (mlp)" in one_line(capfd, *asked)
    assert not Path("scores.csv").exists()


def test_a_party_that_dies_is_waited_for_and_scores_when_it_is_back() -> None:
    who, job = trained()
    write_new_rows(who, 2000)
    for _ in range(20):
        with scoring(who, job, "bank", "shop") as (bank, shop):
            assert shop.stderr is not None
            assert bank.stderr is not None
            while "aligning" not in shop.stderr.readline():
                assert shop.poll() is None
            os.kill(shop.pid, signal.SIGKILL)
            assert shop.wait(LONG) == -signal.SIGKILL
            if not any("connects again" in line for line in bank.stderr):
                continue  # it came too late
            with scoring(who, job, "shop") as (again,):
                assert "2000 of your rows were scored" in ends(again)
                assert "2000 rows scored" in ends(bank)
                break
    require_scores_of_one_operator(who)


def test_likely_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    who = Organizations()
    job = who.agree()
    write_new_rows(who)
    bank, shop = ([*command(who, job, name)] for name in who.names)
    assert "no model file bank/models/bank.safetensors" in one_line(capsys, *bank)
    assert "no rows to score" in one_line(capsys, *shop[:5])
    assert "--out is missing" in one_line(capsys, *bank[:7])
    assert "--out: only bank" in one_line(capsys, *shop, "--out", "scores.csv")
    Path("scores.csv").touch()
    assert "exists" in one_line(capsys, *bank[:-1])
    who.write_own_file("shop", exchanges=["bfv"])
    assert "your policy refuses this job" in one_line(capsys, *shop)
