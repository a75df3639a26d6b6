"""Regression: real targets through the exchanges, against scikit-learn and against twins."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Lasso, Ridge
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from securevfl.arrays import FloatArray
from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.models.storage import load_model
from securevfl.protocols.guards.person_record import PersonRecord
from securevfl.training import Environment
from tests import jobs
from tests.end_to_end.commands import rows_from, run, write_job

SLACK = 1e-8


fit = partial(jobs.fit, loss="squared")


def in_one_place(dataset: VerticalDataset) -> tuple[FloatArray, FloatArray]:
    rows = np.hstack([party.train for party in dataset.parties])
    held_out = np.hstack([party.test for party in dataset.parties])
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    return (rows - mean) / scale, (held_out - mean) / scale


@pytest.fixture(scope="module")
def diabetes() -> VerticalDataset:
    return load("diabetes")


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_exact_steps_end_at_scikit_learns_ridge(parties: int, intercept: bool) -> None:
    dataset = load("diabetes", parties=parties)
    inputs, held_out = in_one_place(dataset)
    l2 = 0.3
    ridge = Ridge(alpha=l2 * len(inputs), fit_intercept=intercept).fit(inputs, dataset.train_labels)
    settings = {"rounds": 250, "tolerance": 0.0, "l2": l2, "intercept": intercept, "eval_every": 0}
    result = fit(dataset, **settings)
    due = ridge.predict(held_out)
    assert result.predictions[:, 0] == pytest.approx(
        due, abs=SLACK * float(np.std(dataset.train_labels))
    )
    score = result.scores[-1]
    assert score.r2 == pytest.approx(r2_score(dataset.test_labels, due), rel=SLACK)
    assert score.rmse == pytest.approx(
        np.sqrt(mean_squared_error(dataset.test_labels, due)), rel=SLACK
    )
    assert score.mae == pytest.approx(mean_absolute_error(dataset.test_labels, due), rel=SLACK)
    assert score.class_auc is None
    with pytest.raises(ConfigError, match="no AUC"):
        _ = score.auc


def test_l1_block_descent_ends_at_scikit_learns_lasso(diabetes: VerticalDataset) -> None:
    """λ₁ is in units of the targets' deviation, which the label party alone knows."""
    inputs, held_out = in_one_place(diabetes)
    l1, deviation = 0.05, float(np.std(diabetes.train_labels))
    lasso = Lasso(alpha=l1 * deviation, tol=1e-12).fit(inputs, diabetes.train_labels)
    result = fit(diabetes, algorithm="dbcd", l1=l1, rounds=300, tolerance=1e-12)
    assert result.predictions[:, 0] == pytest.approx(lasso.predict(held_out), rel=1e-5)
    zeros = np.concatenate([each.model.weights[:, 0] for each in result.outcomes.values()]) == 0
    assert zeros.sum() == np.sum(lasso.coef_ == 0) > 0


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ("plain", {"algorithm": "fdml", "learning_rate": 0.5}),
        ("plain", {"local_rule": "exact", "learning_rate": 0.2}),
        ("plain", {"algorithm": "fedsgd"}),
        ("dp", {"batch_size": 100, "privacy": {"noise_multiplier": 0.05}}),
    ],
    ids=["fdml", "exact rule", "fedsgd", "dp"],
)
def test_other_algorithms_and_noise_learn(
    diabetes: VerticalDataset, exchange: str, settings: jobs.Settings
) -> None:
    result = fit(diabetes, exchange, rounds=60, eval_every=0, **settings)
    assert result.learned
    assert result.exact_score.r2 is not None
    assert result.exact_score.r2 > 0.4


def test_networks_learn_what_is_not_linear(generator: np.random.Generator) -> None:
    inputs = generator.standard_normal((240, 4))
    dataset = parted(inputs, np.abs(inputs[:, 0]) + np.abs(inputs[:, 2]))
    settings = {"model": "mlp", "hidden": [16], "local_steps": 5, "learning_rate": 0.5}
    result = fit(dataset, rounds=20, batch_size="full", eval_every=0, **settings)
    assert result.scores[-1].r2 is not None
    assert result.scores[-1].r2 > 0.3  # linear models have none


def parted(inputs: FloatArray, targets: FloatArray) -> VerticalDataset:
    """Half of the columns at each party, a quarter of the rows held out."""
    base, last = load("diabetes"), len(inputs) * 3 // 4
    tables = tuple(
        replace(party, columns=("a", "b"), train=part[:last], test=part[last:], people=None)
        for party, part in zip(base.parties, np.split(inputs, 2, axis=1), strict=True)
    )
    digests, labels = np.arange(last, dtype=np.uint64), targets[:last]
    made = replace(base, parties=tables, train_labels=labels, row_digests=digests)
    return replace(made, test_labels=targets[last:])


def test_what_says_nothing_of_targets_has_learned_nothing(generator: np.random.Generator) -> None:
    inputs = generator.standard_normal((300, 4))
    result = fit(parted(inputs, generator.standard_normal(300)))
    assert not result.learned


