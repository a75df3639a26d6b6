"""Monotone columns: the joint model under sign constraints, at every step, and its refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from securevfl.arrays import FloatArray
from securevfl.auditing.subject import scaled
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError
from securevfl.models.losses import loss_for
from securevfl.models.storage import load_model
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.session.gathering import Predictions
from securevfl.recipe import ColumnRecipe, Direction, Preprocessing, Recipe
from securevfl.training import Environment
from tests.end_to_end.commands import refused, run, two_organizations, weights
from tests.jobs import (
    Settings,
    SmallKeys,
    Starts,
    all_weights,
    breast_cancer,
    digits,
    fit,
    job_of,
    received,
    scaled_blocks,
)
from tests.made_data import dataset_of, made

pytestmark = pytest.mark.usefixtures("clean_place")
Capture = pytest.CaptureFixture[str]
WAYS: tuple[Direction | None, ...] = (None, "up", "down")
CLOSE = 1e-5
LEAKS = {"allow_label_leak": True, "allow_feature_leak": True}


def monotone(dataset: VerticalDataset, seed: int = 0) -> VerticalDataset:
    """The data set with drawn directions, some of which nobody's data would have chosen."""
    generator = np.random.default_rng(seed)

    def recipe(columns: tuple[str, ...]) -> Recipe:
        ways = generator.integers(0, 3, len(columns)).tolist()
        named = zip(columns, ways, strict=True)
        return Recipe(tuple(ColumnRecipe(n, "number", monotone=WAYS[way]) for n, way in named))

    tables = (replace(table, recipe=recipe(table.columns)) for table in dataset.parties)
    return replace(dataset, parties=tuple(tables))


def signs_of(dataset: VerticalDataset) -> FloatArray:
    """Of all weights: the label party's end with the intercept."""
    found: list[int] = []
    for table in dataset.parties:
        found += [*table.signs, *[0] * (table.name == dataset.label_party)]
    return np.array(found, np.float64)


class Joint:
    """The model of one place: its loss, and the least one that L-BFGS-B finds within bounds."""

    def __init__(self, dataset: VerticalDataset, loss: str, l2: float) -> None:
        self.signs, self.inputs = signs_of(dataset), np.hstack([*scaled_blocks(dataset).values()])
        self._penalties = np.full(len(self.signs), l2)
        intercept = len(dataset.parties[0].columns)
        self._penalties[intercept] = 0.0
        self._loss = loss_for(loss, 2, len(self.inputs))
        self._labels = dataset.train_labels

    def value(self, theta: FloatArray) -> tuple[float, FloatArray]:
        predicted, costs = self.inputs @ theta[:, None], self._penalties * theta
        slopes = self.inputs.T @ self._loss.residuals(predicted, self._labels) / len(predicted)
        value = self._loss.value(predicted, self._labels) + 0.5 * float(costs @ theta)
        return value, slopes[:, 0] + costs

    def least(self, *, bounded: bool = True) -> float:
        low, high = (0.0 if bounded else None), (0.0 if bounded else None)
        bounds = [(low if s > 0 else None, high if s < 0 else None) for s in self.signs]
        options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
        start = np.zeros(len(self.signs))
        found = minimize(self.value, start, jac=True, bounds=bounds, options=options)
        return float(found.fun)


TWO_TRIPS = {"scheme": "bfv", "round_trips": 2}
BOTH = {"scheme": "bfv", "hide": "both"}
IN_BOTH = {"loss": "taylor-logistic", "eval_every": "never", "rounds": 60, "l2": 0.1}
JOBS: list[tuple[int, Settings, Settings]] = [
    (2, {}, {}),
    (3, {}, {"algorithm": "fedbcd-s"}),
    (3, {}, {"proximal": 0.02, "loss": "squared"}),
    (3, {"scheme": "masked"}, {"acceleration": "none", "rounds": 1000}),
    (2, TWO_TRIPS, {}),
    (2, BOTH, IN_BOTH),
    (3, BOTH, IN_BOTH),
]


@pytest.mark.parametrize(("parties", "exchange", "more"), JOBS)
def test_a_job_ends_at_the_joint_optimum_under_its_signs(
    parties: int, exchange: Settings, more: Settings
) -> None:
    dataset = monotone(breast_cancer(parties))
    settings = {"rounds": 300, "eval_every": 0, "tolerance": 0.0, "l2": 0.01, **LEAKS, **more}
    result = fit(dataset, exchange, **settings)
    joint = Joint(dataset, result.plan.loss.name, result.plan.l2)
    theta = np.concatenate(
        [result.outcomes[table.name].model.weights[:, 0] for table in dataset.parties]
    )
    assert (joint.signs * theta >= 0).all()
    assert (joint.signs[theta == 0] != 0).all()
    assert (theta == 0).sum() >= 5
    least = joint.least()
    assert least - 1e-9 <= joint.value(theta)[0] <= least + CLOSE
    assert joint.least(bounded=False) < least - 100 * CLOSE


