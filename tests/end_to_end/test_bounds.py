"""Public bounds of columns: what they clip, what they scale, and what is promised with them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from securevfl.actors.own_data import read_facts, write_facts

from securevfl.benchmarks.in_one_place import train_in_one_place, trained_alone
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import PartySettings
from securevfl.models.storage import load_model
from securevfl.protocols.session.gathering import Predictions
from securevfl.recipe import Preprocessing
from securevfl.scoring.joint_model import JointModel
from securevfl.training import plan_for, save_models
from securevfl.verdict import alone
from tests.end_to_end.commands import run, two_organizations
from tests.jobs import breast_cancer, fit, job_of, received
from tests.sparse_data import sparse

FEW: dict[str, Any] = {"rounds": 3, "learning_rate": 0.1, "local_steps": 2, "eval_every": 0}
DP_SGD = {"noise_multiplier": 2, "gradient_clip": 1, "gradient_noise_multiplier": 4}


def bounds_of(tables: Iterable[PartyTable], times: float = 0.9) -> dict[str, list[float]]:
    """From 0 to a little less than the largest value, as nobody should choose them."""
    return {
        column: [0.0, times * float(values.max()) or 1.0]
        for table in tables
        for column, values in zip(table.columns, table.train.T, strict=True)
    }


def of(party: str, parties: int = 2) -> list[PartyTable]:
    return [table for table in breast_cancer(parties).parties if table.name == party]


def scaled(dataset: VerticalDataset, bounds: dict[str, list[float]]) -> VerticalDataset:
    """The same columns clipped and scaled beforehand; once more here, without the package's own."""
    tables = []
    for table in dataset.parties:
        low, high = np.array([bounds[column] for column in table.columns]).T
        values = [
            (np.minimum(np.maximum(rows, low), high) - (low + high) / 2)
            / (high - low)
            * np.sqrt(12)
            for rows in (table.train, table.test)
        ]
        tables.append(replace(table, train=values[0], test=values[1]))
    return replace(dataset, parties=tuple(tables), standardize=False)


@pytest.mark.parametrize("exchange", ["plain", "bfv"])
def test_a_job_trains_on_columns_clipped_and_scaled_by_their_bounds(exchange: str) -> None:
    data, start = breast_cancer(), {"start": "zero", "allow_label_leak": True}
    bounds = bounds_of(data.parties)
    found = fit(data, exchange, bounds=bounds, **start)
    expected = fit(scaled(data, bounds), exchange, **start)
    tolerance = 1e-9 if exchange == "plain" else 1e-3
    np.testing.assert_allclose(found.predictions, expected.predictions, atol=tolerance)
    for name, outcome in found.outcomes.items():
        assert outcome.model.bounds is not None, name
    kept = {name: each.score.auc for name, each in alone(found.plan, data).items()}
    theirs = alone(expected.plan, expected.data)
    assert kept == pytest.approx({name: each.score.auc for name, each in theirs.items()})


def promised(dataset: VerticalDataset | None = None, /, **settings: object) -> Any:  # noqa: ANN401
    sections = {"privacy": DP_SGD, **FEW, "batch_size": "full", **settings}
    account = plan_for(job_of("dp", **sections), dataset or breast_cancer()).account
    assert account is not None
    return account.after(3)


def test_bounds_of_all_columns_make_the_promise_end_to_end_finite() -> None:
    """Of the parties that add noise: fdml's label party does, others' does not."""
    every, feature = bounds_of(breast_cancer().parties), bounds_of(of("party2"))
    found = promised(bounds=feature)
    assert found == promised(bounds=every)
    assert found == promised(standardize=False)
    assert found.epsilon_end_to_end > found.epsilon_release
    fdml: dict[str, Any] = {"algorithm": "fdml", "local_steps": 1}
    assert promised(bounds=every, **fdml).epsilon_end_to_end is not None
    lacking = promised(bounds=feature, **fdml)
    assert lacking.epsilon_end_to_end is None
    assert "'party1' standardizes 15 of its columns" in lacking.epsilon_end_to_end_text


