from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError
from securevfl.models.flat_module import FlatModule, ModuleProblem, module_problems

ROWS = 6


def small(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Two layers for rows of three, of which one parameter is not trained."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(5)
    for each in network.parameters():
        each.data = torch.randn(each.shape, generator=generator)
    network[0].bias.requires_grad_(False)
    return network.to(dtype)


def data(dtype: type = np.float64) -> tuple[RealArray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.standard_normal((ROWS, 3)).astype(dtype), rng.integers(0, 2, ROWS)


def test_gradients_are_the_mean_loss_s_in_the_order_of_parameters() -> None:
    inputs, labels = data()
    flat = FlatModule(small())
    problem = ModuleProblem(flat, inputs, labels)
    assert flat.sizes == {"0.weight": 12, "2.weight": 8, "2.bias": 2}
    weights = np.random.default_rng(3).standard_normal(22)
    rows = np.array([0, 3, 4])
    found = problem.gradient(weights, rows).copy()
    for place in range(22):
        moved = np.eye(22)[place] * 1e-6
        losses = []
        for at in (weights + moved, weights - moved):
            scores = torch.tensor(flat.predict(at, inputs[rows]))
            losses.append(nn.functional.cross_entropy(scores, torch.tensor(labels[rows])).item())
        assert found[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)
    # Nothing of the call before is left in the next.
    np.testing.assert_array_equal(problem.gradient(weights, rows), found)
    assert problem.rows == ROWS


def test_tensors_are_rows_as_well() -> None:
    inputs, labels = data()
    flat = FlatModule(small())
    weights, every = flat.weights(), np.arange(ROWS)
    tensors = torch.tensor(inputs, requires_grad=True), torch.tensor(labels)
    np.testing.assert_array_equal(flat.predict(weights, tensors[0]), flat.predict(weights, inputs))
    assert flat.accuracy(weights, *tensors) == flat.accuracy(weights, inputs, labels)
    losses = [ModuleProblem(flat, *own).loss(weights, every) for own in (tensors, (inputs, labels))]
    assert losses[0] == losses[1]


def test_classes_are_given_where_the_loss_is_their_cross_entropy() -> None:
    inputs, labels = data()
    some = np.array([0, 3])
    classes = ModuleProblem(FlatModule(small()), inputs, labels).labels(some)
    np.testing.assert_array_equal(classes, labels[some])
    assert classes is not None
    ignored = np.where(labels == labels[0], -100, labels)
    assert ModuleProblem(FlatModule(small()), inputs, ignored).labels(some[:1]) is None
    squares = FlatModule(small(), lambda scores, targets: ((scores[:, 0] - targets) ** 2).mean())
    assert ModuleProblem(squares, inputs, labels).labels(some) is None


def test_the_module_moves_with_weights_and_the_dtype_stays() -> None:
    module = small(torch.float32)
    flat = FlatModule(module)
    start = flat.weights()
    assert start.dtype == np.float32
    goal = np.arange(22, dtype=np.float32)
    flat.load(goal)
    np.testing.assert_array_equal(module.state_dict()["2.bias"].numpy(), [20, 21])
    np.testing.assert_array_equal(flat.weights(), goal)
    assert start[0] != 0  # a copy
    goal.flags.writeable = False
    problem = ModuleProblem(flat, *data(np.float32))
    assert problem.gradient(goal, np.arange(2)).dtype == np.float32


def test_accuracy_is_how_often_the_largest_score_is_the_label_s() -> None:
    inputs, _ = data()
    flat = FlatModule(small())
    best = flat.predict(flat.weights(), inputs).argmax(axis=1)
    assert flat.accuracy(flat.weights(), inputs, best) == 1
    best[0] = 1 - best[0]
    assert flat.accuracy(flat.weights(), inputs, best) == pytest.approx(5 / 6)


def test_clients_share_one_module_and_a_loss_of_one_s_own_is_taken() -> None:
    inputs, _ = data()
    targets = np.random.default_rng(4).standard_normal((ROWS, 2))
    flat = FlatModule(small(), nn.functional.mse_loss)
    first, second = module_problems(flat, [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])])
    whole = ModuleProblem(flat, inputs, targets)
    weights = flat.weights()
    mean = 2 / 6 * first.gradient(weights, np.arange(2)).copy()
    mean += 4 / 6 * second.gradient(weights, np.arange(4)).copy()
    np.testing.assert_allclose(whole.gradient(weights, np.arange(6)), mean, atol=1e-12)