def test_steps_of_parties_with_the_same_columns_go_back_and_arrive() -> None:
    (table, *_), labels = made(3, 1).parties, as_classes(made(3, 1).train_labels)
    dataset = monotone(dataset_of([table.train] * 5, labels), 8)
    environment = Environment(keys=SmallKeys(), record_views=True)
    result = fit(dataset, None, environment, rounds=200, tolerance=0.0, l2=0.01, eval_every=0)
    decisions = received(result, "party4", Decision)
    assert sum(each.backtrack for each in decisions) >= 1
    joint = Joint(dataset, "logistic", 0.01)
    theta = all_weights(result)
    assert (joint.signs * theta >= 0).all()
    assert joint.value(theta)[0] <= joint.least() + CLOSE


@pytest.mark.parametrize("seed", range(6))
def test_every_exchange_takes_place_at_a_point_with_the_signs(seed: int) -> None:
    dataset, starts = monotone(made(4, 2), seed), Starts()
    (label, feature), signs = dataset.parties, signs_of(dataset)
    environment = Environment(keys=SmallKeys(), record_views=True, wrap_model=starts)
    result = fit(dataset, None, environment, rounds=40, tolerance=0.0, eval_every=0)
    for table, own, deviation in ((label, signs[:4], 1.0), (feature, signs[5:], 0.5)):
        start = starts[table.name][:4]
        assert (own[:, None] * start >= 0).all()
        assert np.std(table.train @ start) == pytest.approx(deviation)
    # The label party's view tells each θ of the other party, momentum and all.
    seen = [each.values for each in received(result, label.name, Predictions)]
    points, *_ = np.linalg.lstsq(feature.train, np.hstack(seen))
    assert points.shape == (4, 40)
    assert (signs[5:, None] * points >= -1e-9).all()


def test_scores_follow_the_raw_column_and_missing_values_are_free() -> None:
    generator = np.random.default_rng(2)
    income, visits = generator.standard_normal(400), generator.standard_normal(400)
    unknown = generator.random(400) < 0.3
    risk = income + visits + 3 * unknown + generator.logistic(size=400) > 1
    frames: dict[str, dict[str, Any]] = {
        "bank": {"income": np.where(unknown, np.nan, income), "default": risk.astype(int)},
        "shop": {"visits": visits, "since": [f"2020-01-{1 + n % 28:02}" for n in range(400)]},
    }
    settings = 'missing_indicator = true\nmonotone = { income = "down", since = "up" }'
    two = Path(two_organizations({"rounds": 30, "tolerance": 0.0}, "plain", preprocess={}))
    for name, columns in frames.items():
        pl.DataFrame({"id": range(400), **columns}).write_csv(f"{name}.csv")
    text = two.read_text("utf-8").replace('id_column = "customer"\n', "")
    two.write_text(text.replace("[preprocess]", f"[preprocess]\n{settings}"), "utf-8")
    assert run("train", "job.toml", "--quiet") == 0
    bank, shop = (load_model(Path(f"models/{name}.safetensors")) for name in frames)
    assert bank.header.columns == ("income", "income=(missing)")
    assert bank.header.recipe is not None
    assert bank.header.recipe.signs == (-1, 0)
    # Risk rises with income, which the model may not say, and with what is missing.
    assert bank.weights[0, 0] == 0
    assert bank.weights[1, 0] > 0.5
    assert shop.header.columns == ("visits", "since")
    assert shop.weights[0, 0] > 0.5
    assert shop.weights[1, 0] >= 0


@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_a_curve_of_bins_goes_one_way(scheme: str, capsys: Capture) -> None:
    two_organizations({"rounds": 30, "allow_feature_leak": True}, scheme)
    generator = np.random.default_rng(3)
    income = np.append(generator.standard_normal(380), np.full(20, np.nan))
    risk = np.abs(np.nan_to_num(income)) + np.isnan(income) + generator.logistic(size=400) / 4 > 0.9
    frame = pl.DataFrame({"id": range(400), "income": income, "default": risk.astype(int)})
    frame.with_columns(pl.col("income").fill_nan(None)).write_csv("bank.csv")
    text = Path("job.toml").read_text("utf-8")
    grid = pl.DataFrame({"income": [*np.linspace(-4, 4, 400)]})
    curves = {}
    for way in ("", 'monotone = { income = "down" }', 'monotone = { income = "up" }'):
        Path("job.toml").write_text(f"{text}[preprocess]\nbins = 6\n{way}\n", "utf-8")
        capsys.readouterr()
        assert run("train", "job.toml", "--quiet", "--force") == (4 if way else 0)
        alone = "alone without `monotone` has a held-out AUC"
        assert (alone in " ".join(capsys.readouterr().err.split())) == bool(way)
        bank = load_model(Path("models/bank.safetensors"))
        assert bank.header.recipe is not None
        assert len(bank.header.columns) == 7
        curves[way] = np.diff(bank.predict(bank.header.recipe.apply(grid))[:, 0])
        assert bank.weights[1, 0] != 0  # of missing values
    free, down, up = curves.values()
    assert free.min() < -0.1
    assert free.max() > 0.1
    assert down.max() <= 1e-9
    assert down.min() < -0.1
    assert up.min() >= -1e-9
    assert up.max() > 0.1


