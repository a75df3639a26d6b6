from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from securevfl.errors import DataError
from securevfl.recipe import ColumnRecipe, Recipe
from securevfl.scoring.joint_model import JointModel
from tests.unit.scoring.test_parts import part

BANK = np.array([[1.0, 2.0], [3.0, 4.0]])
SHOP = {"age": [30, None], "city": ["Rome", "Bern"]}
RECIPE = Recipe(
    (ColumnRecipe("age", "number", fill=40.0), ColumnRecipe("city", "category", levels=("Rome",)))
)


def model(*, recipe: Recipe | None = None) -> JointModel:
    shop = part("shop")
    columns = shop.header.columns if recipe is None else recipe.columns
    header = replace(shop.header, recipe=recipe, columns=columns)
    return JointModel({"bank": part("bank"), "shop": replace(shop, header=header)})


def test_arrays_and_frames_in_any_order_are_the_same_rows() -> None:
    expected = model().decision_function({"bank": BANK, "shop": BANK})
    columns = {"beside": ["x", "y"], "b": BANK[:, 1], "a": BANK[:, 0]}
    for frame in (pl.DataFrame(columns), pd.DataFrame(columns)):
        found = model().decision_function({"bank": frame, "shop": BANK})
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame])
def test_raw_columns_of_a_frame_go_through_the_party_s_recipe(frame: type[Any]) -> None:
    given = {"bank": BANK, "shop": frame(SHOP)}
    ready = {"bank": BANK, "shop": np.array([[30.0, 1.0], [40.0, 0.0]])}
    found = model(recipe=RECIPE).decision_function(given)
    np.testing.assert_array_equal(found, model().decision_function(ready))


@pytest.mark.parametrize(
    ("shop", "recipe", "said"),
    [
        (pl.DataFrame({"a": [1.0, 2.0]}), None, "party 'shop': 1 columns .* missing: 'b'"),
        (BANK, RECIPE, "party 'shop': an array has no column names"),
        ([["low", "high"]] * 2, None, "party 'shop': values that are not numbers"),
        (BANK[:, :1], None, r"party 'shop': rows of shape \(2, 1\), expected 2 columns"),
        (BANK[0], None, r"party 'shop': rows of shape \(2,\)"),
        (np.where(BANK > 2, np.nan, BANK), None, "NaN or infinite values in columns 'a' 1, 'b' 1"),
        (BANK[:1], None, "different numbers of rows .'bank' 2, 'shop' 1"),
        (pl.DataFrame({**SHOP, "age": ["x", "y"]}), RECIPE, "party 'shop': column 'age'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(shop: object, recipe: Recipe | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        model(recipe=recipe).decision_function({"bank": BANK, "shop": shop})


def test_rows_of_other_parties_are_refused() -> None:
    with pytest.raises(DataError, match="rows of bank: the model is of bank, shop"):
        model().decision_function({"bank": BANK})
