"""Bins from job file to scores: what is a curve in a column is learned, and new rows follow it."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.scoring.joint_model import load_models
from tests.end_to_end.commands import example, refused, rows_of, run, write_job
from tests.jobs import Settings

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")


def write_curves(scheme: str, **sections: Settings) -> None:
    """The label is 1 where both columns are near 0, which no line tells; some are missing."""
    generator = np.random.default_rng(0)
    x, z = generator.uniform(-1, 1, (2, 900))
    label = (np.abs(x) + np.abs(z) < 0.8).astype(int)
    gaps = [None if number % 20 == 0 else value for number, value in enumerate(z)]
    ids = np.arange(900)
    pl.DataFrame({"id": ids, "x": x, "default": label}).write_csv("bank.csv")
    pl.DataFrame({"id": ids, "z": gaps}).write_csv("shop.csv")
    job: Settings = {"rounds": 20, "allow_feature_leak": True}
    write_job(job, "id", exchange={"scheme": scheme}, **sections)


@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_curves_are_learned_and_new_rows_scored_alike(scheme: str) -> None:
    write_curves(scheme, preprocess={})
    assert run("train", "job.toml", "--quiet", "--json", "out.json") == 3
    Path("models").rename("lines")
    write_curves(scheme, preprocess={"bins": 8})
    assert run("train", "job.toml", "--quiet", "--json", "out.json") == 0
    (row,) = rows_of("out.json", "train")
    assert row["auc"] > 0.9
    assert run("predict", "job.toml", "--out", "scores.csv", "--quiet") == 0
    scores = pl.read_csv("scores.csv").sort("id")
    rows = {name: pl.read_csv(f"{name}.csv") for name in ("bank", "shop")}
    model = load_models("models")
    column = next(name for name in scores.columns if name.startswith("probability"))
    expected = model.predict_proba(rows)[:, 1]
    np.testing.assert_allclose(scores[column].to_numpy(), expected, atol=1e-9)
    far = pl.DataFrame({"z": [-50.0, 50.0, None]})
    end = pl.DataFrame({"x": [0.0, 0.0, 0.0]})
    assert np.isfinite(model.predict_proba({"bank": end, "shop": far})).all()


def test_processes_bin_as_one_process_does() -> None:
    write_curves("plain", **{"preprocess.bins": {"z": [-0.5, 0, 0.5]}})
    assert run("train", "job.toml", "--quiet") == 0
    one = load_models("models").coef_
    assert run("train", "job.toml", "--quiet", "--force", "--processes") == 0
    for party, found in load_models("models").coef_.items():
        assert found.shape == one[party].shape == (1, {"bank": 1, "shop": 5}[party])


def test_where_a_guard_refuses_so_many_columns_it_says_how_many_bins_pass(capsys: Capture) -> None:
    write_curves("blind", preprocess={"bins": 60})
    error = refused(capsys, "train", "job.toml", "--quiet")
    (most, bins), *_ = re.findall(r"at most (\d+) of peers pass, as with bins = (\d+)", error)
    assert int(bins) == int(most) - 1  # the number itself, and whether it is missing
    write_curves("blind", preprocess={"bins": int(bins) + 1})
    assert f"at most {most} of peers" in refused(capsys, "train", "job.toml", "--quiet")
    write_curves("blind", preprocess={"bins": int(bins)})
    assert run("train", "job.toml", "--quiet") == 0


def test_a_set_by_name_is_binned_and_its_test_rows_are_scored_alike() -> None:
    job = example(
        ('"bfv"', '"plain"'),
        ("rounds = 100", "rounds = 3"),
        ("# [preprocess]", "[preprocess]"),
        ("# bins = 8", "bins = 4"),
    )
    assert run("train", job, "--quiet", "--json", "train.json") == 0
    assert run("predict", job, "--out", "scores.csv", "--quiet", "--json", "out.json") == 0
    (trained,), (row,) = rows_of("train.json", "train"), rows_of("out.json", "predict")
    assert row["auc"] == trained["auc"]
    assert run("model", "show", "models/party1.safetensors", "--json", "shown.json") == 0
    (shown,) = rows_of("shown.json", "model show")
    assert [len(raw["edges"]) for raw in shown["recipe"]] == [3] * len(shown["recipe"])
    assert len(shown["columns"]) == 4 * len(shown["recipe"])