def test_gradients_are_right_after_others_have_trained_the_module() -> None:
    flat, own = FlatModule(small()), data()
    problem, every = ModuleProblem(flat, *own), np.arange(ROWS)
    weights = flat.weights()
    expected = problem.gradient(weights, every).copy()
    optimizer = torch.optim.SGD(flat.module.parameters(), 0.1)
    optimizer.zero_grad()
    rows, labels = (torch.tensor(each) for each in own)
    flat.loss(flat.module(rows), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert not np.array_equal(flat.weights(), weights)
    np.testing.assert_array_equal(problem.gradient(weights, every), expected)


@pytest.mark.parametrize("take", [FlatModule, lambda module: module.to(torch.float32)])
def test_a_module_that_was_taken_away_is_reported(take: Callable[[nn.Module], object]) -> None:
    flat = FlatModule(small())
    problem, weights = ModuleProblem(flat, *data()), flat.weights()
    take(flat.module)
    with pytest.raises(ConfigError, match="no longer here"):
        problem.gradient(weights, np.arange(2))


def one_number() -> nn.Module:
    """Predictions of shape (N,), which beside targets of (N, 1) make a table of pairs."""
    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()


class Mixed(nn.Module):
    """Of two precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2).to(torch.float64)


class Beside(nn.Module):
    """Takes off the mean of the rows that come together."""

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(dim=0)


def squares(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Which NumPy's rules stretch."""
    return ((predictions - targets) ** 2).mean()


def test_rows_of_integers_are_taken_as_an_embedding_takes_them() -> None:
    flat = FlatModule(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2)))
    problem = ModuleProblem(flat, np.array([[0, 4], [1, 1]]), np.array([0, 1]))
    assert problem.gradient(flat.weights(), np.array([0, 1])).any()


def problem(*of: Any, inputs: Any = None, targets: Any = None) -> ModuleProblem:  # noqa: ANN401
    """Of a module, with a loss if one is given, and of the usual rows but for what is given."""
    rows, labels = data()
    given = rows if inputs is None else inputs, labels if targets is None else targets
    return ModuleProblem(FlatModule(*(of or (small(),))), *given)