def test_a_column_without_bounds_leaves_it_infinite_and_is_counted() -> None:
    first, *others = bounds_of(of("party2")).items()
    lacking = promised(bounds=dict(others))
    assert lacking.epsilon_end_to_end is None
    assert "'party2' standardizes 1 of its columns" in lacking.epsilon_end_to_end_text
    assert promised(bounds=dict(others), standardize=False).epsilon_end_to_end is not None
    with pytest.raises(ConfigError, match=r"budget: infinite end to end.*1 of its columns"):
        promised(bounds=dict(others), privacy={"budget": 8.0, "gradient_clip": 1.0})
    with_budget = promised(
        bounds=dict([first, *others]), privacy={"budget": 8.0, "gradient_clip": 1.0}
    )
    assert 7.9 < with_budget.epsilon_end_to_end <= 8.0


def test_among_three_the_promise_says_at_whom_it_holds() -> None:
    data, bounds = breast_cancer(3), bounds_of(of("party2", 3))
    finite = promised(data, bounds=bounds_of(data.parties)).epsilon_end_to_end_text
    found = promised(data, bounds=bounds)
    assert found.epsilon_end_to_end is None
    assert found.epsilon_end_to_end_text.startswith("infinite: party 'party3' standardizes 10")
    assert found.epsilon_end_to_end_text.endswith(f"({finite} at 'party2')")


def test_what_is_encoded_by_its_rows_stays_without_a_promise() -> None:
    plan = plan_for(
        job_of("dp", privacy=DP_SGD, **FEW, bounds=bounds_of(of("party2"))), breast_cancer()
    )
    own = PartySettings(name="party2", role="feature", preprocess=Preprocessing())
    fitted = replace(plan, job=plan.job.model_copy(update={"party": (own,)}))
    assert plan.account is not None
    assert fitted.account is not None
    assert plan.account.after(1).epsilon_end_to_end is not None
    assert "preprocess is fitted" in fitted.account.after(1).epsilon_end_to_end_text


def with_a_huge_value(dataset: VerticalDataset, party: str) -> VerticalDataset:
    tables = {table.name: table for table in dataset.parties}
    rows = tables[party].train.copy()
    rows[0, 3] = 1e6
    tables[party] = replace(tables[party], train=rows)
    return replace(dataset, parties=tuple(tables.values()))


def first_releases(dataset: VerticalDataset, **settings: object) -> np.ndarray:
    noise = {"noise_multiplier": 0, "gradient_clip": 1, "gradient_noise_multiplier": 0}
    result = fit(dataset, "dp", privacy=noise, **{**FEW, "batch_size": "full", **settings})
    (first, *_) = received(result, dataset.label_party, Predictions, "party2")
    return np.asarray(first.values[1:])


def test_one_huge_value_moves_nobody_elses_predictions_within_bounds_and_else_it_does() -> None:
    data, bounds = breast_cancer(), bounds_of(of("party2"))
    huge = with_a_huge_value(data, "party2")
    np.testing.assert_array_equal(
        first_releases(data, bounds=bounds), first_releases(huge, bounds=bounds)
    )
    assert np.abs(first_releases(data) - first_releases(huge)).max() > 0.01


def test_new_rows_are_clipped_by_a_saved_model_too(tmp_path: Path) -> None:
    data = breast_cancer()
    result = fit(data, bounds=bounds_of(of("party2")), rounds=3)
    save_models(result, tmp_path)
    parts = {
        table.name: load_model(tmp_path / f"{table.name}.safetensors") for table in data.parties
    }
    rows = {table.name: table.test[:2].copy() for table in data.parties}
    highest = np.array([high for _, high in bounds_of(of("party2")).values()])
    rows["party2"] = np.array([highest, 1e9 * highest])
    rows["party1"][:] = rows["party1"][0]
    on_the_bound, beyond = JointModel(parts).decision_function(rows)
    assert beyond == on_the_bound
    assert parts["party1"].bounds is None
    far = {**rows, "party1": np.array([[1.0], [2.0]]) * rows["party1"]}
    assert np.diff(JointModel(parts).decision_function(far)) != 0


