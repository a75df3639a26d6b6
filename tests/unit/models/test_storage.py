import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from securevfl.errors import ConfigError, DataError
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import Network, pixels_left
from securevfl.models.neural import mlp
from securevfl.models.storage import ModelHeader, SavedModel, load_model, save_model
from securevfl.recipe import ColumnRecipe, Recipe

HEADER = ModelHeader(
    party="bank",
    columns=("income", "debt"),
    intercept=True,
    classes=2,
    loss="logistic",
    job_hash="ab" * 32,
    rounds=7,
)
MODEL = SavedModel(
    HEADER, np.array([[1.5], [-2.0], [0.25]]), np.array([10.0, 20.0]), np.array([2.0, 4.0])
)


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    save_model(tmp_path / "new" / "bank.safetensors", MODEL)
    loaded = load_model(tmp_path / "new" / "bank.safetensors")
    assert loaded.header == HEADER
    for name in ("weights", "mean", "scale"):
        assert np.array_equal(getattr(loaded, name), getattr(MODEL, name))


def test_predictions_of_raw_features_are_the_trained_models() -> None:
    raw = np.array([[12.0, 24.0], [8.0, 20.0]])
    linear = LinearModel(MODEL.weights, intercept=True)
    scaled = linear.inputs((raw - MODEL.mean) / MODEL.scale)
    assert np.array_equal(MODEL.predict(raw), linear.predict(scaled))
    bare = replace(MODEL, header=replace(HEADER, intercept=False), weights=MODEL.weights[:2])
    assert bare.predict(np.array([[12.0, 20.0]])) == 1.5


@pytest.mark.parametrize("features", [np.zeros((3, 1)), np.zeros((3, 3)), np.zeros(2)])
def test_features_of_another_shape_are_refused(features: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"bank: features of shape .* expected 2 columns"):
        MODEL.predict(features)


def test_a_write_that_fails_leaves_the_old_model_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bank.safetensors"
    save_model(path, MODEL)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    newer = replace(MODEL, header=replace(HEADER, rounds=8))
    with pytest.raises(DataError, match="No space left on device"):
        save_model(path, newer)
    assert load_model(path).header.rounds == 7
    assert [each.name for each in tmp_path.iterdir()] == ["bank.safetensors"]


def test_a_place_where_no_folder_can_be_made_is_reported() -> None:
    with pytest.raises(DataError, match="cannot be written"):
        save_model(Path("/proc/nowhere/bank.safetensors"), MODEL)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no model file .*: name \.safetensors files"):
        load_model(tmp_path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^no model file .*nothing\.safetensors: name"):
        load_model(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "bank.safetensors"
    save_model(path, MODEL)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="not a securevfl model"):
        load_model(path)


def written(path: Path, header: dict[str, object], **tensors: np.ndarray) -> Path:
    """A safetensors file with any header and tensors."""
    arrays = {"weights": MODEL.weights, "mean": MODEL.mean, "scale": MODEL.scale, **tensors}
    save_file(arrays, path, metadata={"securevfl": json.dumps(header)})
    return path


def fields(**changes: object) -> dict[str, object]:
    return {**vars(HEADER), **changes}


def test_somebody_elses_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weights": MODEL.weights}, path)
    with pytest.raises(DataError, match="not a securevfl model"):
        load_model(path)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"weights": np.zeros((2, 1))}, "do not fit"),
        ({"mean": np.zeros(3)}, "do not fit"),
        ({"scale": np.zeros(1)}, "do not fit"),
        ({"weights": np.zeros(3)}, "do not fit"),
        ({"weights": MODEL.weights.astype(np.float32)}, "weights are not finite float64"),
        ({"weights": np.full((3, 1), np.nan)}, "weights are not finite float64"),
        ({"mean": np.array([np.inf, 0])}, "mean are not finite float64"),
        ({"scale": np.array([0.0, 1.0])}, "a scale is not positive"),
        ({"bounds": np.zeros((3, 2))}, "do not fit"),
        ({"bounds": np.array([[0.0, 1.0], [1.0, 1.0]])}, "a lower bound is not below"),
        ({"bounds": np.array([[0.0, 1.0], [1.0, np.inf]])}, "bounds are not finite float64"),
    ],
)
def test_tensors_that_fit_no_columns_or_that_no_training_leaves_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        load_model(written(tmp_path / "m", fields(), **tensors))


