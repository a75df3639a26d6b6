"""A head over representations: against torch alone, what travels, noise, refusals, saved models."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.models.scores import auc
from securevfl.models.storage import load_model
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.exchanges.plain import HeadResiduals
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, save_models
from tests.jobs import Kept, fit, received
from tests.made_data import made

WIDTH, LINE = 3, 5
STEPS: dict[str, Any] = {
    **{"head": "logistic", "representation": WIDTH, "rounds": 6, "batch_size": 32, "seed": 4},
    **{"learning_rate": 0.5, "schedule": "inverse-sqrt", "l2": 0.01, "proximal": 0.1},
}
# What one round with a step size of almost nothing leaves is θ⁰.
STILL: dict[str, Any] = {"rounds": 1, "learning_rate": 1e-300}
LOCAL: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp", "hidden": [4]},
    "cnn": {"model": "cnn", "channels": [2, 3], "image_width": LINE},
    "linear": {"model": "linear"},
}


def data(parties: int, classes: int = 2) -> VerticalDataset:
    return made([parties, classes], parties, rows=96, columns=6 * LINE, classes=classes)


def run(
    dataset: VerticalDataset, environment: Environment | None = None, /, **settings: object
) -> TrainingResult:
    exchange = "dp" if "privacy" in settings else "plain"
    return fit(dataset, exchange, environment, **{**STEPS, **settings})


def layers(kind: str, columns: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(columns, WIDTH, bias=False)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(columns, 4), nn.ReLU(), nn.Linear(4, WIDTH), nn.ReLU())
    lines = columns // LINE
    return nn.Sequential(
        nn.Unflatten(1, (1, lines, LINE)),
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * (lines - 4) * (LINE - 4), WIDTH),
        nn.ReLU(),
    )


class Reference:
    """FedBCD with a head in torch alone, from the start that a job drew."""

    def __init__(self, begun: TrainingResult, dataset: VerticalDataset, kind: str) -> None:
        self.names = [table.name for table in dataset.parties]
        self.rows = {t.name: torch.tensor(t.train) for t in dataset.parties}
        self.labels = torch.tensor(dataset.train_labels)
        self.classes = dataset.classes
        self.nets: dict[str, nn.Module] = {}
        for name in self.names:
            net = layers(kind, self.rows[name].shape[1]).to(torch.float64)
            saved = begun.outcomes[name].model
            if kind == "linear":
                net.load_state_dict({"weight": torch.tensor(saved.weights.T.copy())})
            else:
                assert saved.state is not None
                net.load_state_dict({k: torch.tensor(v) for k, v in saved.state.items()})
            self.nets[name] = net
        head = begun.outcomes["party0"].model.head
        assert head is not None
        self.head = nn.Linear(len(head) - 1, head.shape[1]).to(torch.float64)
        self.head.load_state_dict(
            {"weight": torch.tensor(head[:-1].T.copy()), "bias": torch.tensor(head[-1].copy())}
        )

    def loss(self, logits: torch.Tensor, rows: np.ndarray[Any, Any]) -> torch.Tensor:
        labels = self.labels[rows]
        if self.classes > 2:
            return nn.functional.cross_entropy(logits, labels)
        return nn.functional.binary_cross_entropy_with_logits(
            logits, labels[:, None].to(torch.float64)
        )

    def given(self, rows: np.ndarray[Any, Any]) -> dict[str, torch.Tensor]:
        return {n: self.nets[n](self.rows[n][rows]).detach() for n in self.names}

    def label_steps(
        self, rows: np.ndarray[Any, Any], u: Mapping[str, torch.Tensor], steps: int, eta: float
    ) -> None:
        moving = [*self.nets["party0"].parameters(), *self.head.parameters()]
        start = [each.detach().clone() for each in moving]
        for _ in range(steps):
            own = self.nets["party0"](self.rows["party0"][rows])
            logits = self.head(torch.cat([own, *(u[n] for n in self.names[1:])], dim=1))
            self.step(moving, start, self.loss(logits, rows), eta)

    def feature_steps(
        self,
        name: str,
        rows: np.ndarray[Any, Any],
        d: torch.Tensor,
        part: torch.Tensor,
        *,
        steps: int,
        eta: float,
        curvature: float,
    ) -> None:
        moving = list(self.nets[name].parameters())
        start = [each.detach().clone() for each in moving]
        before = self.nets[name](self.rows[name][rows]).detach()
        for _ in range(steps):
            now = self.nets[name](self.rows[name][rows])
            # Its gradient is d⁰ + c·(u − u⁰)θ_k, through θ_k.
            moved = (now - before) @ part.T
            bound = (d * moved).sum() + curvature / 2 * (moved**2).sum()
            self.step(moving, start, bound / len(rows), eta)

    @staticmethod
    def step(
        moving: list[nn.Parameter], start: list[torch.Tensor], loss: torch.Tensor, eta: float
    ) -> None:
        for each, begun in zip(moving, start, strict=True):
            if each.dim() > 1:
                loss = loss + STEPS["l2"] / 2 * (each**2).sum()
            loss = loss + STEPS["proximal"] / 2 * ((each - begun) ** 2).sum()
        gradients = torch.autograd.grad(loss, moving)
        with torch.no_grad():
            for each, gradient in zip(moving, gradients, strict=True):
                each.sub_(eta * gradient)

    def residuals(self, rows: np.ndarray[Any, Any], u: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = self.head(torch.cat([u[n] for n in self.names], dim=1)).detach().requires_grad_()
        d: torch.Tensor = torch.autograd.grad(self.loss(logits, rows) * len(rows), logits)[0]
        return d

    def part(self, name: str) -> torch.Tensor:
        at = self.names.index(name) * WIDTH
        return self.head.weight.detach()[:, at : at + WIDTH].clone()

    def train(self, schedule: BatchSchedule, steps: int, *, turns: bool, frozen: bool) -> None:
        c = 0.0 if frozen else 0.25 if self.classes == 2 else 0.5
        for index in range(STEPS["rounds"]):
            rows, eta = schedule.batch(index).copy(), STEPS["learning_rate"] / np.sqrt(index + 1)
            settings: dict[str, Any] = {"steps": steps, "eta": eta}
            u = self.given(rows)
            if turns:
                self.label_steps(rows, u, **settings)
                for name in self.names[1:]:
                    got = self.residuals(rows, self.given(rows)), self.part(name)
                    self.feature_steps(name, rows, *got, **settings, curvature=c)
                continue
            d, parts = self.residuals(rows, u), {n: self.part(n) for n in self.names}
            self.label_steps(rows, u, **settings)
            for name in self.names[1:]:
                self.feature_steps(name, rows, d, parts[name], **settings, curvature=c)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "linear"])
@pytest.mark.parametrize(
    ("parties", "classes", "chosen"),
    [
        (2, 2, {"algorithm": "fedsgd"}),
        (2, 2, {"algorithm": "fedbcd-p", "local_steps": 4}),
        (3, 2, {"algorithm": "fedbcd-p", "local_steps": 3, "local_rule": "frozen"}),
        (3, 3, {"algorithm": "fedbcd-p", "local_steps": 3}),
        (2, 2, {"algorithm": "fedbcd-s", "local_steps": 3}),
        (3, 2, {"algorithm": "fedbcd-s", "local_steps": 3}),
    ],
)
def test_parties_train_what_torch_alone_trains(
    kind: str, parties: int, classes: int, chosen: dict[str, Any]
) -> None:
    dataset = data(parties, classes)
    settings = {**LOCAL[kind], **chosen}
    trained = run(dataset, **settings)
    begun = run(dataset, **{**settings, **STILL})
    reference = Reference(begun, dataset, kind)
    schedule = BatchSchedule(dataset.row_digests, STEPS["batch_size"], STEPS["seed"])
    reference.train(
        schedule,
        chosen.get("local_steps", 1),
        turns=chosen["algorithm"] == "fedbcd-s",
        frozen="local_rule" in chosen,
    )
    rows = np.arange(len(dataset.train_labels))
    u = reference.given(rows)
    logits = reference.head(torch.cat([u[n] for n in reference.names], dim=1))
    for name in reference.names[1:]:
        held_out = trained.outcomes[name].held_out
        assert np.max(np.abs(held_out - u[name].numpy())) <= 1e-10
    model = trained.outcomes["party0"].model
    parts = {name: each.held_out for name, each in trained.outcomes.items()}
    assert np.max(np.abs(model.together(parts) - logits.detach().numpy())) <= 1e-10
    assert model.head is not None
    weights = reference.head.weight.detach().numpy().T
    assert np.max(np.abs(model.head[:-1] - weights)) <= 1e-10
    begun_head = begun.outcomes["party0"].model.head
    assert begun_head is not None
    assert np.max(np.abs(model.head - begun_head)) > 1e-3
    if classes == 2:
        assert trained.scores[-1].auc == pytest.approx(
            auc(logits.detach().numpy(), dataset.test_labels), abs=1e-9
        )


@pytest.mark.parametrize("parties", [2, 3])
def test_a_round_is_one_message_each_way_of_a_feature_party(parties: int) -> None:
    dataset = data(parties)
    result = run(dataset, **LOCAL["mlp"], local_steps=3, eval_every=0)
    assert result.costs().messages == 2 * (parties - 1) * STEPS["rounds"]
    shown = received(result, "party0", Predictions)
    assert len(shown) == (parties - 1) * STEPS["rounds"]
    sizes = [len(result.plan.schedule.batch(index)) for index in range(STEPS["rounds"])]
    of_each = received(result, "party0", Predictions, "party1")
    assert [len(message.values) for message in of_each] == sizes
    assert {message.values.shape[1] for message in shown} == {WIDTH}
    for table in dataset.parties[1:]:
        told = received(result, table.name, HeadResiduals, "party0")
        assert told == received(result, table.name, HeadResiduals)
        assert [message.values.shape for message in told] == [(size, 1) for size in sizes]
        assert {message.head.shape for message in told} == {(WIDTH, 1)}


def test_a_feature_party_gets_its_own_part_of_the_head_alone() -> None:
    result = run(data(3), **{**LOCAL["mlp"], **STILL})
    head = result.outcomes["party0"].model.head
    assert head is not None
    for number in (1, 2):
        told, *_ = received(result, f"party{number}", HeadResiduals)
        np.testing.assert_array_equal(told.head, head[number * WIDTH :][:WIDTH])


def test_noise_is_on_every_number_of_a_representation() -> None:
    privacy = {"noise_multiplier": 3.0, "clip": 0.25, "noise_seed": 1}
    settings = {**LOCAL["mlp"], "eval_every": "never", "rounds": 8}
    noisy, plain = run(data(2), **settings, privacy=privacy), run(data(2), **settings)
    first, *rest = received(noisy, "party0", Predictions)
    exact, *_ = received(plain, "party0", Predictions)
    added = first.values - np.clip(exact.values, -0.25, 0.25)
    # One row moves all w numbers at once: 2β in each, 2β√w in Euclidean length.
    deviation = 3.0 * 2 * 0.25 * math.sqrt(WIDTH)
    assert 0.75 * deviation < added.std() < 1.25 * deviation
    assert np.abs(added.mean()) < 0.5 * deviation
    assert noisy.privacy is not None
    visits = np.zeros(96, np.int64)
    for index in range(8):
        visits[noisy.plan.schedule.batch(index)] += 1
    mechanism = Mechanism("gaussian", 3.0, 0.25, WIDTH)
    assert noisy.privacy.releases == visits.max()
    promised = spent(mechanism, int(visits.max()), 1e-5).release
    assert noisy.privacy.epsilon_release == pytest.approx(promised)
    assert len(rest) == 7
    assert math.isfinite(noisy.clear_auc)


def test_the_label_partys_own_steps_follow_the_noisy_residuals_it_gives() -> None:
    privacy = {"noise_multiplier": 1.0, "label_noise_multiplier": 5.0, "noise_seed": 1}
    settings = {**LOCAL["mlp"], "eval_every": "never", "rounds": 1, "l2": 0.0, "local_steps": 1}
    result = run(data(2), **settings, privacy=privacy)
    told, *_ = received(result, "party1", HeadResiduals)
    given, *_ = received(result, "party0", Predictions)
    assert told.values.std() > 2
    head = result.outcomes["party0"].model.head
    assert head is not None
    stepped = told.head - STEPS["learning_rate"] * given.values.T @ told.values / len(told.values)
    np.testing.assert_allclose(head[WIDTH:-1], stepped, rtol=0, atol=1e-12)


def test_private_gradients_go_through_the_head() -> None:
    privacy = {"noise_multiplier": 1.0, "noise_seed": 1}
    privacy |= {"gradient_clip": 0.5, "gradient_noise_multiplier": 1.0}
    result = run(data(2), **LOCAL["mlp"], local_steps=2, privacy=privacy)
    assert result.privacy is not None
    assert result.privacy.epsilon_end_to_end is not None


def test_single_precision_is_near_double() -> None:
    double, single = (run(data(2), **LOCAL["cnn"], precision=each) for each in ("double", "single"))
    ends = [each.outcomes["party1"].held_out for each in (double, single)]
    difference = float(np.max(np.abs(ends[0] - ends[1])))
    assert 0 < difference < 1e-3


@pytest.mark.parametrize("kind", ["mlp", "cnn", "linear"])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_saved_models_score_as_the_trained_ones(kind: str, precision: str, tmp_path: Path) -> None:
    dataset = data(3)
    own = {} if kind == "linear" else {"precision": precision}
    result = run(dataset, **LOCAL[kind], **own)
    save_models(result, tmp_path)
    models = {t.name: load_model(tmp_path / f"{t.name}.safetensors") for t in dataset.parties}
    parts = {t.name: models[t.name].predict(t.test) for t in dataset.parties}
    for name, outcome in result.outcomes.items():
        np.testing.assert_allclose(parts[name], outcome.held_out, rtol=0, atol=1e-12)
    scores = models["party0"].together(parts)
    assert auc(scores, dataset.test_labels) == pytest.approx(result.scores[-1].auc, abs=1e-12)
    assert [name for name, each in models.items() if each.head is not None] == ["party0"]


def test_a_module_of_ones_own_gives_representations() -> None:
    def make(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, outputs), nn.Tanh())

    environment = Environment(modules=dict.fromkeys(("party0", "party1"), make))
    result = run(data(2), environment, model="custom", rounds=20)
    assert result.outcomes["party1"].held_out.shape == (96, WIDTH)
    assert result.scores[-1].auc > 0.7


def test_it_says_when_it_has_learned_nothing() -> None:
    settings = {**LOCAL["mlp"], "rounds": 20, "representation": 8}
    some, none = (run(data(2), **{**settings, "learning_rate": eta}) for eta in (0.5, 1e-9))
    assert (some.learned, none.learned, none.status) == (True, False, 3)


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fedbcd-s"])
def test_a_job_goes_on_as_if_it_had_never_stopped(algorithm: str) -> None:
    dataset, kept = data(3), Kept()
    settings = {**LOCAL["mlp"], "algorithm": algorithm, "local_steps": 2}
    whole = run(dataset, Environment(keep_state=kept), **settings)
    again = run(dataset, Environment(resume=kept[3]), **settings)
    for name, outcome in whole.outcomes.items():
        np.testing.assert_array_equal(again.outcomes[name].held_out, outcome.held_out)
    heads = [each.outcomes["party0"].model.head for each in (whole, again)]
    assert heads[0] is not None
    assert heads[1] is not None
    np.testing.assert_array_equal(heads[0], heads[1])