@pytest.mark.parametrize("hide", ["residuals", "both"])
def test_heavy_tails_neither_overflow_nor_lose_precision(
    generator: np.random.Generator, hide: str
) -> None:
    """Log-normal targets, the largest some 20 deviations from the mean."""
    inputs = generator.standard_normal((1200, 4))
    targets = np.exp(inputs @ [0.5, 0.2, 0.5, 0.2] + 1.5 * generator.standard_normal(1200))
    dataset = parted(inputs, 1e9 * targets)
    settings = {"rounds": 12, "tolerance": 0.0, "eval_every": 0}
    protected, twin = (
        fit(dataset, each, **settings) for each in ({"scheme": "bfv", "hide": hide}, "plain")
    )
    distance = np.abs(protected.predictions - twin.predictions).max()
    assert distance <= 1e-3 * np.std(dataset.train_labels)
    assert protected.scores[-1].r2 == pytest.approx(protected.exact_score.r2, abs=1e-3)


def test_one_enormous_target_is_not_summed_with_others(generator: np.random.Generator) -> None:
    inputs = generator.standard_normal((80, 4))
    targets = generator.standard_normal(80)
    targets[-1] = 1e4
    with pytest.raises(ConfigError, match="weigh as much as 1"):
        fit(parted(inputs, targets), {"scheme": "bfv", "hide": "both"})


def written(
    folder: Path, targets: Sequence[object], values: FloatArray | None = None
) -> list[FileSource]:
    if values is None:
        values = np.random.default_rng(0).standard_normal((len(targets), 2))
    bank = ["id,income,default"]
    bank += [f"{i},{values[i, 0]},{target}" for i, target in enumerate(targets)]
    shop = ["id,visits", *(f"{i},{values[i, 1]}" for i in range(len(targets)))]
    (folder / "bank.csv").write_text("\n".join(bank), encoding="utf-8")
    (folder / "shop.csv").write_text("\n".join(shop), encoding="utf-8")
    return [
        FileSource("bank", folder / "bank.csv", "id", "default"),
        FileSource("shop", folder / "shop.csv", "id"),
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0.5 * (i % 7) for i in range(100)], "fractions among them"),
        ([i % 40 for i in range(400)], "40 different numbers among 400 rows"),
        ([i % 12 for i in range(40)], "12 different numbers among 40 rows"),
    ],
)
def test_numbers_that_are_no_classes_need_the_squared_loss(
    tmp_path: Path, targets: list[float], message: str
) -> None:
    sources = written(tmp_path, targets)
    with pytest.raises(DataError, match=rf"{message}.*loss = 'squared'"):
        load_files(sources)
    dataset = load_files(sources, regression=True)
    assert dataset.classes == 0
    assert sorted([*dataset.train_labels, *dataset.test_labels]) == sorted(targets)


@pytest.mark.parametrize(
    ("targets", "classes"),
    [
        ([i % 2 for i in range(40)], 2),
        ([2.5 * (i % 2) for i in range(40)], 2),
        (["no", "yes"] * 20, 2),
        ([f"c{i % 30}" for i in range(400)], 30),
        ([i % 10 for i in range(200)], 10),
    ],
)
def test_two_values_and_words_are_classes_under_any_loss_and_digits_under_some(
    tmp_path: Path, targets: list[object], classes: int
) -> None:
    dataset = load_files(written(tmp_path, targets), regression=classes != 10)
    assert dataset.classes == classes
    assert dataset.train_labels.dtype == np.int64


def test_a_regression_on_own_files_comes_out_in_the_targets_units(
    clean_place: None, tmp_path: Path
) -> None:
    generator = np.random.default_rng(1)
    values = generator.standard_normal((500, 2))
    targets = 2000 + 300 * values[:, 0] + 100 * values[:, 1] + 20 * generator.standard_normal(500)
    written(tmp_path, targets.tolist(), values)
    job = write_job({"loss": "squared"}, "id", exchange={"scheme": "bfv"})
    (row,) = rows_from("train", job, "--quiet")
    assert row["auc"] is None
    assert row["r2"] > 0.98
    assert 15 < row["rmse"] < 26
    models = [load_model(Path("models") / f"{name}.safetensors") for name in ("bank", "shop")]
    assert models[0].header.target_mean == pytest.approx(2000, abs=60)
    assert models[1].header.target_mean is None
    parts = {model.header.party: model.predict(np.array([[1.0], [0.0]])) for model in models}
    assert models[0].together(parts)[:, 0] == pytest.approx([2400, 2000], abs=10)
    with pytest.raises(DataError, match="use the label party's model"):
        models[1].together(parts)
    assert run("train", write_job({"loss": "logistic"}, "id"), "--quiet") == 2


def test_the_label_guard_tells_targets_apart_by_all_their_digits(
    generator: np.random.Generator, tmp_path: Path
) -> None:
    inputs = generator.standard_normal((400, 4))
    targets = inputs.sum(axis=1) + generator.standard_normal(400)
    seen, guarded = [], Environment(guard_directory=tmp_path)
    for each in (targets, targets, targets + 1e-6 * generator.standard_normal(400)):
        dataset = parted(inputs, each)
        fit(dataset, "bfv", guarded, rounds=1, eval_every="never", allow_feature_leak=True)
        record = PersonRecord.load(tmp_path / "labels.safetensors")
        seen.append(record.revealed(np.arange(len(record.people)), 1.0)[0])
    assert seen == pytest.approx([2 / 300, 2 / 300, 4 / 300])
