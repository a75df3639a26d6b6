"""The public door, with a torch module and without one."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.errors import ConfigError
from securevfl.horizontal import Blocks, HorizontalResult, method_named, train_horizontal
from securevfl.horizontal.training import loss_change, losses
from securevfl.models.flat_module import FlatModule, module_problems
from tests.quadratics import PARAMETERS, Quadratic, optimum, quadratics

START = np.zeros(PARAMETERS)
PROBLEM = quadratics(1, 1)[0]


def trained_with(**given: Any) -> HorizontalResult:  # noqa: ANN401
    """One round of FedAvg on quadratics, two clients in it, unless something else is given."""
    usual = {"problems": quadratics(8, 1), "weights": START, "method": "fedavg", "rounds": 1}
    return train_horizontal(**{**usual, "taking_part": 2, **given})


def test_every_setting_is_that_of_the_federation() -> None:
    given = {
        **{"rounds": 2, "taking_part": 4, "learning_rate": 0.01, "decay": 0.9, "seed": 5},
        **{"weight_decay": 0.02, "clip": 3.0, "epochs": 2, "batch_size": 7},
    }
    found = trained_with(**given).federation.settings
    assert asdict(found) == {"clients": 8, **given}


def test_clients_with_two_classes_each_learn_all_four_together() -> None:
    rng = np.random.default_rng(6)
    centres = 3 * np.array([[1, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    labels = rng.integers(0, 4, 600)
    inputs = (centres[labels] + rng.standard_normal((600, 3))).astype(np.float32)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(1)
    network = FlatModule(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)))
    torch.random.set_rng_state(torch_state)
    clients = []
    for client in range(12):
        own = np.flatnonzero(np.isin(labels[:480], (client % 4, (client + 1) % 4)))[client::12]
        clients.append((inputs[own], labels[own]))
    trained = train_horizontal(
        module_problems(network, clients),
        network.weights(),
        Blocks.equal(network.sizes, 2, ["2"]),
        "fedbcgd+",
        rounds=12,
        taking_part=4,
        batch_size=10,
        epochs=2,
        score=lambda weights: network.accuracy(weights, inputs[480:], labels[480:]),
        score_every=4,
    )
    assert trained.rounds[-1].score is not None
    assert trained.rounds[-1].score > 0.85
    assert "fedbcgd+" in repr(trained)
    assert "control" in trained.learns["server"]
    assert trained.spent.rounds == 12


def test_a_target_ends_training_and_says_what_it_cost() -> None:
    problems = quadratics(8, 1)
    best = optimum(problems)
    trained = trained_with(
        problems=problems,
        method="scaffold",
        rounds=300,
        taking_part=4,
        decay=1.0,
        weight_decay=0.0,
        score=lambda weights: float(-np.abs(weights - best).max()),
        target=-1e-6,
    )
    assert len(trained.rounds) < 300
    reached = trained.spent_to(-1e-6)
    assert reached == trained.spent
    assert reached is not None
    assert reached.paper_floats == 2 * PARAMETERS * reached.rounds
    assert trained.spent_to(0.0) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "fedsgd"}, "method = 'fedsgd'"),
        ({"method": ["fedavg"]}, r"method = \['fedavg'\]: expected a name"),
        ({"uploads": "masked"}, "uploads = 'masked': expected Comp"),
        ({"network": "wan"}, "network = 'wan': expected a Line"),
        ({"blocks": 5}, r"blocks = 5: expected Blocks.equal"),
        ({"taking_part": 10}, "taking_part = 10: there are 8 clients"),
        ({"target": 1.0}, "nothing is scored"),
        ({"score": 0.9}, "score = 0.9: expected a function"),
        ({"score_every": 0}, "score_every = 0"),
        ({"score_every": 1.5}, "score_every = 1.5"),
        ({"weights": START.astype(int)}, r"weights of int64 \(12,\): expected a vector of float32"),
        ({"weights": [START]}, r"weights of float64 \(1, 12\)"),
        ({"weights": [[0.0], [0.0, 1.0]]}, "weights: expected a vector"),
        ({"weights": torch.zeros(12, requires_grad=True)}, "weights: expected a vector"),
        ({"weights": START * np.nan}, "a finite vector"),
        ({"problems": PROBLEM}, "problems: expected one of each client, not one Quadratic"),
        (
            {"problems": [PROBLEM] * 3 + [(START, 1)]},
            "client 3: expected a problem as module_problems makes it, not a tuple",
        ),
        ({"problems": [PROBLEM, Quadratic(START, START[:0])]}, "client 1: expected at least"),
        ({"problems": []}, "clients = 0: expected at least 1"),
        ({"epochs": 1.5}, "epochs = 1.5: expected a whole"),
        ({"seed": "a"}, "seed = 'a': expected a whole"),
        ({"learning_rate": "auto"}, "learning_rate = 'auto': expected a num"),
        ({"weight_decay": None}, "weight_decay = None: expected a number"),
    ],
)
def test_what_cannot_be_trained_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trained_with(**given)


def test_the_usual_method_needs_blocks() -> None:
    with pytest.raises(ConfigError, match="'fedbcgd' needs blocks"):
        train_horizontal(quadratics(8, 1), START, rounds=1)


@pytest.mark.parametrize("target", ["0.9", float("nan"), [0.9]])
def test_a_target_that_no_score_can_be_held_against_is_refused(target: object) -> None:
    with pytest.raises(ConfigError, match="target = "):
        trained_with(score=lambda _: 0.5, target=target)


@pytest.mark.parametrize("score", ["0.9", None, [0.5], np.zeros(2), torch.zeros(2)])
def test_a_score_that_is_no_number_ends_training_by_its_name(score: object) -> None:
    with pytest.raises(ConfigError, match=r"what score gave = .*: expected a number"):
        trained_with(rounds=5, score=lambda _: score)


@pytest.mark.parametrize("kind", [float, np.float32, np.array, torch.tensor])
def test_whatever_holds_one_number_is_a_score(kind: Callable[[float], Any]) -> None:
    trained = trained_with(rounds=5, target=0.25, score=lambda _: kind(0.25))
    assert [each.score for each in trained.rounds] == [0.25]
    assert isinstance(trained.rounds[0].score, float)


def test_a_score_that_is_nan_is_reported() -> None:
    scores = iter([0.1, float("nan"), 0.3, float("nan")])
    given = {"rounds": 4, "taking_part": 8, "weight_decay": 0.0, "target": 0.5}
    with pytest.warns(UserWarning, match="2 of 4 scores are NaN, the first after round 2: "):
        trained = trained_with(**given, score=lambda _: next(scores))
    assert [each.kind for each in trained.warnings] == ["went wrong"]
    assert len(trained.rounds) == 4


def test_what_numpy_takes_for_a_vector_is_weights() -> None:
    expected = trained_with().weights
    for weights in (list(START), torch.tensor(START)):
        np.testing.assert_array_equal(trained_with(weights=weights).weights, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_that_are_finite_and_worse_are_noticed_from_gradients_alone(dtype: type) -> None:
    start: RealArray = np.full(PARAMETERS, 8, dtype)
    given = {"weights": start, "rounds": 5, "taking_part": 4, "weight_decay": 0.0}
    with pytest.warns(UserWarning, match="training went wrong: by the clients' gradients"):
        trained = trained_with(**given, learning_rate=10.0)
    assert np.isfinite(trained.weights).all()
    assert [each.kind for each in trained.warnings] == ["went wrong"]
    assert "went wrong: yes" in repr(trained)
    assert trained_with(**given, learning_rate=0.1).warnings == ()


def test_the_loss_that_gradients_tell_of_is_that_of_quadratics() -> None:
    problems = quadratics(8, 1)

    def mean_loss(at: FloatArray) -> float:
        off = [(at - each.minima[0], each.curvature) for each in problems]
        return float(np.mean([shift @ curvature @ shift / 2 for shift, curvature in off]))

    for end in np.random.default_rng(7).normal(0, 3, (5, PARAMETERS)):
        expected = mean_loss(end) - mean_loss(START)
        assert loss_change(problems, START, end) == pytest.approx(expected, rel=1e-9)


def test_a_network_that_is_no_better_than_a_constant_or_than_before_is_reported() -> None:
    rng = np.random.default_rng(8)
    inputs = rng.standard_normal((160, 3)).astype(np.float32)
    labels = (inputs.sum(1) > 0).astype(np.int64)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        network = FlatModule(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    parts = [slice(client, None, 8) for client in range(8)]
    problems = module_problems(network, [(inputs[own], labels[own]) for own in parts])
    given = {"problems": problems, "taking_part": 4}
    start = network.weights()
    with pytest.warns(UserWarning, match=r"learned nothing.* of a constant prediction"):
        guessing = trained_with(**given, weights=start, rounds=4, learning_rate=30.0)
    assert [each.kind for each in guessing.warnings] == ["learned nothing"]
    good = trained_with(**given, weights=start, rounds=8, learning_rate=0.5)
    assert good.warnings == ()
    pulled = {"weights": good.weights, "rounds": 2, "learning_rate": 0.05, "weight_decay": 0.5}
    with pytest.warns(UserWarning, match="training went wrong: the clients' mean training loss"):
        worse = trained_with(**given, **pulled)
    assert [each.kind for each in worse.warnings] == ["went wrong"]


@dataclass(frozen=True, eq=False)
class Judged(Quadratic):
    """With a loss, of one class or of none."""

    at_end: float
    classes: IntArray | None

    def loss(self, weights: RealArray, rows: IntArray) -> float:
        """Of zero weights 1."""
        return self.at_end if weights.any() else 1.0

    def labels(self, rows: IntArray) -> IntArray | None:
        """The same of every row."""
        return None if self.classes is None else self.classes[rows]


@pytest.mark.parametrize(
    ("classes", "at_end", "kinds"),
    [
        ([0, 1], 0.69, []),
        ([0, 1], 0.70, ["learned nothing"]),  # the entropy of halves is 0.693
        ([0, 1], np.nan, ["learned nothing"]),
        (None, 1.009, []),
        (None, 1.011, ["went wrong"]),
        (None, np.nan, ["went wrong"]),
    ],
)
def test_a_loss_that_is_nan_is_no_better_than_any(
    classes: list[int] | None, at_end: float, kinds: list[str]
) -> None:
    found = None if classes is None else np.array(classes)
    problems = [
        Judged(each.curvature, each.minima, at_end, found) for each in quadratics(4, 1, rows=2)
    ]
    with pytest.warns(UserWarning, match="mean training loss") if kinds else nullcontext():
        trained = trained_with(problems=problems)
    assert [each.kind for each in trained.warnings] == kinds


class Broken(Quadratic):
    """Whose gradients are NaN where training has got to."""

    @override
    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        found = super().gradient(weights, rows)
        return found * np.nan if np.abs(weights).max() > 0.5 else found


def test_gradients_that_are_nan_at_the_end_are_reported() -> None:
    problems = [Broken(each.curvature, each.minima) for each in quadratics(4, 1)]
    given = {"problems": problems, "taking_part": 4, "epochs": 1, "learning_rate": 1.0}
    with pytest.warns(UserWarning, match="by the clients' gradients"):
        trained = trained_with(**given)
    assert np.isfinite(trained.weights).all()


def test_a_constant_prediction_knows_every_client_s_classes_alike() -> None:
    def entropy(*labels: list[int] | None) -> float | None:
        problems = [
            Judged(START, START[: 1 if own is None else len(own)], 0.5, np.array(own or []))
            for own in labels
        ]
        if None in labels:
            problems[0] = replace(problems[0], classes=None)
        found = losses(problems, START, START)
        assert found is not None
        return found.constant

    assert entropy([0, 0, 0], [2]) == pytest.approx(np.log(2))
    assert entropy([0, 1], [2]) == pytest.approx(0.5 * np.log(4) + 0.5 * np.log(2))
    assert entropy([1], [1, 1]) == 0
    assert entropy(None, [1]) is None


def test_ablations_are_descriptions_with_something_left_out() -> None:
    method, sizes = replace(method_named("fedbcgd"), momentum=0.8), {"a": 9, "s": 3}
    whole, *others = (
        trained_with(
            method=each, blocks=blocks, rounds=4, taking_part=4, seed=2, learning_rate=0.02
        ).weights
        for each, blocks in (
            (method, Blocks.equal(sizes, 2, ["s"])),
            (replace(method, momentum=0.0), Blocks.equal(sizes, 2, ["s"])),
            (replace(method, freezes=True), Blocks.equal(sizes, 2, ["s"])),
            (method, Blocks.equal(sizes, 2)),
        )
    )
    for each in others:
        assert np.abs(each - whole).max() > 1e-3
