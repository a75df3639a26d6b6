"""Networks as local models: in clear, under encryption, guarded, saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from securevfl.data.partition import BatchSchedule
from securevfl.data.scaling import Scaling
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.models.neural import NeuralModel, mlp
from securevfl.models.storage import load_model
from securevfl.protocols.session.agreement import Hello
from securevfl.training import Environment, TrainingResult, save_models
from tests.jobs import (
    SmallKeys,
    all_weights,
    breast_cancer,
    fit,
    received,
    relative_difference,
    run_job,
    scaled_blocks,
)

PARAMETERS = 1e-4
AUC = 1e-3
NETWORK: dict[str, Any] = {"model": "mlp", "hidden": [4], "activation": "tanh", "batch_size": 64}


def start_of(dataset: VerticalDataset, **settings: object) -> TrainingResult:
    """θ⁰ of a job: what one round with a step size of almost nothing leaves."""
    return run_job(dataset, **{**settings, "rounds": 1, "learning_rate": 1e-300})


def tower(result: TrainingResult, party: str, hidden: int) -> nn.Module:
    state = result.outcomes[party].model.state
    assert state is not None
    columns = state["0.weight"].shape[1]
    layers = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    layers.to(torch.float64).load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    return layers


def test_at_one_local_step_the_parties_are_one_network_of_two_towers(
    real_data: Callable[[str], VerticalDataset],
) -> None:
    dataset = real_data("a9a")
    settings: dict[str, Any] = {
        "model": "mlp", "local_steps": 1, "batch_size": 256, "seed": 3, "eval_every": 0
    }  # fmt: skip
    trained = run_job(dataset, rounds=50, learning_rate=0.3, **settings)
    begun = start_of(dataset, **settings)
    names = [table.name for table in dataset.parties]
    towers = nn.ModuleList(tower(begun, name, 64) for name in names)
    optimizer = torch.optim.SGD(towers.parameters(), lr=0.3)
    schedule = BatchSchedule(dataset.row_digests, 256, 3)
    blocks = scaled_blocks(dataset)
    blocks[dataset.label_party] = blocks[dataset.label_party][:, :-1]
    for t in range(50):
        rows = schedule.batch(t)
        logits = torch.zeros(len(rows), 1, dtype=torch.float64)
        for name, each in zip(names, towers, strict=True):
            logits = logits + each(torch.tensor(blocks[name][rows]))
        labels = torch.tensor(dataset.train_labels[rows, None], dtype=torch.float64)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, each in zip(names, towers, strict=True):
        state = trained.outcomes[name].model.state
        assert state is not None
        for key, values in each.state_dict().items():
            assert np.max(np.abs(state[key] - values.numpy())) <= 1e-9


@pytest.mark.slow
def test_networks_on_a9a_are_at_least_as_good_as_the_linear_model(
    real_data: Callable[[str], VerticalDataset],
) -> None:
    steps = {"rounds": 1000, "batch_size": 256, "learning_rate": 1.0, "l2": 0.001}
    network = {"model": "mlp", "algorithm": "fedsgd", "eval_every": 0}
    result = run_job(real_data("a9a"), **network, **steps)
    assert result.scores[-1].auc >= 0.902


def test_the_linearization_differs_from_the_network_only_beyond_one_step() -> None:
    dataset = breast_cancer()
    for local_steps, alike in ((1, True), (5, False)):
        settings = {**NETWORK, "rounds": 5, "local_steps": local_steps, "learning_rate": 0.03}
        exact = run_job(dataset, **settings)
        linearized = run_job(dataset, local_rule="gauss-newton", **settings)
        assert (relative_difference(linearized, exact) <= 1e-12) == alike
        assert relative_difference(linearized, exact) <= 0.05


def test_for_linear_models_gauss_newton_is_curvature_to_the_bit() -> None:
    dataset = breast_cancer()
    one, other = (
        run_job(dataset, local_rule=rule, rounds=10) for rule in ("curvature", "gauss-newton")
    )
    assert all_weights(one).tobytes() == all_weights(other).tobytes()


@pytest.mark.parametrize(
    "local_rule", ["curvature", pytest.param("gauss-newton", marks=pytest.mark.slow), "frozen"]
)
def test_networks_learn_ten_classes_in_clear(local_rule: str) -> None:
    dataset = load("digits", parties=4)
    settings = {**NETWORK, "hidden": [16], "local_rule": local_rule, "seed": 1}
    common = {"rounds": 60, "local_steps": 3, "learning_rate": 0.02, "eval_every": 0, **settings}
    plain = run_job(dataset, **common)
    assert plain.scores[-1].accuracy > 0.8
    masked = run_job(dataset, {"scheme": "masked"}, **common)
    assert relative_difference(masked, plain) <= 1e-6


def test_jacobians_beyond_the_announced_bound_are_scaled_and_not_refused() -> None:
    """Features as they are, up to 4254: the Hello says ±1 and tells nothing of them."""
    dataset = breast_cancer()
    settings = {**NETWORK, "rounds": 2, "learning_rate": 1e-6, "standardize": False}
    settings |= {"hidden": [2], "activation": "relu"}
    twin = run_job(dataset, local_rule="gauss-newton", **settings)
    encrypted = run_job(dataset, {"scheme": "bfv"}, **settings)
    ends = [all_weights(each) for each in (encrypted, twin, start_of(dataset, **settings))]
    went = np.linalg.norm(ends[1] - ends[2])
    assert np.linalg.norm(ends[0] - ends[1]) <= PARAMETERS * went
    (hello,) = received(encrypted, dataset.label_party, Hello)
    assert (hello.columns, hello.feature_bound_bits) == (15 * 2 + 2 + 2 + 1, 0)
    assert hello.feature_fraction_bits == 32


@pytest.mark.parametrize(
    ("label", "feature", "round_trips"), [("mlp", "linear", 4), ("linear", "mlp", 6)]
)
def test_one_party_may_train_a_network_and_another_a_linear_model(
    label: str, feature: str, round_trips: int
) -> None:
    """Three rounds on a long wide link: only a linear feature party can compute ahead."""
    dataset = breast_cancer()
    roles = (("party1", "label", label), ("party2", "feature", feature))
    parties = [dict(zip(("name", "role", "model"), each, strict=True)) for each in roles]
    settings = {"rounds": 3, "batch_size": 64, "hidden": [4], "activation": "tanh"}
    settings |= {"party": parties, "network": {"preset": "intercontinental"}}
    results = [
        fit(dataset, scheme, local_rule="gauss-newton", **settings) for scheme in ("plain", "bfv")
    ]
    assert relative_difference(results[1], results[0]) <= PARAMETERS
    assert results[1].costs().round_trips == round_trips
    networks = [outcome.model.header.network for outcome in results[0].outcomes.values()]
    assert [network is not None for network in networks] == [label == "mlp", feature == "mlp"]


# ------------------------------------------------------------------------------------- the guard


def guarded(directory: Path | None, **settings: object) -> TrainingResult:
    common = {**NETWORK, "hidden": [1], "batch_size": 228, "rounds": 3, "eval_every": "never"}
    environment = Environment(keys=SmallKeys(), guard_directory=directory)
    return fit(breast_cancer(), "paillier", environment, **{**common, **settings})


def test_every_visit_of_a_batch_by_a_network_counts(tmp_path: Path) -> None:
    parameters = 15 + 1 + 1 + 1
    for rounds in (3, 7):
        ratio = guarded(None, rounds=rounds).label_guard_ratio
        assert ratio == pytest.approx(rounds * parameters / 456)


def test_a_network_job_above_the_limit_is_refused_before_its_first_round(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused, match=r"of a network reveals .* not even one round"):
        guarded(tmp_path, rounds=4)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".key", ".lock"}
    assert guarded(tmp_path, rounds=4, allow_label_leak=True).rounds == 4


def gradient_and_jacobian(
    hidden: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """What the feature party holds after one encrypted round on 64 rows, and the labels."""
    dataset = breast_cancer()
    settings = {**NETWORK, "hidden": [hidden], "rounds": 1, "local_steps": 1}
    states = [
        fit(dataset, "bfv", **settings, learning_rate=eta).outcomes["party2"].model.state
        for eta in (1e-300, 1.0)
    ]
    assert states[0] is not None
    assert states[1] is not None
    module = mlp((hidden,), "tanh")(15, 1).to(torch.float64)
    module.load_state_dict({name: torch.tensor(values) for name, values in states[0].items()})
    names = [name for name, _ in module.named_parameters()]
    gradient = np.concatenate([(states[0][name] - states[1][name]).ravel() for name in names])
    rows = BatchSchedule(dataset.row_digests, 64, 0).batch(0)
    table = dataset.parties[1]
    inputs = Scaling.fit(table.train).apply(table.train[rows])
    return (
        gradient * len(rows),
        NeuralModel(module).tangent(inputs)(),
        as_classes(dataset.train_labels[rows]),
    )


@pytest.mark.parametrize(("hidden", "separates"), [(8, True), (1, False)])
def test_a_gradient_of_more_parameters_than_rows_tells_every_label(
    hidden: int, separates: bool
) -> None:
    """Why the guard refuses such batches at any ratio; 18 parameters do not tell 64 labels."""
    gradient, jacobian, labels = gradient_and_jacobian(hidden)
    residuals = np.linalg.lstsq(jacobian.T, gradient, rcond=1e-6)[0]
    right = np.mean((residuals < 0) == labels)
    assert (right == 1) == separates


# ------------------------------------------------------------------------------ modules and files


def test_any_module_may_be_trained_and_comes_back_from_its_file(tmp_path: Path) -> None:
    def make(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, features)), nn.Conv1d(1, 3, 5), nn.SiLU(), nn.Flatten(),
            nn.LayerNorm(3 * (features - 4)), nn.Linear(3 * (features - 4), outputs),
        )  # fmt: skip

    dataset = breast_cancer()
    modules = dict.fromkeys(("party1", "party2"), make)
    settings, with_them = {"model": "custom", "batch_size": 64}, Environment(modules=modules)
    result = run_job(dataset, None, with_them, rounds=20, **settings)
    assert result.scores[-1].auc > 0.95
    twin, encrypted = (
        run_job(dataset, scheme, with_them, rounds=2, local_rule="gauss-newton", **settings)
        for scheme in ("plain", "bfv")
    )
    assert relative_difference(encrypted, twin) <= PARAMETERS
    paths = save_models(result, tmp_path)
    total = np.zeros((len(dataset.test_labels), 1))
    for path, table in zip(paths, dataset.parties, strict=True):
        back = load_model(path, make)
        trained = result.outcomes[table.name].model
        assert np.array_equal(back.predict(table.test), trained.predict(table.test))
        total += back.predict(table.test)
    assert np.mean((total[:, 0] > 0) == dataset.test_labels) == result.scores[-1].accuracy


def test_a_module_for_a_party_that_takes_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="a module for 'party1', which is no party with"):
        run_job(breast_cancer(), None, Environment(modules={"party1": nn.Linear}), **NETWORK)
