"""A party's recipe in its model file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.errors import DataError
from securevfl.models.storage import ModelHeader, SavedModel, load_model, save_model
from securevfl.recipe import ColumnRecipe, Recipe

RECIPE = Recipe(
    (
        ColumnRecipe("age", "number", fill=41.5, indicator=True),
        ColumnRecipe("city", "category", levels=("Köln", "Ulm"), other_level=True),
        ColumnRecipe("since", "date", fill=18262.0),
    ),
    missing=("", "k. A."),
)
HEADER = ModelHeader(
    party="bank",
    columns=RECIPE.columns,
    intercept=False,
    classes=2,
    loss="logistic",
    job_hash="ab" * 32,
    rounds=7,
    recipe=RECIPE,
)
MODEL = SavedModel(HEADER, np.ones((6, 1)), np.zeros(6), np.ones(6))


def test_a_recipe_comes_back_as_it_was_and_makes_the_same_features(tmp_path: Path) -> None:
    save_model(tmp_path / "m", MODEL)
    back = load_model(tmp_path / "m")
    assert back.header == HEADER
    assert back.header.recipe is not None
    rows = pl.DataFrame({"age": ["k. A."], "city": ["Ulm"], "since": ["1970-01-03"]})
    assert back.header.recipe.apply(rows).tolist() == [[41.5, 1, 0, 1, 0, 2]]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(RECIPE.parts[:2]),
        Recipe((replace(RECIPE.parts[0], kind="code"), *RECIPE.parts[1:])),  # type: ignore[arg-type]
        Recipe((replace(RECIPE.parts[0], fill=float("nan")), *RECIPE.parts[1:])),
    ],
    ids=["other columns", "unknown kind", "no number"],
)
def test_a_recipe_that_does_not_fit_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    save_model(tmp_path / "m", replace(MODEL, header=replace(HEADER, recipe=recipe)))
    with pytest.raises(DataError, match="model file"):
        load_model(tmp_path / "m")
