import pickle  # noqa: TID251  # what joblib does with estimators
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import securevfl
from securevfl import VerticalLogisticRegression, VerticalRidge
from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.protocols.resolving import BLIND_ROUNDS
from securevfl.scoring.joint_model import JointModel

Labels = NDArray[np.str_]
NAMES = ["age", "income", "visits", "spent"]


def table(classes: int = 2) -> tuple[FloatArray, Labels]:
    """Columns of different units that go with each other, and classes that overlap."""
    generator = np.random.default_rng(classes)
    X = generator.standard_normal((60, 4)) @ (np.eye(4) + 0.3)
    scores = X[:, :1] * np.arange(classes) + generator.standard_normal((60, classes))
    names = np.array(["red", "green", "blue"])
    X = X * [1.0, 1e3, 1e-2, 5.0] + [0.0, 2e4, 3.0, -1.0]
    return X, names[scores.argmax(axis=1)]


def joint(X: FloatArray, y: Labels, C: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """scikit-learn's coefficients in the units of X, intercept and probabilities."""
    scaler = StandardScaler().fit(X)
    model = LogisticRegression(C=C, tol=1e-12, max_iter=10_000).fit(scaler.transform(X), y)
    coefficients = model.coef_ / scaler.scale_
    return (
        coefficients,
        model.intercept_ - coefficients @ scaler.mean_,
        model.predict_proba(scaler.transform(X)),
    )


@pytest.mark.parametrize(("exchange", "tol", "error"), [("plain", 1e-8, 1e-3), ("bfv", 1e-5, 0.03)])
def test_coefficients_are_those_of_scikit_learn_in_the_units_of_x(
    exchange: str, tol: float, error: float
) -> None:
    X, y = table()
    coefficients, intercept, probabilities = joint(X, y, 0.3)
    model = VerticalLogisticRegression(
        [[0, 2], [1, 3]], label_party=1, exchange=exchange, C=0.3, tol=tol, random_state=0
    ).fit(X, y)
    np.testing.assert_allclose(model.coef_, coefficients, rtol=error)
    np.testing.assert_allclose(model.intercept_, intercept, rtol=error)
    np.testing.assert_allclose(model.predict_proba(X), probabilities, atol=error)
    assert model.classes_.tolist() == ["green", "red"]
    assert model.cost_.bytes_sent > 0
    assert (model.label_guard_ratio_ is None) == (exchange == "plain")


def test_three_classes_by_name_are_multinomial() -> None:
    X, y = table(3)
    _, _, probabilities = joint(X, y, 2.0)
    model = VerticalLogisticRegression(C=2.0, tol=1e-6, rounds=300, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), probabilities, atol=0.01)
    assert model.coef_.shape == (3, 4)
    assert set(model.predict(X)) <= {"red", "green", "blue"}
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize(("exchange", "hide"), [("plain", "residuals"), ("bfv", "both")])
def test_ridge_is_that_of_scikit_learn_in_the_units_of_x_and_y(exchange: str, hide: str) -> None:
    X, _ = table()
    y = 1e4 + 50 * X[:, 2] + X[:, 0] + np.random.default_rng(1).standard_normal(len(X))
    scaler = StandardScaler().fit(X)
    theirs = Ridge(alpha=3.0).fit(scaler.transform(X), y)
    model = VerticalRidge([[3, 0], [1, 2]], exchange=exchange, alpha=3.0, tol=1e-7, random_state=0)
    model.set_params(hide=hide).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_ / scaler.scale_, rtol=0.01, atol=1e-4)
    np.testing.assert_allclose(model.predict(X), theirs.predict(scaler.transform(X)), rtol=1e-4)
    assert model.score(X, y) == pytest.approx(theirs.score(scaler.transform(X), y), abs=1e-3)
    assert isinstance(model.intercept_, float)
    errors = y - model.predict(X)
    if exchange == "plain":  # where the label party sees the loss
        assert model.history_[-1]["loss"] == pytest.approx(np.mean(errors**2) / 2, rel=0.01)


