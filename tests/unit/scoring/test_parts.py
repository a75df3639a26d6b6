from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from securevfl.cli.model import coefficient_table, model_lines
from securevfl.data import load
from securevfl.errors import ConfigError, DataError
from securevfl.job import parse_job
from securevfl.models.local_model import Network
from securevfl.models.storage import ModelHeader, SavedModel, save_model
from securevfl.reports import tables
from securevfl.reports.matrix import matrix
from securevfl.scoring import load_models
from securevfl.scoring.description import model_row, standardized
from securevfl.scoring.joint_model import load_parts, require_together
from securevfl.scoring.sources import rows_to_score

JOB = """
[[party]]
name = "bank"
role = "label"
data = "bank.csv"
label_column = "status"
[[party]]
name = "shop"
role = "feature"
data = "shop.csv"
"""


def part(name: str, *, rounds: int = 7, classes: int = 2) -> SavedModel:
    outputs = 1 if classes == 2 else classes
    names = tuple(f"class {number}" for number in range(classes)) if name == "bank" else None
    header = ModelHeader(
        party=name,
        columns=("a", "b"),
        intercept=name == "bank",
        classes=classes,
        loss="logistic" if classes == 2 else "multinomial",
        job_hash="ab" * 32,
        rounds=rounds,
        class_names=names,
    )
    weights = np.arange(1.0, 1 + (2 + header.intercept) * outputs).reshape(-1, outputs)
    return SavedModel(header, weights, np.array([1.0, 2.0]), np.array([2.0, 4.0]))


def write(folder: Path, *parts: SavedModel, suffix: str = "") -> None:
    for each in parts:
        save_model(folder / f"{each.header.party}{suffix}.safetensors", each)


def test_a_point_of_a_path_is_taken_when_asked_for(tmp_path: Path) -> None:
    write(tmp_path, part("bank"), part("shop"))
    write(tmp_path, part("bank", rounds=3), part("shop", rounds=3), suffix="-l1-0.01")
    assert load_models(tmp_path).parts["shop"].header.rounds == 7
    assert load_models(tmp_path, l1=0.01).parts["shop"].header.rounds == 3
    with pytest.raises(DataError, match=r"-l1-0\.5"):
        load_parts(tmp_path, ["bank", "shop"], l1=0.5)


def test_one_part_of_one_label_party_belongs_to_a_model() -> None:
    require_together({"bank": part("bank"), "shop": part("shop")})
    for parts in (
        {"shop": part("shop"), "store": part("shop")},
        {"a": part("bank")} | {"b": part("bank")},
    ):
        with pytest.raises(DataError, match="are a label party's, expected 1"):
            require_together(parts)
    with pytest.raises(DataError, match="'bank' is of rounds 7, 'shop' of rounds 3"):
        require_together({"bank": part("bank"), "shop": part("shop", rounds=3)})


def test_a_folder_without_all_parts_is_reported(tmp_path: Path) -> None:
    write(tmp_path, part("bank"))
    with pytest.raises(DataError, match="1 model files"):
        load_models(tmp_path)


def test_rows_of_some_parties_only_are_refused(tmp_path: Path) -> None:
    parts = {"bank": part("bank"), "shop": part("shop")}
    job = parse_job(JOB.replace('"shop.csv"', '"shop.csv"\nnew_data = "new.csv"'))
    with pytest.raises(ConfigError, match="new_data: missing for bank"):
        rows_to_score(job, parts, tmp_path, given={})
    given = {"bank": Path("new.csv")}
    with pytest.raises(ConfigError, match=r"missing for shop, .*; `--rows shop=FILE` may name"):
        rows_to_score(parse_job(JOB), parts, tmp_path, given=given)
    job = parse_job("".join(line for line in JOB.splitlines(True) if "data" not in line))
    with pytest.raises(ConfigError, match="no rows to score: give new_data at every party"):
        rows_to_score(job, parts, tmp_path, given={})


def test_a_coefficient_per_unit_predicts_what_the_standardized_one_does() -> None:
    model = part("bank", classes=3)
    row = model_row(model)
    raw = np.array([[3.0, -1.0]])
    per_unit = np.array([each["per_unit"] for each in row["columns"]])
    np.testing.assert_allclose(raw @ per_unit + row["constant"], model.predict(raw))
    table = coefficient_table([row])
    assert table is not None
    assert table.row_count == 3 * 3
    assert [column.header for column in table.columns][:2] == ["column", "class"]


def test_brackets_in_names_are_no_markup() -> None:
    model = part("bank")
    header = replace(model.header, columns=("age [years]", "[/b]"))
    console = Console(file=StringIO(), width=100)
    console.print(coefficient_table([model_row(replace(model, header=header))]))
    console.print(tables.table((("name", str),), ["of [y]"], "[/z]"))
    console.print(matrix([], "[/w]"))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in printed for name in ("age [years]", "[/b]", "of [y]", "[/z]", "[/w]"))


def test_a_network_is_shown_by_its_architecture() -> None:
    header = replace(part("shop").header, network=Network("mlp", (8, 4), "tanh"))
    model = replace(part("shop"), header=header, weights=np.zeros((61, 1)))
    row = model_row(model)
    assert coefficient_table([row]) is None
    (line,) = [line for line in model_lines(row) if "network" in line]
    assert (
        line
        == "network (mlp): 2 columns; hidden units 8, 4; tanh; 61 parameters in double precision"
    )
    with pytest.raises(ConfigError, match="no coefficients"):
        standardized(model)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("bank", "shop"), "'breast_cancer' is of party1, party2, the model of bank, shop"),
        (("party1", "party2"), "'party1': the model was not trained on these columns"),
    ],
)
def test_a_data_set_of_other_parties_or_columns_is_not_scored(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    parts = {name: part(name) for name in names}
    with pytest.raises(DataError, match=message):
        rows_to_score(parse_job(JOB), parts, tmp_path, given={}, dataset=load("breast_cancer"))