X, Y = data()
MSE, SUMMED, SINGLE = (
    nn.functional.mse_loss,
    nn.CrossEntropyLoss(reduction="sum"),
    nn.CrossEntropyLoss(reduction="none"),
)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FlatModule(nn.ReLU()), "expected some"),
        (lambda: FlatModule(nn.ReLU), "expected a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: FlatModule(small(), "cross_entropy"), "a loss of predictions and targets"),  # type: ignore[arg-type]
        (lambda: FlatModule(Mixed()), "all float32 or all float64"),
        (lambda: FlatModule(small().to(torch.float16)), "all float32 or all float64"),
        (lambda: FlatModule(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))), "batch norm"),
        (lambda: problem(inputs=X.astype(np.float32)), "inputs of float32"),
        (lambda: problem(targets=Y[1:]), "6 rows, 5 targets"),
        (lambda: problem(inputs=X * np.nan), "not finite"),
        (lambda: problem(inputs=X[:, 1:]), "do not take"),
        (lambda: problem(targets=Y + 9), "9.* out of bounds"),
        (lambda: problem(targets=Y * 0.5), "expected target"),
        (lambda: problem(inputs=X[:0], targets=Y[:0]), "at least one"),
        (lambda: problem(targets=Y.astype(str)), "targets: "),
        (lambda: problem(inputs=[[1.0], [1.0, 2.0]], targets=[0, 1]), "inputs: exp"),
        (lambda: problem(targets=1), "targets: expected rows"),
        (lambda: problem(small(), MSE, targets=X[:, :2] * np.nan), "targets that are not finite"),
        (
            lambda: problem(one_number(), squares, targets=X[:, :1]),
            r"predictions \(6,\) and targets \(6, 1\) is over all pairs",
        ),
        (lambda: problem(nn.LSTM(3, 2).double()), "do not take these rows"),
        (
            lambda: module_problems(FlatModule(small()), [(X, Y), (X, Y + 9)]),
            "client 1: module and loss do not take",
        ),
        (lambda: module_problems(FlatModule(small()), (X, Y)), "client 0: expected its inputs and"),  # type: ignore[arg-type]
        (
            lambda: problem(nn.Sequential(small(), nn.Dropout(0.9), nn.Linear(2, 64).double())),
            "leave out dropout",
        ),
        (lambda: problem(nn.Sequential(small(), Beside())), "depend on the rows beside"),
        (lambda: problem(nn.Linear(3, 1).double(), MSE, targets=np.ones(ROWS)), "target size"),
        (lambda: problem(small(), SUMMED), "as a mean's is"),
        (lambda: problem(small(), SINGLE), "as a mean's is"),
    ],
)
def test_what_cannot_be_trained_by_clients_is_refused(
    make: Callable[[], object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize("bias", [0.0, 1e-12, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("targets", [np.arange(ROWS) % 2, 1e4 + np.arange(ROWS)])
def test_a_loss_over_pairs_is_refused_whatever_is_predicted(
    bias: float, scale: float, targets: np.ndarray
) -> None:
    module = one_number()
    for name, each in module.named_parameters():
        each.data = torch.full_like(each, bias) if name.endswith("bias") else each.data * scale
    with pytest.raises(ConfigError, match="is over all pairs"):
        ModuleProblem(FlatModule(module, squares), data()[0], targets[:, None].astype(float))


def of_shares(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, targets, torch.tensor([5.0, 1.0]).to(scores))


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (small, data()[1]),
        (small, np.ones(ROWS, int)),
        (lambda: nn.Sequential(small(), nn.Linear(2, 1).double(), nn.Flatten(0)), np.ones(ROWS)),
        (lambda: nn.Sequential(small(), nn.Linear(2, 1).double()), data()[0][:, :1]),
    ],
)
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0])
def test_losses_that_are_means_of_rows_are_taken(
    make: Callable[[], nn.Module], targets: np.ndarray, scale: float
) -> None:
    """Also with weights of classes, and where all predictions are the same."""
    module = make()
    for name, each in module.named_parameters():
        each.data *= 1.0 if name.endswith("bias") else scale
    loss = of_shares if targets.dtype == int else squares
    assert ModuleProblem(FlatModule(module, loss), data()[0], targets).rows == ROWS


def test_accuracy_is_of_a_class_a_row() -> None:
    flat, (inputs, labels) = FlatModule(small()), data()
    for wrong in (labels[:, None], labels[:-1]):
        with pytest.raises(ConfigError, match=r"predicted classes \(6,\)"):
            flat.accuracy(flat.weights(), inputs, wrong)
    one = FlatModule(nn.Linear(3, 1).double())
    with pytest.raises(ConfigError, match=r"predictions \(6, 1\): expected a score a class"):
        one.accuracy(one.weights(), inputs, labels)
    for rows, says in (
        (inputs.astype(np.float32), "inputs of float32"),
        (inputs * np.inf, "finite"),
    ):
        with pytest.raises(ConfigError, match=says):
            flat.predict(flat.weights(), rows)


def test_asking_whether_a_module_draws_numbers_draws_none() -> None:
    flat, before = FlatModule(nn.Sequential(small(), nn.Dropout(0.9))), torch.get_rng_state()
    with pytest.raises(ConfigError, match="leave out dropout"):
        ModuleProblem(flat, *data())
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_of_another_precision_or_length_are_not_rounded_in_silence() -> None:
    flat = FlatModule(small(torch.float32))
    for wrong in (np.zeros(22), np.zeros(21, np.float32), np.zeros(1, np.float32)):
        with pytest.raises(ConfigError, match=r"the module has float32 \(22,\)"):
            flat.load(wrong)