def test_parties_are_column_names_of_either_data_frame_or_tables_of_their_own() -> None:
    X, y = table()
    by_number = VerticalLogisticRegression([[3, 0], [1, 2]], random_state=0).fit(X, y)
    parties = {"bank": ["spent", "age"], "shop": ["income", "visits"]}
    pandas, frame = pd.DataFrame(X, columns=NAMES), pl.DataFrame(X, schema=NAMES)
    for data in (pandas, frame):
        by_name = VerticalLogisticRegression(parties, label_party="bank", random_state=0)
        by_name.fit(data, y)
        np.testing.assert_allclose(by_name.coef_, by_number.coef_, rtol=1e-9)
        assert by_name.feature_names_in_.tolist() == NAMES
        np.testing.assert_array_equal(by_name.predict(data), by_number.predict(X))
    tables = [pandas[parties["bank"]], frame[parties["shop"]]]
    by_table = VerticalLogisticRegression(random_state=0).fit(tables, y)
    np.testing.assert_allclose(by_table.coef_, by_number.coef_[:, [3, 0, 1, 2]], rtol=1e-9)
    np.testing.assert_array_equal(by_table.predict(tables), by_number.predict(X))
    assert by_table.feature_names_in_.tolist() == ["spent", "age", "income", "visits"]
    arrays = [X[:, [3, 0]], X[:, [1, 2]]]
    assert VerticalLogisticRegression().fit(arrays, y).score(arrays, y) > 0.6


def parted(*parties: list[str | int]) -> dict[str, Any]:
    return {"parties": list(parties)}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (parted(["age", "income"], ["visits"]), "column 'spent' is held by no party"),
        (parted(["age", "income"], ["income", "visits", "spent"]), "column 'income' is held by 2"),
        (parted(["age", "incom"], ["visits"]), "no column 'incom'"),
        (parted(["age", 7], ["visits"]), "no column 7"),
        (parted(["age", "income", "visits", "spent"]), "parties: 1, expected at least 2"),
        (parted(["age", "income", "visits", "spent"], []), "'party2' has no columns"),
        ({"parties": 2}, "expected a list of column lists"),
        ({"label_party": "bank"}, "label_party: 'bank'"),
        ({"label_party": 2}, "label_party: 2"),
        ({"C": 0.0}, "C = 0.0"),
        ({"job": {"job": {"model": "mlp"}}}, "is linear"),
        ({"job": {"job": {"rounds": 3}}}, "rounds of .job. is a parameter"),
        ({"job": {"exchange": {"scheme": "bfv"}}}, "parameter exchange"),
        ({"exchange": "bvf"}, "nearest is 'bfv'"),
        ({"job": {"job": {"target_auc": 0.9}}}, "target_auc needs held-out rows"),
    ],
)
def test_parameters_that_make_no_job_are_refused(parameters: dict[str, Any], message: str) -> None:
    X, y = table()
    with pytest.raises(ConfigError, match=message):
        VerticalLogisticRegression(**parameters).fit(pd.DataFrame(X, columns=NAMES), y)


def test_tables_of_parties_that_do_not_fit_are_refused() -> None:
    X, y = table()
    with pytest.raises(ValueError, match=r"tables have \[60, 59\] rows"):
        VerticalLogisticRegression().fit([X[:, :2], X[1:, 2:]], y)
    frame = pd.DataFrame(X[:, :2], columns=["id", "age"])
    with pytest.raises(ValueError, match="'id' is in two parties' tables"):
        VerticalLogisticRegression().fit([frame, frame], y)
    with pytest.raises(ValueError, match="X: a dictionary; expected one table, or a list of one"):
        VerticalLogisticRegression().fit({"bank": X[:, :2], "shop": X[:, 2:]}, y)
    with pytest.raises(ConfigError, match="X is a list of tables"):
        VerticalLogisticRegression([[0], [1]]).fit([X[:, :2], X[:, 2:]], y)


def test_both_sides_hidden_take_the_expansion_of_the_loss() -> None:
    X, y = table()
    hidden = VerticalLogisticRegression(
        exchange="bfv", hide="both", local_steps="exact", random_state=0
    ).fit(X, y)
    assert hidden.result_.plan.loss.name == "taylor-logistic"
    shares = np.clip(0.5 + 0.25 * hidden.decision_function(X), 0, 1)
    np.testing.assert_allclose(hidden.predict_proba(X), np.column_stack([1 - shares, shares]))
    assert np.mean(shares) == pytest.approx(np.mean(y == hidden.classes_[1]), abs=0.05)