OF_TARGETS = {"classes": 0, "loss": "squared", "class_names": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2, this version reads 1"),
        *(
            (changes, "not a securevfl model")
            for changes in (
                {"colour": "red"},
                {"intercept": "yes"},
                {"intercept": None},
                {"columns": "ab"},
                {"rounds": "many"},
            )
        ),
        ({"job_hash": "ab"}, "job_hash 'ab', expected SHA-256"),
        ({"rounds": -1}, "-1 rounds"),
        ({"rounds": 1 << 63}, "9223372036854775808 rounds"),
        ({"rows": 0}, "rounds of 0 rows"),
        ({"classes": 1}, "1 classes"),
        ({"classes": -2}, "-2 classes"),
        ({"loss": "nothing"}, "loss 'nothing' of 2 classes"),
        ({"loss": "multinomial"}, "loss 'multinomial' of 2 classes"),
        ({"class_names": ("no",)}, "classes no, expected 2"),
        ({"class_names": ("no", "no")}, "classes no, no, expected 2"),
        (OF_TARGETS | {"class_names": ()}, "classes , expected 0"),
        ({"target_mean": 0.0, "target_scale": 1.0}, "target_mean of 2 classes"),
        (OF_TARGETS | {"target_mean": 0.0}, "target_mean 0.0 with target_scale None"),
        (OF_TARGETS | {"target_scale": 1.0}, "target_mean None with target_scale 1.0"),
        (OF_TARGETS | {"target_mean": 0.0, "target_scale": 0.0}, "targets are 0.0"),
        (OF_TARGETS | {"target_mean": 0.0, "target_scale": np.inf}, "targets are 0.0"),
        (OF_TARGETS | {"target_mean": np.nan, "target_scale": 1.0}, "targets are nan"),
        ({"network": {"kind": "dense"}}, "a layer without units"),
        ({"representation": 0}, "representations of 0"),
        ({"class_names": ("no", "\x1b[2J")}, "a name has control characters"),
    ],
    ids=str,
)
def test_a_header_of_no_job_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=rf"model file .*{message}"):
        load_model(written(tmp_path / "m", fields(**changes)))


def test_parts_of_other_parties_or_shapes_have_no_head() -> None:
    header = replace(HEADER, intercept=False, representation=3, head=("bank", "shop"))
    top = SavedModel(header, np.zeros((2, 3)), MODEL.mean, MODEL.scale, head=np.ones((7, 1)))
    own, theirs = np.ones((4, 1)), np.ones((4, 3))
    assert top.together({"bank": own, "shop": theirs}).tolist() == [[4.0]] * 4
    for parts in ({"bank": own}, {"bank": own, "shop": theirs, "mill": theirs}):
        with pytest.raises(DataError, match="the head is over bank, shop"):
            top.together(parts)
    for one, other in ((theirs, theirs), (own, own), (own, theirs[1:])):
        with pytest.raises(DataError, match=r"part of '.*expected"):
            top.together({"bank": one, "shop": other})
    shop = replace(top, header=replace(header, party="shop", head=None), head=None)
    with pytest.raises(DataError, match="'shop' holds no head: use the label party's model"):
        shop.together({"bank": own, "shop": theirs})


NETWORK = replace(HEADER, intercept=False, network=Network("mlp", (3,), "tanh"))
STATE = {
    "0.weight": np.arange(6.0).reshape(3, 2) / 10,
    "0.bias": np.array([0.1, 0.2, 0.3]),
    "2.weight": np.array([[1.0, -2.0, 3.0]]),
    "2.bias": np.array([0.5]),
}


def network_file(path: Path, header: dict[str, object], **changes: np.ndarray | None) -> Path:
    """A file of a network with any header, and tensors changed or left out."""
    tensors = {f"network.{name}": values for name, values in STATE.items()}
    tensors |= {"mean": MODEL.mean, "scale": MODEL.scale, **changes}  # type: ignore[dict-item]
    kept = {name: values for name, values in tensors.items() if values is not None}
    save_file(kept, path, metadata={"securevfl": json.dumps(header)})
    return path


def network_fields(**changes: object) -> dict[str, object]:
    return {**fields(intercept=False), "network": asdict(Network("mlp", (3,), "tanh")), **changes}


def test_a_network_comes_back_and_predicts_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "bank.safetensors"
    numbers = np.concatenate([STATE[name].ravel() for name in sorted(STATE)])[:, None]
    save_model(path, SavedModel(NETWORK, numbers, MODEL.mean, MODEL.scale, STATE))
    back = load_model(path)
    assert back.header == NETWORK
    assert np.array_equal(back.weights, numbers)
    raw = np.array([[12.0, 24.0], [8.0, 20.0]])
    hidden = np.tanh((raw - MODEL.mean) / MODEL.scale @ STATE["0.weight"].T + STATE["0.bias"])
    expected = hidden @ STATE["2.weight"].T + STATE["2.bias"]
    assert np.allclose(back.predict(raw), expected, rtol=0, atol=1e-15)