def test_a_party_has_directions_of_its_own(capsys: Capture) -> None:
    two_organizations({"rounds": 30}, "plain")
    text = Path("job.toml").read_text("utf-8")
    bank = 'name = "bank"\npreprocess = { monotone = { debt = "down" } }'
    assert 'name = "bank"' in text.replace("'", '"')
    Path("job.toml").write_text(text.replace('name = "bank"', bank), "utf-8")
    assert run("train", "job.toml", "--quiet") == 0
    assert (weights() == 0).tolist() == [[False], [True], [False], [False], [False]]
    capsys.readouterr()


EXACT = "linear models of two classes .* with local_steps = 'exact', not under 'blind'"
REFUSED: list[tuple[str, Settings, Settings]] = [
    (EXACT, {}, {"local_steps": 5}),
    (EXACT, {}, {"learning_rate": 0.1}),
    (EXACT, {}, {"algorithm": "fedsgd"}),
    (EXACT, {}, {"algorithm": "fdml"}),
    (EXACT, {}, {"algorithm": "dbcd", "l1": 0.01}),
    (EXACT, {}, {"algorithm": "ftl", "learning_rate": 0.1}),
    (EXACT, {}, {"l1": 0.01}),
    (EXACT, {}, {"model": "mlp", "hidden": [3]}),
    (EXACT, {"scheme": "blind"}, {}),
    ("two round trips a round, .*: set round_trips = 2", {**TWO_TRIPS, "round_trips": 1}, {}),
]


@pytest.mark.parametrize(("words", "exchange", "settings"), REFUSED)
def test_what_keeps_no_signs_is_refused(words: str, exchange: Settings, settings: Settings) -> None:
    with pytest.raises(ConfigError, match=f"party 'party[01]': monotone takes {words}"):
        fit(monotone(made(4, 2), 1), exchange, **{"rounds": 3, **LEAKS, **settings})


def test_the_label_partys_directions_fit_one_round_trip() -> None:
    dataset = monotone(made(4, 2))
    assert not any(dataset.parties[1].signs)
    settings = {"rounds": 40, "eval_every": 0, **LEAKS}
    one = fit(dataset, {**TWO_TRIPS, "round_trips": 1}, **settings)
    assert (signs_of(dataset) * all_weights(one) >= 0).all()
    assert (all_weights(one) == 0).any()
    np.testing.assert_allclose(all_weights(one), all_weights(fit(dataset, **settings)), atol=1e-4)


def test_noise_does_not_change_signs() -> None:
    dataset = monotone(made(4, 3), 5)
    noise = {"noise_multiplier": 2.0, "clip": 2.0}
    result = fit(dataset, "dp", rounds=10, eval_every=0, privacy=noise)
    theta = all_weights(result)
    assert (signs_of(dataset) * theta >= 0).all()
    assert (theta == 0).any()


def test_several_classes_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="monotone takes linear models of two classes or real targets"
    ):
        fit(monotone(digits()), None, rounds=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"monotone": {"incme": "down"}}, "no column 'incme' to train on; did you mean 'income'?"),
        ({"monotone": {"zzz": "up"}}, "'bank' has income, debt; 'shop' has visits, spent"),
        (
            {"monotone": {"income": "sideways"}},
            "monotone.income = 'sideways': Input should be 'up'",
        ),
        (
            {"monotone": {"income": "up"}, "categories": ["income"], "rare_count": 1},
            "monotone takes numbers and dates, and column 'income' is a category",
        ),
    ],
)
def test_wrong_columns_and_directions_are_named(
    settings: Settings, words: str, capsys: Capture
) -> None:
    text = Path(two_organizations({"rounds": 3}, "plain")).read_text("utf-8")
    for name in ("bank", "shop"):  # few values each, so that categories are possible
        frame = pl.read_csv(f"{name}.csv")
        frame.with_columns(pl.selectors.float().round(0)).write_csv(f"{name}.csv")
    lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
    Path("job.toml").write_text("\n".join([text, "[preprocess]", *lines, ""]), "utf-8")
    assert words in " ".join(refused(capsys, "train", "job.toml", "--quiet").split())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'{key} = "{each}"' for key, each in value.items()) + " }"
    return str(value).replace("'", '"')


def test_sets_by_name_have_directions_too() -> None:
    found = load("breast_cancer", preprocess=Preprocessing(monotone={"worst area": "down"}))
    assert [sum(table.signs) for table in found.parties] == [0, -1]
    with pytest.raises(
        ConfigError, match=r"no column 'worst aria' .*; did you mean 'worst area'\?"
    ):
        load("breast_cancer", preprocess=Preprocessing(monotone={"worst aria": "down"}))


def test_an_audit_whose_attacks_know_no_signs_is_refused() -> None:
    scaled(job_of(), made(4, 2))
    with pytest.raises(ConfigError, match="an audit's attacks know no `monotone` columns"):
        scaled(job_of(), monotone(made(4, 2)))