def test_actors_hear_how_many_columns_have_no_bounds(tmp_path: Path) -> None:
    job = job_of(
        "dp", privacy=DP_SGD, **FEW, dataset="breast_cancer", bounds=bounds_of(of("party2"))
    )
    plan = plan_for(job, breast_cancer())
    write_facts(tmp_path, plan, tmp_path)
    assert read_facts(tmp_path).unbounded == {"party1": 15, "party2": 0}


@pytest.mark.parametrize("with_processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_partys_own_output_says_what_was_clipped_and_no_result_does(
    with_processes: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,  # noqa: ANN401
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = two_organizations({"rounds": 3}, "plain", output={"checkpoint_every": 0})
    text = Path(job).read_text().replace("[job]", "[job]\nbounds = { visits = [-1, 1] }")
    Path(job).write_text(text)
    visits = [float(line.split(",")[1]) for line in Path("shop.csv").read_text().splitlines()[1:]]
    flags = ["--processes"] if with_processes else []
    assert run("train", job, "--json", "out.json", "--html", "out.html", *flags) in (0, 4)
    told = " ".join(capsys.readouterr().err.split())
    (count,) = [each for each in told.split("party ") if "bounds clip" in each]
    clipped = int(count.split("bounds clip ")[1].split()[0])
    # Of the held-out fifth nothing is said.
    assert 0.6 * sum(abs(v) > 1 for v in visits) < clipped < sum(abs(v) > 1 for v in visits)
    assert "bank" not in count
    assert "clip" not in json.dumps(json.loads(Path("out.json").read_text())["rows"])
    assert "bounds clip" not in Path("out.html").read_text()


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (
            {"mean radiu": [0, 1]},
            r"^job\.bounds\.mean radiu: no party has .*; did you mean 'mean radius'\?$",
        ),
        ({"qqqq": [0, 1]}, r"no party has column 'qqqq'$"),
        ({"a": [1, 1]}, r"job\.bounds\.a = \[1, 1\].* two finite numbers, the lower one first"),
        ({"a": [2, 1]}, "the lower one first"),
        ({"a": [0, float("inf")]}, "two finite numbers"),
        ({"a": [float("nan"), 1]}, "two finite numbers"),
        ({"a": [0, 5e-324]}, "two finite numbers"),
        ({"a": [0]}, "two finite numbers"),
        ({"a": 5}, r"job\.bounds\.a = 5"),
    ],
)
def test_bounds_that_cannot_be_are_named(bounds: Any, told: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=told):
        plan_for(job_of(bounds=bounds), breast_cancer())


def test_bounds_of_sparse_columns_are_refused() -> None:
    data = sparse(breast_cancer())
    column = data.parties[0].columns[0]
    with pytest.raises(ConfigError, match=f"job.bounds.{column}: party .* holds sparse rows"):
        plan_for(job_of(bounds={column: [0, 1]}), data)


def test_what_a_sweep_compares_with_takes_the_bounds_of_its_own_columns() -> None:
    data = breast_cancer()
    bounds = bounds_of(data.parties, 0.3)
    settings = {"rounds": 5, "learning_rate": 0.3, "batch_size": 64, "start": "zero", "l2": 0.0}
    job = job_of(**settings, algorithm="fdml", bounds=bounds)
    before = job_of(**settings, algorithm="fdml", standardize=False)
    for one_model in (False, True):
        found = train_in_one_place(job, data, one_model=one_model).auc
        assert found == train_in_one_place(before, scaled(data, bounds), one_model=one_model).auc
    assert trained_alone(job, data, "party2") == trained_alone(
        before, scaled(data, bounds), "party2"
    )