def test_the_file_of_a_linear_model_says_nothing_of_networks(tmp_path: Path) -> None:
    save_model(tmp_path / "m", MODEL)
    assert b"network" not in (tmp_path / "m").read_bytes()


@pytest.mark.parametrize(
    ("header", "changes", "message"),
    [
        ({}, {"network.0.bias": None}, "tensor 'network.0.bias'"),
        ({}, {"network.4.bias": np.zeros(1)}, "tensor 'network.4.bias'"),
        ({}, {"weights": np.zeros((2, 1))}, "tensor 'weights'"),
        ({}, {"network.0.weight": np.zeros((4, 2))}, "do not fit"),
        ({}, {"network.0.weight": np.full((3, 2), np.nan)}, "not finite float64"),
        ({}, {"network.0.weight": np.zeros((3, 2), np.int64)}, "not finite float64"),
        ({"network": {"kind": "mlp", "hidden": [10**12]}}, {}, "do not fit"),
        ({"network": {"kind": "mlp", "hidden": [-3]}}, {}, "do not fit"),
        ({"network": {"kind": "rnn"}}, {}, "not a securevfl model"),
        ({"network": {"kind": "cnn"}}, {}, "not a securevfl model"),
        ({"network": {"kind": "cnn", "channels": [10**12], "image_width": 1}}, {}, "0.bias"),
        ({"representation": 10**12}, {}, "do not fit"),
        ({"head": ["bank", "shop"]}, {}, "tensor 'head'"),
        ({"head": ["bank", "shop"]}, {"head": np.zeros((5, 1))}, "do not fit"),
        ({"head": ["shop", "bank"]}, {"head": np.zeros((3, 1))}, "the head of"),
        ({"head": []}, {"head": np.zeros((1, 1))}, "the head of"),
        ({"network": {"kind": "mlp", "activation": "os.system"}}, {}, "not a securevfl model"),
        ({"network": {"kind": "mlp", "code": "x"}}, {}, "not a securevfl model"),
        ({"network": None}, {}, "tensor 'network.0.bias'"),
        ({"network": {"kind": "custom"}}, {}, "a custom network, whose module must be given"),
    ],
    ids=str,
)
def test_a_network_file_that_was_tampered_with_is_refused(
    tmp_path: Path, header: dict[str, object], changes: dict[str, np.ndarray | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_model(network_file(tmp_path / "m", network_fields(**header), **changes))


@pytest.mark.parametrize(
    ("columns", "line", "pixels"), [(30, 5, 2), (30, 7, 0), (9, 3, 0), (9, 0, 0)]
)
def test_what_is_left_of_an_image(columns: int, line: int, pixels: int) -> None:
    assert pixels_left(columns, line, 2) == pixels


def test_a_custom_network_of_another_module_is_refused_when_it_is_used(tmp_path: Path) -> None:
    path = network_file(tmp_path / "m", network_fields(network={"kind": "custom"}))
    assert load_model(path, mlp((3,), "tanh")).predict(np.zeros((5, 2))).shape == (5, 1)
    with pytest.raises(DataError, match="does not fit its module"):
        load_model(path, mlp((4,), "tanh")).predict(np.zeros((5, 2)))
    with pytest.raises(ConfigError, match="needs a module from Python"):
        load_model(path, describe_only=True).predict(np.zeros((5, 2)))


RECIPE = Recipe(
    (
        ColumnRecipe("age", "number", fill=41.5, indicator=True),
        ColumnRecipe("city", "category", levels=("Köln", "Ulm"), other_level=True),
        ColumnRecipe("since", "date", fill=18262.0),
    ),
    missing=("", "k. A."),
)
OF_RECIPE = replace(HEADER, columns=RECIPE.columns, intercept=False, recipe=RECIPE)
WITH_RECIPE = SavedModel(OF_RECIPE, np.ones((6, 1)), np.zeros(6), np.ones(6))


def test_a_recipe_comes_back_as_it_was_and_makes_the_same_features(tmp_path: Path) -> None:
    save_model(tmp_path / "m", WITH_RECIPE)
    back = load_model(tmp_path / "m")
    assert back.header == OF_RECIPE
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
    save_model(tmp_path / "m", replace(WITH_RECIPE, header=replace(OF_RECIPE, recipe=recipe)))
    with pytest.raises(DataError, match="model file"):
        load_model(tmp_path / "m")