def test_estimators_work_in_pipelines_grids_and_cross_validation() -> None:
    X, y = table()
    frame = pd.DataFrame(X, columns=NAMES).assign(city=["A", "B"] * 30)
    prepare = ColumnTransformer(
        [("town", OneHotEncoder(sparse_output=False), ["city"])], remainder="passthrough"
    ).set_output(transform="pandas")
    parties = [
        ["town__city_A", "town__city_B", "remainder__age"],
        ["remainder__income", "remainder__visits", "remainder__spent"],
    ]
    model = VerticalLogisticRegression(parties, random_state=0)
    assert clone(model).get_params() == model.get_params()
    line = make_pipeline(prepare, model)
    search = GridSearchCV(line, {"verticallogisticregression__C": [1e-4, 1.0]}, cv=2)
    search.fit(frame, y)
    assert search.best_params_ == {"verticallogisticregression__C": 1.0}
    assert cross_val_score(line, frame, y, cv=2).mean() > 0.6


def test_a_fitted_estimator_is_pickled_without_its_job_whose_keys_stay_here() -> None:
    X, y = table()
    model = VerticalLogisticRegression(exchange="bfv", random_state=0).fit(X, y)
    assert model.result_.key_fingerprints
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert not hasattr(again, "result_")
    assert again.cost_ == model.cost_
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_rounds_that_run_out_are_warned_of_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = table()
    with pytest.warns(ConvergenceWarning, match="rounds = 2: the loss has not converged"):
        model = VerticalLogisticRegression(rounds=2, verbose=True).fit(X, y)
    assert model.n_iter_ == 2
    assert [row["round"] for row in model.history_] == [1, 2]
    assert model.history_[1]["loss"] < model.history_[0]["loss"]
    assert "round 2 of at most 2\n" in capsys.readouterr().err


def test_one_class_is_named_as_it_is() -> None:
    X, _ = table()
    with pytest.raises(ValueError, match=r"one class only \('late'\)"):
        VerticalLogisticRegression().fit(X, ["late"] * len(X))


def test_a_fit_that_failed_is_warned_of() -> None:
    X, y = table()
    model = VerticalLogisticRegression(
        learning_rate=1e4, local_steps=5, batch_size=10, rounds=20, C=1e-3, random_state=0
    )
    with pytest.warns(UserWarning, match="a smaller learning_rate"):
        model.fit(X, y)


def test_the_package_says_what_it_has() -> None:
    assert "VerticalLogisticRegression" in dir(securevfl)
    with pytest.raises(AttributeError, match="no attribute 'VerticalRegression'"):
        _ = securevfl.VerticalRegression  # type: ignore[attr-defined]


def test_a_job_in_shares_never_says_that_a_loss_nobody_sees_has_not_settled(
    recwarn: pytest.WarningsRecorder,
) -> None:
    X, _ = table()
    model = VerticalRidge(exchange="blind").fit(X, X[:, 0] - X[:, 3])
    assert model.n_iter_ == BLIND_ROUNDS
    assert not [each for each in recwarn if each.category is ConvergenceWarning]


def test_bounds_clip_rows_in_training_and_in_prediction() -> None:
    X, y = table()
    low, high = np.quantile(X[:, 0], [0.1, 0.9])
    bounds = {"bounds": {"x0": [low, high]}}
    model = VerticalLogisticRegression(job={"job": bounds}, random_state=0).fit(X, y)
    within = X.copy()
    within[:, 0] = np.clip(X[:, 0], low, high)
    same = VerticalLogisticRegression(job={"job": bounds}, random_state=0).fit(within, y)
    np.testing.assert_array_equal(model.coef_, same.coef_)
    np.testing.assert_array_equal(model.decision_function(X), same.decision_function(within))
    parts = {name: each.model for name, each in model.result_.outcomes.items()}
    half = X.shape[1] // 2 + X.shape[1] % 2
    rows = dict(zip(parts, (X[:, :half], X[:, half:]), strict=True))
    expected = JointModel(parts).decision_function(rows)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-12)
